"""Errors of the IR layer: none of them is the user's fault; a user's mistake is a diagnostic."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mstarc.ir.core import Program


class InternalError(Exception):
    """A fact that an earlier stage promised does not hold: a fault of the compiler, or of a hand-written IR file."""


class IrTextError(InternalError):
    """The text is not IR. `line` is 1-based; `what` is wrong there."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.what, self.line = message, line


class VerifyError(InternalError):
    """A program breaks rules of the IR. `violations` are all of them, in program order."""

    def __init__(self, violations: tuple[str, ...]) -> None:
        super().__init__("the IR breaks its own rules:\n  " + "\n  ".join(violations))
        self.violations = violations


class PassFailed(InternalError):
    """A pass raised: a fault of the compiler. `name` is the pass, `before` the program that it was given, if it was given one.

    `model`: the path of the model, where one of several is meant.
    """

    def __init__(self, name: str, cause: BaseException, before: Program | None = None) -> None:
        super().__init__(f"pass `{name}` failed: {type(cause).__name__}: {cause}")
        self.name = name
        self.before = before
        self.model = ""
