"""Lays Python out as `ruff format` does at line length 120. Takes a small tree of text and brackets; gives lines.

Only the shapes that generated code uses are here: a statement is text, or a head with bracketed items that may be broken, and a
tail. A test runs `ruff format` over everything that is generated and expects it unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

WIDTH = 120
INDENT = "    "


@dataclass(frozen=True, slots=True)
class Call:
    """`head(items)tail`. `many`: once broken, always one item a line (a call written with a trailing comma)."""

    head: str
    items: tuple[str | Group | Call | Choice, ...]
    tail: str = ""
    many: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """`head(items)` or `head{items}` of a tuple or mapping: a tuple of one item has a comma, and breaks item by item."""

    items: tuple[str | Group | Call | Choice, ...]
    head: str = ""
    brackets: str = "()"
    tail: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """`value if cond else other`, an item of a call: once broken, three lines. Each of them has to fit."""

    value: Call
    cond: str
    other: str


Part: TypeAlias = str | Call | Group | Choice


def flat(part: Part) -> str:
    """The part on one line."""
    if isinstance(part, str):
        return part
    if isinstance(part, Choice):
        return f"{flat(part.value)} if {part.cond} else {part.other}"
    inner = ", ".join(flat(item) for item in part.items)
    if isinstance(part, Call):
        return f"{part.head}({inner}){part.tail}"
    lone = "," if part.brackets == "()" and len(part.items) == 1 else ""
    return f"{part.head}{part.brackets[0]}{inner}{lone}{part.brackets[1]}{part.tail}"


def lay_out(part: Part, depth: int = 0, reserve: int = 0) -> list[str]:
    """The statement as lines, indented by `depth` levels; `reserve` columns stay free at the end of a single line."""
    margin = INDENT * depth
    line = margin + flat(part)
    if isinstance(part, Choice):
        broken = [margin + piece for piece in (flat(part.value), f"if {part.cond}", f"else {part.other}")]
        return [line] if len(line) + reserve <= WIDTH else broken
    if isinstance(part, str) or (len(line) + reserve <= WIDTH and not _forced(part)) or not part.items:
        return [line]
    inner = ", ".join(flat(item) for item in part.items)
    opening, closing = ("(", ")") if isinstance(part, Call) else (part.brackets[0], part.brackets[1])
    first, last = f"{margin}{part.head}{opening}", f"{margin}{closing}{part.tail}"
    fits = len(margin) + len(INDENT) + len(inner) <= WIDTH
    if isinstance(part, Call) and not part.many and fits and not any(_forced(item) for item in part.items):
        return [first, f"{margin}{INDENT}{inner}", last]
    return [first, *_one_a_line(part.items, depth + 1), last]


def _forced(part: Part) -> bool:
    """Whether the part is always broken."""
    return not isinstance(part, str | Choice) and (
        (isinstance(part, Call) and part.many and bool(part.items)) or any(_forced(item) for item in part.items)
    )


def _one_a_line(items: Sequence[Part], depth: int) -> list[str]:
    lines: list[str] = []
    for item in items:
        inner = lay_out(item, depth, reserve=1)
        lines += [*inner[:-1], inner[-1] + ","]
    return lines
