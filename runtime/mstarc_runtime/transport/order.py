"""Messages that come by two ways, put in the order in which they were sent."""

from __future__ import annotations

from typing import Any


class Order:
    """Numbered from 0. Each number comes once."""

    def __init__(self) -> None:
        self._due = 0
        self._early: dict[int, Any] = {}

    @property
    def waiting(self) -> int:
        """Messages that have overtaken the one that is due."""
        return len(self._early)

    def put(self, number: int, message: Any) -> None:
        self._early[number] = message

    def next(self) -> Any | None:
        """The message that is due, if it has come."""
        message = self._early.pop(self._due, None)
        self._due += message is not None
        return message
