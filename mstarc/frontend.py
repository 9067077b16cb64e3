"""From a file to IR: reads, parses and lowers. Nothing here raises for what a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.passes.lower import lower
from mstarc.passes.lower.known import Given
from mstarc.source import SourceFile, Span
from mstarc.syntax.parser import parse_walk


def load(path: str | Path) -> tuple[Program | None, Collector, SourceFile]:
    """The program of a `.walk` file (None after an error), what was found, and the source for rendering it."""
    name = str(path)
    report = Collector()
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except OSError as error:
        source = SourceFile(name, "")
        report.report(rules.MC012, f"{name} cannot be read: {error.strerror or error}", Span(name, 0, 0))
        return None, report, source
    except UnicodeDecodeError as error:
        source = SourceFile(name, "")
        report.report(rules.MC012, f"{name} is not UTF-8 text: byte {error.start} cannot be decoded", Span(name, 0, 0))
        return None, report, source
    return load_text(name, text)


def load_text(
    name: str, text: str, given: Mapping[str, Given] | None = None
) -> tuple[Program | None, Collector, SourceFile]:
    """The same for a text at hand; `name` stands for it in messages. given: values of configs, by path, to compare dims with."""
    report = Collector()
    source = SourceFile(name, text)
    model = parse_walk(source, report)
    if model is None:
        return None, report, source
    return lower(model, report, given), report, source
