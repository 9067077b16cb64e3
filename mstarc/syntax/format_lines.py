"""Which lines a text has. Takes the items of a file and a width; gives lines of cells, not yet aligned.

One statement a line. A block stays on one line if the author wrote it so, it fits, and it holds one statement (a config, node or
`together` may list several). What does not fit is broken before a clause, else after a comma, else at an operator. The spaces of
the author decide nothing here, so a second run finds the same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mstarc.syntax.format_breaks import WORDS_OF_STREAMS, Breaks
from mstarc.syntax.format_tree import Block, Comment, Item, Marks, Tree, Word
from mstarc.syntax.machine import machine

INDENT = 4
_CLAUSES = frozenset((*WORDS_OF_STREAMS, "times", "max", "at", "on", "from", "of", "advance", "takes"))
_NAMED = frozenset(("param", "cache", "context", "sampler", "node", "stream"))
_ALLOW = re.compile(r"#\s*mstarc:\s*allow\b")
_ENDLESS = 1_000_000

#: kind of item -> words that may be aligned with their like on other lines, in the order in which they can stand
_ANCHORS: dict[str, tuple[str, ...]] = {
    "param": ("in", "="),
    "context": ("max", "when"),
    "stream": WORDS_OF_STREAMS,
    "type": ("=",),
    "let": ("=",),
    "extern": ("->",),
    "op": ("->", "{"),
    "state": ("=",),
    "walk": ("->", "{"),
    "request": ("->", "{"),
    "case": ("{",),
    "stmt": ("=", "as", "->", "when", "{"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A word with its least distance from the word before it. `anchor`: what it may be aligned by, after its rank; or None."""

    word: Word
    gap: int
    anchor: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code, or without cells that of the comment.

    It begins at column `start`, or where the word at byte offset `under` stands, if that is not None. `level`: the depth of its
    item. `kind`: that of the item. `hangs`: the comment goes on with the one on the line above.
    """

    cells: tuple[Cell, ...]
    start: int
    under: int | None
    comment: Comment | None
    blank: bool
    level: int
    kind: str
    hangs: bool = False


def lines_of(tree: Tree, width: int) -> list[Line]:
    """The lines of a file."""
    maker = _Lines(tree.marks, width)
    maker.block(tree.items, 0, "")
    maker.comments(tree.last, 0, None, 0)
    return maker.lines


class _Lines:
    def __init__(self, marks: Marks, width: int) -> None:
        self.lines: list[Line] = []
        self._marks = marks
        self._width = width
        self._wide: dict[int, int] = {}  # distances, by byte offset, of the words whose neighbours do not say it
        self._anchors: dict[int, tuple[int, str]] = {}  # by byte offset: see Cell
        self._top = True  # of a block: no empty line here
        self._hang: int | None = None  # the column of the comment on the line above

    # --------------------------------------------------------------------------------------------------------- items

    def block(self, items: Sequence[Item], level: int, kind: str) -> None:
        """The items of a block on lines of their own; entries of a config that share a line go on doing so if they fit."""
        rest = list(items)
        while rest:
            taken = [rest.pop(0)]
            while rest and kind == "config" and not rest[0].first.fresh:
                taken.append(rest.pop(0))
            for item in self._joined(taken, level) if len(taken) > 1 else taken:
                self._item(item, level)

    def _joined(self, entries: Sequence[Item], level: int) -> Sequence[Item]:
        """Entries of a config as one item, or as they are if a comment is between them or they are too long."""
        words = [part for entry in entries for part in entry.parts if isinstance(part, Word)]
        if any(word.lead for word in words[1:]) or any(word.trail for word in words[:-1]):
            return entries
        for entry in entries[1:]:
            self._wide[entry.first.start] = 2
        if level * INDENT + self._length(words) > self._width:
            for entry in entries[1:]:
                del self._wide[entry.first.start]
            return entries
        for number, entry in enumerate(entries):
            self._entry(entry, number)
        return [Item(tuple(words), "entry")]

    def _item(self, item: Item, level: int) -> None:
        self._mark(item)
        spread = self._spread(item, level)
        width = _ENDLESS if _allows(item) else self._width
        for words, _, block in self._stretches(item, spread):
            self._code(words, level, item.kind, width, header=block is not None)
            if block is not None:
                self._top = True
                self.block(block.items, level + 1, block.kind)
                self.comments(block.close.lead, (level + 1) * INDENT, None, level + 1)
                self._top = False

    def _spread(self, item: Item, level: int) -> set[int]:
        """The blocks (by identity) whose items get lines of their own: those that must, and those on lines that do not fit."""
        blocks = [part for part in item.parts if isinstance(part, Block)]
        spread = {id(block) for block in blocks if _must_spread(block)}
        width = _ENDLESS if _allows(item) else self._width
        while True:
            more = set[int]()
            for words, held, _ in self._stretches(item, spread):
                if held and level * INDENT + self._length(words) > width:
                    more |= held
            if not more:
                break
            spread |= more
        for block in blocks:
            if id(block) in spread and item.kind != "case":
                self._anchors.pop(block.open.start, None)
        return spread

    def _stretches(self, item: Item, spread: set[int]) -> Iterator[tuple[list[Word], set[int], Block | None]]:
        """(words up to and with the `{` of a block that is spread, blocks among them, that block) and the rest, without one."""
        words: list[Word] = []
        held: set[int] = set()
        for part in item.parts:
            if isinstance(part, Word):
                words.append(part)
            elif id(part) in spread:
                yield [*words, part.open], held, part
                words, held = [replace(part.close, lead=(), blank=False)], set()
            else:
                words += self._flat(part)
                held.add(id(part))
        if words:
            yield words, held, None

    def _flat(self, block: Block) -> list[Word]:
        """The words of a block on one line."""
        words = [block.open]
        for number, item in enumerate(block.items):
            self._mark(item, anchored=False)
            if number:
                self._wide[item.first.start] = 2
            for part in item.parts:
                words += self._flat(part) if isinstance(part, Block) else [part]
        return [*words, block.close]

    # --------------------------------------------------------------------------------------------------------- marks

    def _mark(self, item: Item, anchored: bool = True) -> None:
        """Note which words of an item stand further off, and which may be aligned."""
        wide = WORDS_OF_STREAMS if item.kind == "stream" else ()
        words = list(_outer(item))
        found: dict[int, tuple[int, str]] = {}
        due = list(enumerate(_ANCHORS.get(item.kind, ()), 3))
        if item.kind in _NAMED and len(words) > 2:
            after = next((word for word in words[2:] if word.text == "on"), words[2])
            found |= {words[1].start: (1, "name"), after.start: (2, "after")}
            if after.text == ":":
                self._wide[after.start] = 1
        for before, word in pairwise(words):
            if word.text == "when" and before.text == "stop":
                continue
            guard = item.kind == "stmt" and word.text == "when"
            if word.text in wide or guard or (item.kind == "op" and word.text == "{"):
                self._wide[word.start] = 2
            at = next((at for at, (_, text) in enumerate(due) if text == word.text), None)
            if at is not None:
                found[word.start] = due[at]
                due = due[at + 1 :]
        if anchored:
            self._anchors |= found
            if item.kind == "entry":
                self._entry(item, 0)

    def _entry(self, item: Item, number: int) -> None:
        """Entries of a config stand in columns, two to each entry of a line."""
        name, equals = (part for part in item.parts[:2] if isinstance(part, Word))
        if number:
            self._anchors[name.start] = (2 * number, f"entry {number}")
        self._anchors[equals.start] = (2 * number + 1, f"= {number}")

    # --------------------------------------------------------------------------------------------------------- lines

    def comments(self, comments: Sequence[Comment], start: int, under: int | None, level: int) -> None:
        """Comments on lines of their own."""
        for comment in comments:
            hangs = comment.column == self._hang and not comment.blank
            blank = comment.blank and not self._top
            self.lines.append(Line((), start, under, comment, blank, level, "", hangs))
            self._top = False
            self._hang = self._hang if hangs else None

    def _code(self, words: Sequence[Word], level: int, kind: str, width: int, header: bool) -> None:
        """One line, or several if it is too long or holds comments."""
        gaps = [self._gap(before, word) for before, word in zip((None, *words), words, strict=False)]
        first = level * INDENT
        breaks = Breaks(words, gaps, self._marks, width)
        for begin, end, start, under in breaks.lines(first, first + (2 if header else 1) * INDENT):
            head = words[begin]
            self.comments(head.lead, start, under, level)
            cells = [
                Cell(word, gap if i else 0, self._anchors.get(word.start) if under is None else None)
                for i, (word, gap) in enumerate(zip(words[begin:end], gaps[begin:end], strict=True))
            ]
            blank = begin == 0 and head.blank and not self._top
            self.lines.append(Line(tuple(cells), start, under, None, blank, level, kind))
            self._top = False
            trail = words[end - 1].trail
            self._hang = None if trail is None else trail.column

    def _length(self, words: Sequence[Word]) -> int:
        pairs = zip((None, *words), words, strict=False)
        return sum(len(word.text) + self._gap(before, word) for before, word in pairs)

    def _gap(self, before: Word | None, word: Word) -> int:
        """The least distance of two words on a line."""
        if before is None or (before.text == "{" and word.text == "}"):
            return 0
        if word.start in self._wide and before.text != "{":
            return self._wide[word.start]
        if before.text in ("(", "[", ".", "..") or word.text in (")", "]", ",", "?", ".", "..", ":"):
            return 0
        if before.start in self._marks.signs or before.start in self._marks.slices:
            return 0
        if word.text in ("(", "["):
            return int(not self._tight(before))
        return 2 if word.start in self._marks.attrs and before.text != "{" else 1

    def _tight(self, before: Word) -> bool:
        """Whether a bracket that follows a word belongs to it."""
        if before.kind != "word":
            return before.text in (")", "]")
        if before.text in machine().reserved:
            return False
        return before.text not in _CLAUSES or before.end in self._marks.owners


def _must_spread(block: Block) -> bool:
    """Whether a block cannot stay on one line, however short it is."""
    if block.spread or (len(block.items) > 1 and not block.kind) or block.open.trail or block.close.lead:
        return True
    for item in block.items:
        for part in item.parts:
            if isinstance(part, Word):
                if part.lead or part.trail:
                    return True
            elif part.open.lead or part.close.trail or _must_spread(part):
                return True
    return False


def _allows(item: Item) -> bool:
    """Whether a comment allows a finding on the item's line: then it stays one line, as far as that can be."""
    words = [part for part in item.parts if isinstance(part, Word)]
    words += [word for part in item.parts if isinstance(part, Block) for word in (part.open, part.close)]
    comments = [*item.first.lead, *(word.trail for word in words if word.trail is not None)]
    return any(_ALLOW.match(comment.text) for comment in comments)


def _outer(item: Item) -> Iterator[Word]:
    """The words of an item that stand in no brackets, and the `{` of its blocks and attributes."""
    inside = 0
    for part in item.parts:
        word = part if isinstance(part, Word) else part.open
        if not inside:
            yield word
        if isinstance(part, Word):
            inside += (word.text in ("(", "[", "{")) - (word.text in (")", "]", "}"))
