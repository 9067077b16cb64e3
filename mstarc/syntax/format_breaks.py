"""Where a line that is too long is broken. Takes the words of one line and their distances; gives the lines that it becomes.

A break is chosen as far out of brackets as can be: before a clause, else after a comma, else at an operator. What goes on in a
bracket stands under the first word in it; all else is indented.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstarc.syntax.format_tree import Marks, Word

WORDS_OF_STREAMS = ("where", "by", "at_end", "after_end", "overlap", "capacity")
_BEFORE = frozenset(("->", "when", "carry", "writes", "reads", "as", *WORDS_OF_STREAMS))
_OPERATORS = frozenset(("+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "|"))
_NEVER_BEFORE = frozenset((")", "]", "}", ",", "?", ".", "..", ":", "{"))
_NEVER_AFTER = frozenset((".", "..", "}", "->"))


class Breaks:
    """`gaps[i]`: the distance of word i from the one before it. `width`: columns of a line."""

    def __init__(self, words: Sequence[Word], gaps: Sequence[int], marks: Marks, width: int) -> None:
        self._words = words
        self._gaps = gaps
        self._marks = marks
        self._width = width
        self._around = _around(words)  # by word: the brackets around it, as places of words
        self._columns = [0] * len(words)

    def lines(self, first: int, later: int) -> Iterator[tuple[int, int, int, int | None]]:
        """(first word, end, column, offset of the word that it stands under or None) of each line."""
        begin = 0
        while begin < len(self._words):
            start, under = (first, None) if begin == 0 else self._indented(begin, later)
            end = self._end(begin, start)
            yield begin, end, start, under
            begin = end

    def _indented(self, at: int, later: int) -> tuple[int, int | None]:
        """Where a later line begins."""
        if not self._around[at]:
            return later, None
        inner = self._around[at][-1] + 1
        column = self._columns[inner]
        if inner == at or column > max(later, self._width // 2):
            return later, None
        return column, self._words[inner].start

    def _end(self, begin: int, start: int) -> int:
        """The end of the line that begins so. Comments end a line; so does the width, at the best place before it."""
        column = start
        for at in range(begin, len(self._words)):
            word = self._words[at]
            if at > begin:
                if word.lead or self._words[at - 1].trail:
                    return at
                column += self._gaps[at]
            self._columns[at] = column
            column += len(word.text)
            if column > self._width:
                places = [(rank, -i) for i in range(begin + 1, at + 1) if (rank := self._rank(i)) is not None]
                if places:
                    return -min(places)[1]
        return len(self._words)

    def _rank(self, at: int) -> int | None:
        """How bad a break before a word is; None: there must be none."""
        word, before = self._words[at], self._words[at - 1]
        attributes = word.text == "{" and at + 1 < len(self._words) and self._words[at + 1].start in self._marks.attrs
        depth = 10 * len(self._around[at])
        if word.text in _BEFORE or attributes:
            return depth - (word.text == "by")
        if word.text in _NEVER_BEFORE or before.text in _NEVER_AFTER or before.start in self._marks.signs:
            return None
        if before.text == "," and not depth and not any(w.text in _BEFORE for w in self._words[:at]):
            return depth + 30  # in a list of names at the beginning
        if before.text == "," or word.start in self._marks.attrs:
            return depth + 1
        if word.text in ("and", "or", "then", "else"):
            return depth + 2
        if word.text in _OPERATORS and word.start not in self._marks.signs:
            return depth + 3
        if before.text in ("=", "{"):
            return depth + 25
        if before.text in ("(", "["):
            return depth + 5
        return depth + 60 if self._gaps[at] and before.text not in _BEFORE else None


def _around(words: Sequence[Word]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    open_now: tuple[int, ...] = ()
    for at, word in enumerate(words):
        if word.kind == "mark" and word.text in (")", "]", "}") and open_now:
            open_now = open_now[:-1]
        found.append(open_now)
        if word.kind == "mark" and word.text in ("(", "[", "{"):
            open_now = (*open_now, at)
    return found
