"""Findings as text for a person: a frame of the source with labels. Takes findings and their sources; gives a string.

Columns count characters; a tab is shown as four spaces; wide characters take two cells. Colour is ANSI and only when asked for.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from mstarc.diagnostics.core import Diagnostic, Label
from mstarc.diagnostics.rules import rule_state
from mstarc.source import SourceFile

Sources = Mapping[str, SourceFile]
_STYLES = {"error": "1;31", "warning": "1;33", "info": "1;36", "frame": "1;34", "bold": "1", "help": "1;32"}
_WIDE = 200  # characters of a line that are shown, around its first label if it is longer
_BEFORE = 40  # of these, before that label


@dataclass(frozen=True, slots=True)
class _Mark:
    """One underline within one line, in cells from 0. at: the character that it begins at."""

    line: int
    at: int
    start: int
    stop: int
    text: str
    primary: bool


class _Pen:
    """Wraps text in a style, or leaves it alone."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, style: str, text: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._colour and text else text


def render_all(findings: Iterable[Diagnostic], sources: Sources, colour: bool = False) -> str:
    """All findings, one blank line after each, and a line that counts them. Empty if there are none."""
    found = list(findings)
    if not found:
        return ""
    return "\n".join(render(d, sources, colour) for d in found) + "\n" + count(found) + "\n"


def count(findings: Iterable[Diagnostic]) -> str:
    """`2 errors, 1 warning`."""
    severities = [d.rule.severity for d in findings]
    parts = []
    for severity in ("error", "warning", "info"):
        number = severities.count(severity)
        if number:
            plural = "" if number == 1 or severity == "info" else "s"
            parts.append(f"{number} {severity}{plural}")
    return ", ".join(parts) or "no findings"


def render(diagnostic: Diagnostic, sources: Sources, colour: bool = False) -> str:
    """One finding, ending in a newline."""
    pen = _Pen(colour)
    rule = diagnostic.rule
    lines = [pen(rule.severity, f"{rule.severity}[{rule.code}]") + pen("bold", f": {diagnostic.message}")]
    labels = (diagnostic.primary, *diagnostic.secondary)
    width = _gutter(labels, sources)
    for position, file in enumerate(_files(labels)):
        lines += _file_part(file, labels, sources, width, pen, first=position == 0)
    lines += _foot(diagnostic, width, pen)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _foot(diagnostic: Diagnostic, width: int, pen: _Pen) -> list[str]:
    """Notes, help, the fix's title and where to read more."""
    rows = [("note", note) for note in diagnostic.notes]
    if diagnostic.help:
        rows.append(("help", diagnostic.help))
    if diagnostic.fix:
        rows.append(("fix", f"{diagnostic.fix.title} ({diagnostic.fix.safety})"))
    if rule_state(diagnostic.rule.code) in ("checked", "link", "weights"):
        rows.append(("see", f" mstarc explain {diagnostic.rule.code}"))
    indent = " " * width
    out = []
    for kind, text in rows:
        first, *rest = text.split("\n")
        out.append(f"{indent} {pen('frame', '=')} {pen('bold', kind)}: {first}")
        out += [f"{indent}   {' ' * len(kind)}  {line}" for line in rest]
    return out


def _files(labels: tuple[Label, ...]) -> list[str]:
    """Files of the labels, the primary's first, without labels that are nowhere."""
    return list(dict.fromkeys(label.span.file for label in labels if label.span.file))


def _gutter(labels: tuple[Label, ...], sources: Sources) -> int:
    """Digits of the largest line number shown."""
    numbers = [sources[label.span.file].line_of(label.span.start) for label in labels if label.span.file in sources]
    return len(str(max(numbers, default=1)))


def _file_part(file: str, labels: tuple[Label, ...], sources: Sources, width: int, pen: _Pen, first: bool) -> list[str]:
    """`--> file:line:col` and the lines of one file with their labels."""
    here = [label for label in labels if label.span.file == file]
    arrow = pen("frame", "-->" if first else ":::")
    source = sources.get(file)
    if source is None:
        return [f"{' ' * width}{arrow} {file}"]
    line, column = source.line_column(here[0].span.start)
    bar = f"{' ' * width} {pen('frame', '|')}"
    out = [f"{' ' * width}{arrow} {file}:{line}:{column}", bar]
    marks = [_mark(label, source, label is labels[0]) for label in here]
    shown = sorted({mark.line for mark in marks})
    for position, number in enumerate(shown):
        if position and number == shown[position - 1] + 2:
            out.append(_source_line(number - 1, _part(source.line_text(number - 1), 0), width, pen))
        elif position and number > shown[position - 1] + 2:
            out.append(pen("frame", "..."))
        text, here_marks = source.line_text(number), [m for m in marks if m.line == number]
        start = max(0, min(m.at for m in here_marks) - _BEFORE) if len(text) > _WIDE else 0
        out.append(_source_line(number, _part(text, start), width, pen))
        out += [f"{bar} {row}" for row in _underlines(_moved(here_marks, text, start), pen)]
    out.append(bar)
    return out


def _source_line(number: int, text: str, width: int, pen: _Pen) -> str:
    return f"{pen('frame', f'{number:>{width}} |')} {_shown(text)}"


def _part(text: str, start: int) -> str:
    """What is shown of a line, from a character on."""
    return ("…" if start else "") + text[start : start + _WIDE] + ("…" if start + _WIDE < len(text) else "")


def _moved(marks: list[_Mark], text: str, start: int) -> list[_Mark]:
    """The marks as they stand under the part of a line that is shown."""
    if len(text) <= _WIDE:
        return marks
    left, end = (_cells(text[:start]) - 1 if start else 0), _cells(_part(text, start))
    starts = [min(mark.start - left, end - 1) for mark in marks]
    return [
        replace(m, start=at, stop=max(at + 1, min(m.stop - left, end))) for m, at in zip(marks, starts, strict=True)
    ]


def _shown(text: str) -> str:
    """A line of a file with tabs as spaces; control characters become one visible cell, so that none reaches a terminal."""
    return "".join("    " if c == "\t" else "\ufffd" if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)


def _mark(label: Label, source: SourceFile, primary: bool) -> _Mark:
    """The underline of a label, cut at the end of its first line; at least one cell."""
    line, column = source.line_column(label.span.start)
    text = source.line_text(line)
    end_line, end_column = source.line_column(max(label.span.start, label.span.end))
    stop = end_column - 1 if end_line == line else len(text)
    start = _cells(text[: column - 1])
    return _Mark(line, column - 1, start, max(start + 1, _cells(text[:stop])), label.text, primary)


def _cells(text: str) -> int:
    """Terminal cells that a text takes."""
    total = 0
    for char in text:
        if char == "\t":
            total += 4
        elif not unicodedata.combining(char):
            total += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return total


def _underlines(marks: list[_Mark], pen: _Pen) -> list[str]:
    """The rows under one source line: underlines with the last label beside them, then the other labels, right to left."""
    marks = sorted(marks, key=lambda m: (m.start, m.primary))
    cells: dict[int, str] = {}
    for mark in sorted(marks, key=lambda m: m.primary):
        for cell in range(mark.start, mark.stop):
            cells[cell] = _styled("^" if mark.primary else "-", mark, pen)
    last = marks[-1]
    beside = f" {_styled(last.text, last, pen)}" if last.text and last.stop > max(cells) else ""
    rows = [_row(cells) + beside]
    waiting = [m for m in marks if m.text and not (m is last and beside)]
    while waiting:
        mark = waiting.pop()
        bars = {m.start: _styled("|", m, pen) for m in waiting if m.start < mark.start}
        rows.append(_row(bars) + " " * (mark.start - max(bars, default=-1) - 1) + _styled(mark.text, mark, pen))
    return rows


def _styled(text: str, mark: _Mark, pen: _Pen) -> str:
    return pen("error" if mark.primary else "frame", text)


def _row(cells: Mapping[int, str]) -> str:
    return "".join(cells.get(cell, " ") for cell in range(max(cells, default=-1) + 1))
