"""How a listener experiences streamed audio: from arrival times and lengths to first audio, stalls and chunk lateness.

The listener starts to play when the first audio arrives and plays without a pause while there is something to play. A chunk is
due when the buffer before it runs out. One that comes later stalls playback until it arrives; playback goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlaybackReport:
    """What was heard. Times in seconds; `first_s` is None if no audio came."""

    first_s: float | None  # from the start of the request to the first audio
    audio_s: float  # length of all audio
    stalls: int  # times the buffer ran empty before the next chunk came
    lateness: tuple[float, ...]  # per chunk, max(0, arrival - when it was due)

    @property
    def stalled_s(self) -> float:
        """How long playback stood still."""
        return sum(self.lateness)

    @property
    def worst_s(self) -> float:
        """Lateness of the latest chunk."""
        return max(self.lateness, default=0.0)


class Playback:
    """Collects chunks in order of arrival. `start` is when the request came, on the clock of the arrivals."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._first: float | None = None
        self._runs_out = 0.0
        self._audio = 0.0
        self._lateness: list[float] = []

    def add(self, arrival: float, samples: int, rate: int) -> float:
        """Take a chunk of `samples` at `rate` Hz; gives its lateness. A chunk without samples is nothing to hear: 0, not counted."""
        if samples == 0:
            return 0.0
        if self._first is None:
            self._first = self._runs_out = arrival
        late = max(0.0, arrival - self._runs_out)
        self._lateness.append(late)
        self._runs_out += late + samples / rate
        self._audio += samples / rate
        return late

    def report(self) -> PlaybackReport:
        """What was heard so far."""
        first = None if self._first is None else self._first - self._start
        return PlaybackReport(first, self._audio, sum(late > 0 for late in self._lateness), tuple(self._lateness))
