"""Host Python of `specs/ask.walk`: the chat prompt, phrase cuts, phonemes, and text from token ids.

One `AskHost` per process serves every extern of the spec that the process runs. All methods are pure functions of their
arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.audio_input import SAMPLE_RATE, decode_audio, split_windows
from mstarc_runtime.models.bpe_text import ChatText
from mstarc_runtime.models.whisper.mel import log_mel
from mstarc_runtime.models.whisper.text import TranscriptText
from mstarc_runtime.program import Part

SOFT_CUT = 24  # characters after which , ; : end a phrase
AUDIO_SECONDS = 120.0  # of all recordings of a request together
RECORDINGS = 16  # of a request: each takes a window of 30 s, however short it is
TEXT_SIZE = 2**18  # characters of all messages: more than the longest tokens (81 characters) of a full context make
MESSAGES = 2048  # each takes an entry of the context at least
_NOT_AN_END = re.compile(
    r"(?:\d|\b(?:e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|prof|st|no|inc|ltd|jr|sr|[a-z]))$", re.IGNORECASE
)


Samples: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"  # [n] at 16 kHz


def _ids(ids: Sequence[int]) -> np.ndarray[Any, Any]:
    return np.asarray(ids, dtype=np.int64)


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


def _refuse_excess(parts: Sequence[Part]) -> None:
    """What no context can hold is refused before time is spent on it. Raises BadRequest, also if nothing is said."""
    texts = [part.text for part in parts if part.kind == "text"]
    recordings = len(parts) - len(texts)
    if not recordings and not any(texts):
        raise BadRequest("`messages` is empty", "messages")
    if len(parts) > MESSAGES or sum(map(len, texts)) > TEXT_SIZE:
        raise BadRequest(
            f"`messages` is too long: up to {MESSAGES} parts with {TEXT_SIZE} characters are read at all", "messages"
        )
    if recordings > RECORDINGS:
        raise BadRequest(f"`messages` holds {recordings} recordings; up to {RECORDINGS} are accepted", "messages")


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
        _refuse_excess(messages)
        pieces = self.chat.render(_messages(messages))
        tail = pieces.pop() if isinstance(pieces[-1], str) else ""
        heard = self._heard([piece for piece in pieces if not isinstance(piece, str)])
        prefix: list[Part] = []
        for piece in pieces:
            if isinstance(piece, str):
                prefix.append(Part("text_part", ids=_ids(self.chat.encode(piece))))
            else:
                prefix.extend(self._windows(next(heard)))
        return prefix, Part("text_part", ids=_ids(self.chat.encode(tail)))

    def _heard(self, parts: Sequence[Part]) -> Iterator[Samples]:
        """The samples of recordings, all of them decoded, so that their time together is known."""
        found: list[Samples] = []
        for part in parts:
            form = getattr(part, "format", None)
            found.append(decode_audio(part.data, form, max_seconds=AUDIO_SECONDS, field="messages"))
            if sum(map(len, found)) > AUDIO_SECONDS * SAMPLE_RATE:
                raise BadRequest(f"the recordings together are longer than {AUDIO_SECONDS:g} s", "messages")
        return iter(found)

    def _windows(self, samples: Samples) -> list[Part]:
        forced = np.asarray(self._config["scribe"]["prompt_ids"], dtype=np.int64)
        return [Part("audio_part", mel=log_mel(window, 80, 3000), forced=forced) for window in split_windows(samples)]

    def retell(self, heard: Any) -> np.ndarray[Any, Any]:
        """Transcript ids of the ears as ids of the language model."""
        return _ids(self.chat.plain(self.ears.transcript_text(int(token) for token in np.atleast_1d(heard))))

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
