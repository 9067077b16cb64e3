"""Tensors of a Whisper checkpoint, CTranslate2 or HF: under the names of the HF layout, which the rules of the binding begin with."""

from __future__ import annotations

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.whisper import ct2
from mstarc_runtime.models.whisper.config import CT2_FILE, folder_of
from mstarc_runtime.weights import Weights, mapped


def tensors(checkpoint: Checkpoint) -> Weights:
    """The tensors under the names of the rules, unread. Raises LoadError for a file that is missing, damaged or of another model."""
    path = folder_of(checkpoint) / CT2_FILE
    if path.exists():
        return mapped(ct2.whisper_tensors(ct2.read_model(path), path.name), checkpoint.rules)
    return checkpoint.tensors()
