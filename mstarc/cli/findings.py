"""Findings on the way to a person or a tool: which stream, which format, colour or not. Takes findings; writes them.

Findings go to standard error and the product to standard output. For `check` in a machine format, the findings are the product.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, TextIO, TypeAlias

from mstarc.checked import Checked
from mstarc.diagnostics.core import Diagnostic
from mstarc.diagnostics.text import render_all
from mstarc.source import SourceFile

Format: TypeAlias = Literal["text", "json", "sarif", "github"]
FORMATS: tuple[Format, ...] = ("text", "json", "sarif", "github")
_OF_DIFFS = {"+": "32", "-": "31", "@": "36"}


def colours(stream: TextIO) -> bool:
    """Whether to write colour: on a terminal, unless NO_COLOR is set to anything or the terminal is dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_findings(
    findings: Iterable[Diagnostic], sources: Mapping[str, SourceFile] | None = None, format: Format = "text"
) -> None:
    """Text to standard error, machine formats to standard output. Sources that are missing are read from disk."""
    found = tuple(findings)
    known = {**sources_of(found), **(sources or {})}
    if format == "text":
        sys.stderr.write(render_all(found, known, colours(sys.stderr)))
        sys.stderr.flush()
        return
    from mstarc.diagnostics import machine

    render = {"json": machine.to_json, "sarif": machine.to_sarif, "github": machine.to_github}[format]
    sys.stdout.write(render(found, known))


def write_checked(checked: Checked, format: Format = "text") -> None:
    """What a check found; for each fault of the compiler, what reproduces it."""
    write_findings(checked.findings, checked.sources, format)
    for fault in checked.faults:
        from mstarc.cli.crash import tell_fault

        tell_fault(fault)


def painted_diff(diff: str) -> str:
    """A unified diff on its way to standard output, in colour if that shows it."""
    if not colours(sys.stdout):
        return diff
    lines = diff.split("\n")
    return "\n".join(f"\x1b[{_OF_DIFFS[line[0]]}m{line}\x1b[0m" if line[:1] in _OF_DIFFS else line for line in lines)


def sources_of(findings: Iterable[Diagnostic]) -> dict[str, SourceFile]:
    """The files that the findings point into, as far as they can be read."""
    names = {label.span.file for d in findings for label in (d.primary, *d.secondary)}
    sources = {}
    for name in sorted(names - {""}):
        try:
            with open(name, encoding="utf-8", newline="") as file:
                sources[name] = SourceFile(name, file.read())
        except (OSError, ValueError):
            continue
    return sources
