"""What is wrong with a plan: one finding of the independent checker."""

from __future__ import annotations

from dataclasses import dataclass

from mstarc.diagnostics.core import Rule
from mstarc.ir.core import Op
from mstarc.ir.text.printer import print_op


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule, and where the plan breaks it: a walk ("" = the whole plan), a loop of it, an operation in the IR's words."""

    rule: Rule
    message: str
    walk: str = ""
    loop: str = ""
    op: str = ""

    @property
    def subject(self) -> str:
        """The name that it is about."""
        return f"{self.walk}.{self.loop}" if self.loop else self.walk


def line_of(op: Op) -> str:
    """The first line of an operation, as bodies of plans have it."""
    return print_op(op).splitlines()[0].strip()
