"""Host Python of `specs/whisper.walk`: recordings as log-mel windows, forced prompts, and text from ids as they arrive. No torch.

Checkpoint of the binding: `whisper`. Windows are cut where the recording is quietest, so a word is rarely in two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest, LoadError
from mstarc_runtime.models.audio_input import SAMPLE_RATE, decode_audio, split_windows
from mstarc_runtime.models.bpe_text import TextStream
from mstarc_runtime.models.whisper.config import WhisperConfig, read_config
from mstarc_runtime.models.whisper.mel import HOP, log_mel
from mstarc_runtime.models.whisper.text import TranscriptText
from mstarc_runtime.program import Part

MAX_SECONDS = 1800.0  # of one recording
AUTO = "auto"


class WhisperHost:
    """Windows, prompts and text of one Whisper checkpoint. Methods are pure."""

    def __init__(self, checkpoint: Checkpoint, config: WhisperConfig) -> None:
        self._checkpoint = checkpoint
        self.config = config

    @classmethod
    def load(cls, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> WhisperHost:
        """What `checkpoints.Externs` calls, once per process. Raises LoadError."""
        if "whisper" not in checkpoints:
            raise LoadError("the binding names no checkpoint `whisper`")
        return cls(checkpoints["whisper"], read_config(checkpoints["whisper"]))

    # ------------------------------------------------------------------------------------------------------------- externs

    def prepare(self, speech: Any, language: str) -> tuple[Part, list[Part], int]:
        """A recording -> its first window, all windows (mel f32 [n_mels, n_frames]), and the id of `language`.

        `speech` is the bytes of a wav, flac, mp3 or ogg file, or f32 samples [n] at 16 kHz. The id is -1 where nothing is known
        beforehand: `auto`, or a model of English only, whose prompt names no language. Raises BadRequest.
        """
        samples = self._samples(speech)
        known = self._language(language)
        seconds = self.config.n_frames * HOP / SAMPLE_RATE
        windows = [
            Part("window", mel=log_mel(each, self.config.n_mels, self.config.n_frames))
            for each in split_windows(samples, seconds)
        ]
        return windows[0], windows, known

    def opening(self, tongue: Any, task: str) -> NDArray[np.int64]:
        """The forced prompt i64 [G]: start, language, task, no timestamps; of a model of English only, start, no timestamps.

        Raises BadRequest if such a model is asked to translate.
        """
        special = self.config.special
        first, last = special["<|startoftranscript|>"], special["<|notimestamps|>"]
        if not self.config.languages:
            if task != "transcribe":
                raise BadRequest(f"the model hears English only; it cannot {task}", "task")
            return np.asarray([first, last], np.int64)
        return np.asarray([first, int(tongue), special[f"<|{task}|>"], last], np.int64)

    # ---------------------------------------------------------------------------------------------------------------- text

    def text_stream(self) -> TextStream:
        """A new incremental decoder: push(id) -> text, finish() -> rest. Raises LoadError if there is no tokenizer.json."""
        return self._text.stream()

    @cached_property
    def _text(self) -> TranscriptText:
        return TranscriptText(self._checkpoint)

    # ------------------------------------------------------------------------------------------------------------- the parts

    def _samples(self, speech: Any) -> NDArray[np.float32]:
        if isinstance(speech, bytes | bytearray | memoryview):
            return decode_audio(bytes(speech), None, max_seconds=MAX_SECONDS, field="speech")
        if not isinstance(speech, np.ndarray) or speech.dtype != np.float32 or speech.ndim != 1 or not len(speech):
            raise BadRequest("`speech` must be an audio file, or f32 samples in a row (mono, 16 kHz)", "speech")
        if len(speech) > MAX_SECONDS * SAMPLE_RATE:
            raise BadRequest(f"`speech` is longer than {MAX_SECONDS:g} s", "speech")
        if not np.isfinite(speech).all():
            raise BadRequest("`speech` holds nan or infinity", "speech")
        return speech

    def _language(self, language: str) -> int:
        known = self.config.languages
        if not known:
            if language != "en":
                raise BadRequest(
                    f"the model hears English only: `language` must be en, not {language[:40]!r}", "language"
                )
            return -1
        if language == AUTO:
            return -1
        if language not in known:
            raise BadRequest(
                f"`language` {language[:40]!r} is neither {AUTO} nor one of {', '.join(sorted(known))}", "language"
            )
        return known[language]
