"""Orpheus: host Python and the SNAC codec of `specs/orpheus.walk`; its language model is `mstarc_runtime.models.llama`."""
