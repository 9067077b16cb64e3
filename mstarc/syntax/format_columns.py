"""Which column each word stands in. Takes lines; gives the text.

Words are one space apart, or as far as their place in the grammar says, but for columns that the author made. A column was made
where the same part of neighbouring lines stands in it with a wider gap before one of them, or of any two lines with a wider gap
before both. It is kept, or moved to the right if one of the lines needs it; and if half the lines of one kind stand in it, the
others come to it if they fit. Comments that share a column anywhere in the file keep it; others go to the most common of these
columns, or stand two spaces after the code.

Columns are found again in the result until nothing changes, so that a second run changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mstarc.syntax.format_lines import Line
from mstarc.syntax.format_tree import Comment

_ROUNDS = 30
_BEFORE_COMMENT = 2


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a word stands or stood: its column, and how far from what is before it. None: it stood on another line."""

    column: int | None
    space: int


@dataclass(frozen=True, slots=True)
class _Member:
    """A word that may be aligned: line, place in it, and whether it stands further off than it must."""

    line: int
    at: int
    column: int | None
    wide: bool


def render(lines: Sequence[Line], width: int) -> str:
    """The text of the lines."""
    placed = _Columns(lines, width).placed()
    comments = _comment_columns(lines, placed)
    text = []
    for line, spots, comment in zip(lines, placed, comments, strict=True):
        written = ""
        for cell, column in zip(line.cells, spots, strict=True):
            written = written.ljust(column) + cell.word.text
        found = _comment(line)
        if found is not None:
            written = written.ljust(comment) + found.text
        text += ["", written] if line.blank else [written]
    return "\n".join(text) + "\n"


class _Columns:
    def __init__(self, lines: Sequence[Line], width: int) -> None:
        self._lines = lines
        self._width = width
        self._groups = list(_groups(lines))

    def placed(self) -> list[list[int]]:
        """The column of each word of each line."""
        natural = self._place({})
        spots = [[self._first_spot(line, i) for i in range(len(line.cells))] for line in self._lines]
        columns = natural
        for _ in range(_ROUNDS):
            found = self._place(self._targets(spots, natural))
            spots = [self._spots(line, row) for line, row in zip(self._lines, found, strict=True)]
            if found == columns:
                return found
            columns = found
        return natural

    def _first_spot(self, line: Line, at: int) -> _Spot:
        """Where a word stood in the source."""
        word = line.cells[at].word
        if at == 0:
            return _Spot(word.column, word.column - line.start) if word.fresh else _Spot(None, 0)
        return _Spot(None, 0) if word.fresh else _Spot(word.column, word.space)

    def _spots(self, line: Line, columns: Sequence[int]) -> list[_Spot]:
        """Where the words of a line have been put."""
        end = line.start
        spots = []
        for cell, column in zip(line.cells, columns, strict=True):
            spots.append(_Spot(column, column - end))
            end = column + len(cell.word.text)
        return spots

    def _place(self, targets: dict[tuple[int, int], int]) -> list[list[int]]:
        """The column of each word, if those in `targets` stand no further left than it says."""
        found: list[list[int]] = []
        stands: dict[int, int] = {}
        for number, line in enumerate(self._lines):
            column = line.start if line.under is None else stands[line.under]
            row = []
            for at, cell in enumerate(line.cells):
                column = max(column + cell.gap, targets.get((number, at), 0))
                row.append(column)
                stands[cell.word.start] = column
                column += len(cell.word.text)
            found.append(row)
        return found

    # ------------------------------------------------------------------------------------------------------- aligning

    def _targets(self, spots: list[list[_Spot]], natural: list[list[int]]) -> dict[tuple[int, int], int]:
        """(line, place) -> column, for the words that are aligned."""
        targets: dict[tuple[int, int], int] = {}
        shared = self._shared(spots)
        for group in self._groups:
            moved = dict.fromkeys(group, 0)  # how far each line has been moved so far
            for anchor in sorted({cell.anchor for n in group for cell in self._lines[n].cells if cell.anchor}):
                members = list(self._members(group, anchor, spots))
                for bunch in self._bunches(members):
                    columns = {m.column for m in bunch if m.wide and m.column is not None}
                    meant = _meant(bunch) | {column for column in columns if (anchor, column) in shared}
                    for member, column in self._aligned(bunch, meant, natural, moved):
                        targets[member.line, member.at] = column
                        moved[member.line] = column - natural[member.line][member.at]
        return targets

    def _shared(self, spots: list[list[_Spot]]) -> set[tuple[tuple[int, str], int]]:
        """Columns in which like words of at least two lines of the file stand, further off than they must."""
        count: Counter[tuple[tuple[int, str], int]] = Counter()
        for line, row in zip(self._lines, spots, strict=True):
            for cell, spot in zip(line.cells, row, strict=True):
                if (
                    line.kind != "entry"
                    and cell.anchor is not None
                    and spot.column is not None
                    and spot.space > cell.gap
                ):
                    count[cell.anchor, spot.column] += 1
        return {place for place, lines in count.items() if lines > 1}

    def _members(self, group: Sequence[int], anchor: tuple[int, str], spots: list[list[_Spot]]) -> Iterator[_Member]:
        for number in group:
            for at, cell in enumerate(self._lines[number].cells):
                if cell.anchor == anchor:
                    spot = spots[number][at]
                    yield _Member(number, at, spot.column, spot.column is not None and spot.space > cell.gap)

    def _bunches(self, members: Sequence[_Member]) -> Iterator[list[_Member]]:
        """Members that belong in one column."""
        joined = list(range(len(members)))

        def join(a: int, b: int) -> None:
            old, new = joined[b], joined[a]
            joined[:] = [new if x == old else x for x in joined]

        for i in range(1, len(members)):
            if members[i].column is not None and members[i].column == members[i - 1].column:
                join(i - 1, i)
        kinds: dict[str, list[int]] = {}
        for i, member in enumerate(members):
            kinds.setdefault(self._lines[member.line].kind, []).append(i)
        for kind, places in kinds.items():
            if kind != "stmt" and _most([members[i] for i in places]):
                for i in places[1:]:
                    join(places[0], i)
        for root in sorted(set(joined)):
            yield [member for member, at in zip(members, joined, strict=True) if at == root]

    def _aligned(
        self, bunch: list[_Member], meant: set[int], natural: list[list[int]], moved: dict[int, int]
    ) -> Iterator[tuple[_Member, int]]:
        """The members with their column, if one was meant, without those whose line it would make too long."""
        left = list(bunch) if meant else []
        while left:
            column = max(*meant, *(natural[m.line][m.at] + moved[m.line] for m in left))
            fit = [m for m in left if column + self._rest(m.line, m.at, natural) <= self._width]
            if len(fit) == len(left):
                yield from ((m, column) for m in left)
                return
            left = fit

    def _rest(self, number: int, at: int, natural: list[list[int]]) -> int:
        """The least length of a line from one of its words on."""
        row, cells = natural[number], self._lines[number].cells
        return row[-1] + len(cells[-1].word.text) - row[at]


def _meant(members: Sequence[_Member]) -> set[int]:
    """The columns in which at least two of them stand, one further off than it must."""
    found: dict[int, list[_Member]] = {}
    for member in members:
        if member.column is not None:
            found.setdefault(member.column, []).append(member)
    return {column for column, here in found.items() if len(here) > 1 and any(m.wide for m in here)}


def _most(members: Sequence[_Member]) -> bool:
    """Whether one column is meant, and half of them or more stand in it."""
    meant = _meant(members)
    return len(meant) == 1 and 2 * sum(member.column in meant for member in members) >= len(members)


def _groups(lines: Sequence[Line]) -> Iterator[list[int]]:
    """Runs of lines of one depth with no empty line between them. Comments on lines of their own do not end a run."""
    group: list[int] = []
    for number, line in enumerate(lines):
        if group and (line.blank or (line.cells and line.level != lines[group[-1]].level)):
            yield group
            group = []
        if line.cells:
            group.append(number)
    if group:
        yield group


# ------------------------------------------------------------------------------------------------------------ comments


def _comment(line: Line) -> Comment | None:
    return line.cells[-1].word.trail if line.cells else line.comment


def _comment_columns(lines: Sequence[Line], placed: Sequence[Sequence[int]]) -> list[int]:
    """The column of the comment of each line; 0 where there is none."""
    least = {}
    columns = {}
    for number, (line, row) in enumerate(zip(lines, placed, strict=True)):
        comment = _comment(line)
        if line.cells and comment is not None:
            least[number] = row[-1] + len(line.cells[-1].word.text) + _BEFORE_COMMENT
            columns[number] = comment.column
    columns = _settled(columns, least)
    stands: dict[int, int] = {}
    for line, row in zip(lines, placed, strict=True):
        stands |= {cell.word.start: column for cell, column in zip(line.cells, row, strict=True)}
    result: list[int] = []
    for number, line in enumerate(lines):
        if line.hangs:
            result.append(result[-1])
        elif not line.cells:
            result.append(line.start if line.under is None else stands[line.under])
        else:
            result.append(columns.get(number, 0))
    return result


def _settled(columns: dict[int, int], least: dict[int, int]) -> dict[int, int]:
    """Columns that shared ones attract, found again until nothing changes. `least`: how far left each can be."""
    for _ in range(_ROUNDS):
        count = Counter(columns.values())
        shared = [column for column, lines in count.items() if lines > 1]
        common = max(shared, key=lambda column: (count[column], -column), default=0)
        found = {}
        for line, column in columns.items():
            wanted = column if count[column] > 1 else common
            found[line] = max(wanted, least[line])
        if found == columns:
            return found
        columns = found
    return least
