"""How an interpreted request can fail. Each message stands alone."""

from __future__ import annotations


class InterpretError(Exception):
    """Base of what follows."""


class RequestRefused(InterpretError):
    """The request is not served as written: an input is missing, a param out of range, a `require` false. `field` names it."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class Deadlock(InterpretError):
    """No arm can run and not all have ended. `waits` says for each arm what it waits for."""

    def __init__(self, waits: dict[str, str]) -> None:
        super().__init__("nothing can run: " + "; ".join(f"arm `{arm}` waits for {why}" for arm, why in waits.items()))
        self.waits = waits


class ExecutionError(InterpretError):
    """A value is not what the program needs (a length, a shape, an absent value). Says where."""
