"""Findings for machines: JSON, SARIF 2.1.0 and GitHub annotations. Takes findings and their sources; gives a string.

JSON carries byte offsets, and lines and columns in characters from 1, and the text form as `rendered`; readers tolerate new
fields. SARIF columns are UTF-16 code units, as its `columnKind` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

from mstarc import __version__
from mstarc.diagnostics.core import Diagnostic, Label
from mstarc.diagnostics.rules import RULES, rule_state
from mstarc.diagnostics.text import Sources, render
from mstarc.source import Span

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_GITHUB = {"error": "error", "warning": "warning", "info": "notice"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def to_json(findings: Iterable[Diagnostic], sources: Sources, lines: bool = False) -> str:
    """One document `{"version", "findings"}`, or with `lines` one object a line."""
    rows = [_finding(d, sources) for d in findings]
    if lines:
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return json.dumps({"version": 1, "findings": rows}, ensure_ascii=False, indent=2) + "\n"


def _finding(diagnostic: Diagnostic, sources: Sources) -> dict[str, Any]:
    rule = diagnostic.rule
    spans = [_label(diagnostic.primary, sources, primary=True)]
    spans += [_label(label, sources, primary=False) for label in diagnostic.secondary]
    return {
        "code": rule.code,
        "name": rule.name,
        "level": rule.severity,
        "message": diagnostic.message,
        "spans": spans,
        "notes": list(diagnostic.notes),
        "help": diagnostic.help,
        "fix": _fix(diagnostic, sources),
        "rendered": render(diagnostic, sources),
    }


def _label(label: Label, sources: Sources, primary: bool) -> dict[str, Any]:
    return {"label": label.text, "is_primary": primary, **_place(label.span, sources)}


def _place(span: Span, sources: Sources) -> dict[str, Any]:
    place: dict[str, Any] = {"file": span.file, "byte_start": span.start, "byte_end": span.end}
    source = sources.get(span.file)
    if source is not None:
        place["line_start"], place["column_start"] = source.line_column(span.start)
        place["line_end"], place["column_end"] = source.line_column(span.end)
    return place


def _fix(diagnostic: Diagnostic, sources: Sources) -> dict[str, Any] | None:
    fix = diagnostic.fix
    if fix is None:
        return None
    edits = [{**_place(span, sources), "text": text} for span, text in fix.edits]
    return {"title": fix.title, "safety": fix.safety, "edits": edits}


# --------------------------------------------------------------------------------------------------------------- SARIF


def to_sarif(findings: Iterable[Diagnostic], sources: Sources) -> str:
    """One SARIF 2.1.0 log with one run; the driver lists every rule that something may report."""
    codes = [code for code in RULES if rule_state(code) != "reserved"]
    run = {
        "tool": {"driver": {"name": "mstarc", "version": __version__, "rules": [_rule(code) for code in codes]}},
        "columnKind": "utf16CodeUnits",
        "results": [_result(d, sources, codes) for d in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2) + "\n"


def _rule(code: str) -> dict[str, Any]:
    rule = RULES[code]
    page = explain_page(code) or rule.summary
    return {
        "id": code,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "help": {"text": rule.summary, "markdown": page},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(diagnostic: Diagnostic, sources: Sources, codes: Sequence[str]) -> dict[str, Any]:
    rule = diagnostic.rule
    text = "\n".join([diagnostic.message, *diagnostic.notes, *([diagnostic.help] if diagnostic.help else [])])
    key = "\0".join((rule.code, diagnostic.primary.span.file, diagnostic.subject, diagnostic.message))
    result: dict[str, Any] = {
        "ruleId": rule.code,
        "level": _LEVELS[rule.severity],
        "message": {"text": text},
        "partialFingerprints": {"mstarc/v1": sha256(key.encode()).hexdigest()},
    }
    if rule.code in codes:
        result["ruleIndex"] = codes.index(rule.code)
    if diagnostic.primary.span.file:
        result["locations"] = [_location(diagnostic.primary, sources)]
    if diagnostic.secondary:
        result["relatedLocations"] = [{"id": i, **_location(x, sources)} for i, x in enumerate(diagnostic.secondary)]
    if diagnostic.fix is not None:
        result["fixes"] = [_sarif_fix(diagnostic, sources)]
    return result


def _location(label: Label, sources: Sources) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": label.span.file.replace("\\", "/")}}
    region = _region(label.span, sources)
    if region is not None:
        physical["region"] = region
    location: dict[str, Any] = {"physicalLocation": physical}
    if label.text:
        location["message"] = {"text": label.text}
    return location


def _region(span: Span, sources: Sources) -> dict[str, int] | None:
    source = sources.get(span.file)
    if source is None:
        return None
    region = {}
    for prefix, offset in (("start", span.start), ("end", span.end)):
        line, column = source.line_column(offset)
        before = source.line_text(line)[: column - 1]
        region[f"{prefix}Line"] = line
        region[f"{prefix}Column"] = len(before.encode("utf-16-le")) // 2 + 1
    return region


def _sarif_fix(diagnostic: Diagnostic, sources: Sources) -> dict[str, Any]:
    assert diagnostic.fix is not None
    changes = [
        {
            "artifactLocation": {"uri": span.file.replace("\\", "/")},
            "replacements": [{"deletedRegion": _region(span, sources), "insertedContent": {"text": text}}],
        }
        for span, text in diagnostic.fix.edits
    ]
    return {"description": {"text": diagnostic.fix.title}, "artifactChanges": changes}


# -------------------------------------------------------------------------------------------------------------- GitHub


def to_github(findings: Iterable[Diagnostic], sources: Sources) -> str:
    """One workflow command a finding."""
    return "".join(_annotation(d, sources) + "\n" for d in findings)


def _annotation(diagnostic: Diagnostic, sources: Sources) -> str:
    rule = diagnostic.rule
    span = diagnostic.primary.span
    properties = {"title": f"{rule.code} {rule.name}"}
    if span.file:
        properties["file"] = span.file
        source = sources.get(span.file)
        if source is not None:
            line, column = source.line_column(span.start)
            properties |= {"line": str(line), "col": str(column), "endLine": str(source.line_of(span.end))}
    listed = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    text = "\n".join([diagnostic.message, *diagnostic.notes, *([diagnostic.help] if diagnostic.help else [])])
    return f"::{_GITHUB[rule.severity]} {listed}::{_escape(text)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


# ------------------------------------------------------------------------------------------------------- explain pages


def explain_page(code: str) -> str | None:
    """The Markdown page of a rule, or None if it has none."""
    page = files("mstarc.diagnostics").joinpath("explain", f"{code}.md")
    return page.read_text(encoding="utf-8") if page.is_file() else None
