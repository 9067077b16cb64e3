"""Whisper: `mel` (samples -> log-mel, numpy only), `config` and `text` (facts of a checkpoint), `components` (Encoder, Scribe; torch)."""
