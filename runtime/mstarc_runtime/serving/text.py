"""Emitted text or token ids -> text that may be shown: whole characters, and nothing from a stop string on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from mstarc_runtime.errors import LoadError, RequestFailed

log = logging.getLogger("mstarc.serving")


class TextDecoder(Protocol):
    """Token ids to text, incrementally. Holds back the bytes of an unfinished character."""

    def push(self, id: int) -> str: ...

    def finish(self) -> str: ...


class StopCutter:
    """Cuts text before the first stop string to be completed, however the text is split into pieces.

    Of stop strings that end at the same character the one that begins first counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string. After a hit there is none."""
        if self.hit:
            return ""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back in case a stop string began there."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)


def reader_of(decoder: Callable[[], TextDecoder] | None) -> TextReader | None:
    """What makes text of the ids of one request; None if there is no decoder, or the checkpoint lacks what it needs (with a warning)."""
    try:
        return None if decoder is None else TextReader(decoder)
    except LoadError as error:
        log.warning("text is shown as ids: %s", error)
        return None


class TextReader:
    """Values of the text modality (a string, an id, or ids) -> text, counting the ids."""

    def __init__(self, decoder: Callable[[], TextDecoder] | None) -> None:
        self._decoder = None if decoder is None else decoder()
        self.ids = 0

    def push(self, value: Any) -> str:
        """Text that `value` completes. Raises RequestFailed for ids if the model names no decoder."""
        if isinstance(value, str):
            return value
        if self._decoder is None:
            raise RequestFailed("the model emits token ids as text but names no `decoder` for them")
        ids = np.atleast_1d(np.asarray(value)).reshape(-1)
        self.ids += len(ids)
        return "".join(self._decoder.push(int(token)) for token in ids)

    def finish(self) -> str:
        """The rest, once no more ids come."""
        return "" if self._decoder is None else self._decoder.finish()
