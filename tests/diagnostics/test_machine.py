"""JSON, SARIF and GitHub forms: places in each one's own units, stable fingerprints, escaped text."""

from __future__ import annotations

import json

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Diagnostic, Fix, Label
from mstarc.diagnostics.machine import to_github, to_json, to_sarif
from mstarc.diagnostics.text import render
from mstarc.source import SourceFile, Span

TEXT = "model m\né = 𝄞 + x, 1%\n"
SOURCE = SourceFile("specs/m.walk", TEXT)
SOURCES = {SOURCE.path: SOURCE}
START = len(TEXT[: TEXT.index("x")].encode())
FINDING = Diagnostic(
    rules.MC002,
    "`x` is unknown: 100%\nof it",
    Label(Span(SOURCE.path, START, START + 1), "here"),
    (Label(Span(SOURCE.path, 0, 5), "in this model"),),
    ("a note",),
    "did you mean `y`?",
    Fix("write `y`", ((Span(SOURCE.path, START, START + 1), "y"),), "unsafe"),
    "x",
)


def test_json_has_bytes_and_characters_and_the_text_form() -> None:
    document = json.loads(to_json([FINDING], SOURCES))
    (row,) = document["findings"]
    assert (row["code"], row["name"], row["level"]) == ("MC002", "unknown-name", "error")
    assert row["rendered"] == render(FINDING, SOURCES)
    primary, secondary = row["spans"]
    assert primary["is_primary"] and not secondary["is_primary"]
    assert (primary["byte_start"], primary["line_start"], primary["column_start"], primary["column_end"]) == (
        START,
        2,
        9,
        10,
    )
    assert row["fix"]["edits"][0]["text"] == "y" and row["fix"]["safety"] == "unsafe"
    (line,) = to_json([FINDING], SOURCES, lines=True).splitlines()
    assert json.loads(line) == row


def test_sarif() -> None:
    log = json.loads(to_sarif([FINDING], SOURCES))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    listed = run["tool"]["driver"]["rules"]
    (result,) = run["results"]
    assert listed[result["ruleIndex"]]["id"] == result["ruleId"] == "MC002"
    assert "## Fails" in listed[result["ruleIndex"]]["help"]["markdown"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "specs/m.walk"
    assert place["region"] == {"startLine": 2, "startColumn": 10, "endLine": 2, "endColumn": 11}  # 𝄞 is two units
    assert result["relatedLocations"][0]["message"]["text"] == "in this model"
    change = result["fixes"][0]["artifactChanges"][0]["replacements"][0]
    assert change["insertedContent"]["text"] == "y" and change["deletedRegion"]["startColumn"] == 10


def test_a_fingerprint_survives_a_moved_line() -> None:
    moved = SourceFile(SOURCE.path, "\n\n" + TEXT)
    later = Diagnostic(
        FINDING.rule, FINDING.message, Label(Span(SOURCE.path, START + 2, START + 3)), subject=FINDING.subject
    )

    def prints(finding: Diagnostic, source: SourceFile) -> str:
        result = json.loads(to_sarif([finding], {source.path: source}))["runs"][0]["results"][0]
        return str(result["partialFingerprints"]["mstarc/v1"])

    assert prints(FINDING, SOURCE) == prints(later, moved)
    other = Diagnostic(FINDING.rule, "`z` is unknown", FINDING.primary, subject="z")
    assert prints(FINDING, SOURCE) != prints(other, SOURCE)


def test_github_escapes() -> None:
    (line,) = to_github([FINDING], SOURCES).splitlines()
    assert line.startswith("::error title=MC002 unknown-name,file=specs/m.walk,line=2,col=9,endLine=2::")
    assert "100%25%0Aof it%0Aa note%0Adid you mean `y`?" in line
    warning = Diagnostic(rules.MC006, "m", Label(Span("a,b:c.walk", 0, 0)))
    assert to_github([warning], {}) == "::warning title=MC006 dead-value,file=a%2Cb%3Ac.walk::m\n"


def test_a_finding_without_a_place_is_valid_everywhere() -> None:
    nowhere = Diagnostic(rules.MC513, "m", Label(Span("", 0, 0)))
    assert "locations" not in json.loads(to_sarif([nowhere], {}))["runs"][0]["results"][0]
    assert to_github([nowhere], {}) == "::error title=MC513 no-request::m\n"
