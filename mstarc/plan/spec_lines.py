"""Lines of the spec that a plan was made from, for labels of findings. Takes a plan and where its spec should be; gives spans."""

from __future__ import annotations

import re
from pathlib import Path

from mstarc.plan.model import Plan, sha256_of
from mstarc.plan.placement import line_span
from mstarc.source import SourceFile, Span


def spec_source(plan: Plan, spec: Path) -> SourceFile | None:
    """The spec, if it is there and is still what the package was made from."""
    binding = spec.with_suffix(".yaml")
    try:
        text = spec.read_text(encoding="utf-8")
        beside = binding.read_text(encoding="utf-8") if binding.is_file() else ""
    except (OSError, ValueError):
        return None
    return SourceFile(str(spec), text) if plan.spec.digest == sha256_of(text, beside) else None


def trimmed(source: SourceFile, line: int) -> Span:
    """A line, from 1, without the space before it."""
    whole, text = line_span(source, line), source.line_text(line)
    return Span(whole.file, whole.start + len(text) - len(text.lstrip()), whole.end)


def declared(plan: Plan, spec: Path, word: str, name: str) -> Span:
    """The line that declares a name (`context main, draft on kv`), or the beginning of the spec if it is another by now."""
    source = spec_source(plan, spec)
    found = source and re.search(rf"^[ \t]*{word}\b[^#\n]*\b{name}\b", source.text, re.M)
    if source is None or not found:
        return Span(str(spec), 0, 0)
    return trimmed(source, source.text.count("\n", 0, found.end()) + 1)
