"""What the compiler says when it cannot generate code for a program that is otherwise right."""

from __future__ import annotations

from mstarc.source import NOWHERE, Span


class NotBuilt(Exception):
    """The program uses something that no generated code exists for yet. `span` is where."""

    def __init__(self, what: str, span: Span = NOWHERE) -> None:
        super().__init__(f"not built yet: {what}")
        self.span = span
