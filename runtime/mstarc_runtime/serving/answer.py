"""A chat request's events -> pieces of text and audio in order, then why it ended and what it used."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from mstarc_runtime.conductor.requests import Event, RequestRun
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.serving.audio import pcm16
from mstarc_runtime.serving.playback import Playback
from mstarc_runtime.serving.surface import Surface
from mstarc_runtime.serving.text import StopCutter, TextReader

_FREED_S = 5.0  # the longest wait for the ranks to let go of a request that a stop string ended
_REASONS = {"stop": "stop", "max": "length"}


@dataclass(frozen=True, slots=True)
class Text:
    """Text that may be shown: whole characters, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Audio:
    """16-bit little-endian mono samples, never empty."""

    pcm: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that went into the language model and came out of it."""

    prompt: int
    completion: int


class Answer:
    """One answer. Iterate `pieces` to its end; then `finish_reason` and `usage` are known. `playback` fills up on the way."""

    def __init__(self, surface: Surface, run: RequestRun, stops: Sequence[str], start: float) -> None:
        self._surface = surface
        self._run = run
        self._reader = TextReader(surface.decoder)
        self._cutter = StopCutter(stops)
        self._start = start
        self.playback = Playback(start)
        self.first_text_s: float | None = None
        self.finish_reason = ""
        self.usage: Usage | None = None

    async def pieces(self) -> AsyncGenerator[Text | Audio, None]:
        """Text and audio as they come; a stop string cancels the rest of the request. Raises the request's error."""
        async for event in self._run.events():
            piece = self._piece(event)
            if self._cutter.hit:
                self._run.cancel()
            if piece is not None:
                yield piece
            if self._cutter.hit:
                break
        if self._cutter.hit:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._run.freed.wait(), _FREED_S)  # then the ranks have said what they counted
        else:
            rest = self._cutter.push(self._reader.finish()) + self._cutter.finish()
            if rest:
                yield Text(rest)
        self._conclude()

    def _piece(self, event: Event) -> Text | Audio | None:
        if event.modality == "text":
            if self.first_text_s is None:
                self.first_text_s = event.time - self._start
            text = self._cutter.push(self._reader.push(event.value))
            return Text(text) if text else None
        if event.modality == "audio":
            rate = int(event.attributes.get("rate", self._surface.rate))
            if rate != self._surface.rate:
                raise RequestFailed(f"the model made audio at {rate} Hz where {self._surface.rate} Hz is declared")
            pcm = pcm16(event.value)
            self.playback.add(event.time, len(pcm) // 2, rate)
            return Audio(pcm) if pcm else None
        return None

    def _conclude(self) -> None:
        """Set finish_reason and usage from what the ranks reported: how long a context got is known once its walk has ended."""
        outcome, surface = self._run.outcome, self._surface
        cause = "stop" if self._cutter.hit or not surface.finish else outcome.causes.get(surface.finish)
        if cause not in _REASONS:
            raise RequestFailed(f"the request ended without a word on how `{surface.finish}` did")
        self.finish_reason = _REASONS[cause]
        entries = outcome.counts.get(f"context:{surface.usage}")
        if entries is not None and (not self._cutter.hit or self._run.freed.is_set()):
            self.usage = Usage(max(0, entries - self._run.emitted.get("text", 0)), self._reader.ids)
