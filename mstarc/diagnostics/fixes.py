"""Applies the fixes of findings to texts. Takes findings and sources; gives new texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mstarc.diagnostics.core import Diagnostic, Fix
from mstarc.source import SourceFile, Span


def safe_fixes(findings: Iterable[Diagnostic]) -> list[Fix]:
    """The fixes that change no meaning, in order, without those that overlap an earlier one."""
    taken: list[Span] = []
    chosen = []
    for fix in (d.fix for d in findings if d.fix is not None and d.fix.safety == "safe"):
        spans = [span for span, _ in fix.edits]
        if any(a.file == b.file and a.start < b.end and b.start < a.end for a in spans for b in taken):
            continue
        taken += spans
        chosen.append(fix)
    return chosen


def fixed(fixes: Iterable[Fix], sources: Mapping[str, SourceFile]) -> dict[str, str]:
    """The texts of the files that fixes change, by path. Edits are byte ranges of the sources and do not overlap."""
    edits: dict[str, list[tuple[Span, str]]] = {}
    for fix in fixes:
        for span, text in fix.edits:
            edits.setdefault(span.file, []).append((span, text))
    texts = {}
    for file, changes in edits.items():
        data = sources[file].text.encode()
        for span, text in sorted(changes, key=lambda change: change[0].start, reverse=True):
            data = data[: span.start] + text.encode() + data[span.end :]
        texts[file] = data.decode()
    return texts
