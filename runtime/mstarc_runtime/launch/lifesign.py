"""Which ranks have not been heard of for too long: a process that is there but does nothing counts as crashed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Silence:
    """A rank from which nothing came for `seconds`."""

    rank: int
    seconds: float


class LifeSign:
    """`heard(rank)` on every message; `silent()` now and then, about every `limit_s` / 4.

    A rank is watched from its first `heard` until `forget`; call `heard` when it is started. Workers send `Stats` about
    once a second between ops, so `limit_s` must exceed the longest op and, while it loads, the longest step of loading.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if limit_s <= 0:
            raise ValueError(f"the limit is {limit_s} s; it must be above 0")
        self.limit_s = limit_s
        self._clock = clock
        self._last: dict[int, float] = {}

    def heard(self, rank: int) -> None:
        """Something came from the rank."""
        self._last[rank] = self._clock()

    def forget(self, rank: int) -> None:
        """The rank is down or is being killed."""
        self._last.pop(rank, None)

    def silent(self) -> list[Silence]:
        """Ranks over the limit, by rank; again on each call until they are heard or forgotten."""
        now = self._clock()
        return [Silence(rank, now - last) for rank, last in sorted(self._last.items()) if now - last > self.limit_s]
