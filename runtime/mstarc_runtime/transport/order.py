"""Messages that come by two ways, put in the order in which they were sent."""

from __future__ import annotations

import time
from collections import deque
from enum import IntEnum
from typing import Any


class Way(IntEnum):
    """How a message came: through ZeroMQ's queues, or by a lane."""

    QUEUE = 0
    LANE = 1


class Order:
    """Messages are numbered from 0, each comes once, and by either way in order: the one that is due is the first of one of them."""

    def __init__(self) -> None:
        self._due = 0
        self._since = 0.0  # when messages began to wait for the one that is due
        self._came: tuple[deque[tuple[int, Any]], ...] = tuple(deque() for _ in Way)

    def waiting(self, way: Way) -> int:
        """Messages of a way that have overtaken the one that is due."""
        return len(self._came[way])

    def stuck_s(self) -> float:
        """Seconds for which messages have waited for the one that is due; 0 if none waits."""
        return time.monotonic() - self._since if any(self._came) else 0.0

    def put(self, number: int, message: Any, way: Way) -> None:
        if not any(self._came):
            self._since = time.monotonic()
        self._came[way].append((number, message))

    def next(self) -> Any | None:
        """The message that is due, if it has come."""
        for came in self._came:
            if came and came[0][0] == self._due:
                self._due += 1
                message = came.popleft()[1]
                if any(self._came):
                    self._since = time.monotonic()
                return message
        return None
