"""The voice "heart" of hibari-tts 0.2.1 (Apache-2.0) in torch: `Voice` is the component, `phonemes` its grapheme to phoneme."""

from mstarc_runtime.models.hibari.g2p import phonemes
from mstarc_runtime.models.hibari.voice import Voice

__all__ = ["Voice", "phonemes"]
