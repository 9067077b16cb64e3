"""Errors of the IR layer: none of them is the user's fault; a user's mistake is a diagnostic."""

from __future__ import annotations


class InternalError(Exception):
    """A fact that an earlier stage promised does not hold: a fault of the compiler, or of a hand-written IR file."""


class IrTextError(InternalError):
    """The text is not IR. `line` is 1-based."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class VerifyError(InternalError):
    """A program breaks rules of the IR. `violations` are all of them, in program order."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("the IR breaks its own rules:\n  " + "\n  ".join(violations))
        self.violations = violations
