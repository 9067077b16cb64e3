"""How long to wait before a worker is started again: doubling pauses, forgotten after a time of health."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """`pause()` after each death. Seconds: first 0.2, at most 10, back to the first after 60 of health.

    Health is the time from `healthy()` (the worker said it is ready) to the next `pause()`.
    """

    clock: Callable[[], float]
    first_s: float = 0.2
    longest_s: float = 10.0
    healthy_s: float = 60.0
    _next: float = 0.0
    _ready_at: float | None = None

    def healthy(self) -> None:
        """The worker is ready."""
        if self._ready_at is None:
            self._ready_at = self.clock()

    def pause(self) -> float:
        """The worker died: seconds to wait before the next start."""
        if self._next == 0.0 or (self._ready_at is not None and self.clock() - self._ready_at >= self.healthy_s):
            self._next = self.first_s
        self._ready_at = None
        pause = self._next
        self._next = min(pause * 2, self.longest_s)
        return pause
