"""Source files and spans: a position is a byte offset; lines and columns are made at the edge."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct


class Span(Struct, frozen=True):
    """Half-open byte range [start, end) of a file, named as the user named it."""

    file: str
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.file, self.start, max(self.end, other.end))


NOWHERE = Span("", 0, 0)


@dataclass(frozen=True)
class SourceFile:
    """One text file. `text` is decoded UTF-8; offsets are into its UTF-8 bytes."""

    path: str
    text: str
    _data: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_data", self.text.encode("utf-8"))

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        starts.extend(i + 1 for i, byte in enumerate(self._data) if byte == 0x0A)
        return starts

    def line_of(self, offset: int) -> int:
        """1-based line of a byte offset."""
        return bisect_right(self._line_starts, offset)

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and 1-based column in characters."""
        line = self.line_of(offset)
        start = self._line_starts[line - 1]
        return line, len(self._data[start:offset].decode("utf-8", "replace")) + 1

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its newline."""
        start = self._line_starts[line - 1]
        end = self._line_starts[line] if line < len(self._line_starts) else len(self._data)
        return self._data[start:end].decode("utf-8", "replace").rstrip("\r\n")
