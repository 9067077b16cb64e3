"""Host Python of `specs/ask.walk`: the chat prompt, phrase cuts, phonemes, and text from token ids.

One `AskHost` per process serves every extern of the spec that the process runs. All methods are pure functions of their
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.audio_input import decode_audio, split_windows
from mstarc_runtime.models.bpe_text import ChatText
from mstarc_runtime.models.whisper.mel import log_mel
from mstarc_runtime.models.whisper.text import TranscriptText
from mstarc_runtime.program import Part

SOFT_CUT = 24  # characters after which , ; : end a phrase
AUDIO_SECONDS = 120.0  # longest audio input
_NOT_AN_END = re.compile(
    r"(?:\d|\b(?:e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|prof|st|no|inc|ltd|jr|sr|[a-z]))$", re.IGNORECASE
)


def _messages(parts: Sequence[Part]) -> list[tuple[str, list[Part]]]:
    """Parts by message: neighbours that say they are of one message (`message`) stand together."""
    found: list[tuple[str, list[Part]]] = []
    last: object = None
    for k, part in enumerate(parts):
        message = getattr(part, "message", (k,))
        if found and message == last:
            found[-1][1].append(part)
        else:
            found.append((part.role, [part]))
        last = message
    return found


class AskHost:
    """Tokenizers and rules of the `ask` model; each part is loaded on first use."""

    def __init__(self, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> None:
        self._checkpoints = checkpoints
        self._config = config

    @classmethod
    def load(cls, checkpoints: Mapping[str, Checkpoint], config: Mapping[str, Mapping[str, Any]]) -> AskHost:
        """What `checkpoints.Externs` calls, once per process."""
        return cls(checkpoints, config)

    def warm(self, methods: set[str]) -> None:
        """Load what these methods need: tokenizers, and the lexicons of the voice (0.7 s)."""
        if methods & {"layout", "retell", "cut", "phonemes"}:
            self.chat.encode("warm")
        if "retell" in methods:
            self.ears.transcript_text([0])
        if "phonemes" in methods:
            self.phonemes([0])

    # ------------------------------------------------------------------------------------------------------- prompt

    def layout(self, messages: Sequence[Part]) -> tuple[list[Part], Part]:
        """The prompt as parts in order, and the text that opens the answer.

        Text parts hold ids of the language model; audio parts hold a log-mel window [80, 3000] and the forced prompt of the ears.
        Raises BadRequest that names the message.
        """
        if not messages:
            raise BadRequest("`messages` is empty", "messages")
        pieces = self.chat.render(_messages(messages))
        prefix: list[Part] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece
                continue
            if text:
                prefix.append(Part("text_part", ids=self._ids(text)))
                text = ""
            prefix.extend(self._windows(piece))
        return prefix, Part("text_part", ids=self._ids(text))

    def _ids(self, text: str) -> np.ndarray[Any, Any]:
        return np.asarray(self.chat.encode(text), dtype=np.int64)

    def _windows(self, part: Part) -> list[Part]:
        samples = decode_audio(part.data, getattr(part, "format", None), max_seconds=AUDIO_SECONDS, field="messages")
        forced = np.asarray(self._config["scribe"]["prompt_ids"], dtype=np.int64)
        return [Part("audio_part", mel=log_mel(window, 80, 3000), forced=forced) for window in split_windows(samples)]

    def retell(self, heard: Any) -> np.ndarray[Any, Any]:
        """Transcript ids of the ears as ids of the language model."""
        return self._ids(self.ears.transcript_text(int(token) for token in np.atleast_1d(heard)))

    @cached_property
    def chat(self) -> ChatText:
        """Tokenizer and chat template of the language model."""
        return ChatText.load(self._checkpoints["smollm2"])

    @cached_property
    def ears(self) -> TranscriptText:
        """The vocabulary of the ears."""
        return TranscriptText(self._checkpoints["whisper"])

    # ------------------------------------------------------------------------------------------------------- phrases

    def cut(self, state: str | None, item: int) -> tuple[str, bool]:
        """Whether a phrase ends after this token: at . ! ? and line ends, or at , ; : once it has 24 characters.

        The point of `3.14` or `e.g.` is not an end. `state` is the phrase so far.
        """
        text = (state or "") + self.chat.piece(item)
        bare = text.rstrip()
        last = bare[-1:]
        if text.endswith("\n") and bare:
            return "", True
        if last in "!?" and last:
            return "", True
        if last == "." and not _NOT_AN_END.search(bare[:-1]):
            return "", True
        if last and last in ",;:" and len(bare) > SOFT_CUT:
            return "", True
        return text, False

    def phonemes(self, tokens: Any) -> np.ndarray[Any, Any]:
        """Phoneme ids of one phrase of token ids; empty if nothing in it can be spoken."""
        from mstarc_runtime.models.hibari.g2p import phonemes

        text = self.chat.text([int(token) for token in np.atleast_1d(tokens)])
        return np.asarray(phonemes(text), dtype=np.int64)

    def text_stream(self) -> Any:
        """A new incremental decoder: push(id) -> text, finish() -> rest."""
        return self.chat.stream()
