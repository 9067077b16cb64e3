"""MC514 never-asked and MC703 bucket-gap: what is reported, what is not, and mutants of the shipped specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.frontend import load_text
from mstarc.passes.checks import run_checks

SPECS = Path(__file__).resolve().parents[2] / "specs"
MODEL = """model m
{top}node a : stateless {{ op f(x: i64) -> y: i64{attrs} }}
walk one(x: i64) {{ emit a.f(x) as scalar{guard} }}
walk two(x: i64) {{ emit a.f(x) as tensor }}
request first(x: i64, more: {kind}) -> {outputs} {{
    one(x)
    if {asked} {{ two(x) }}
}}
request second(x: i64) -> scalar, tensor {{
    one(x)
    two(x)
}}
"""


def codes(text: str) -> list[str]:
    """Codes of everything that is found in a text."""
    program, report, _ = load_text("m.walk", text)
    if program is not None and not report.failed:
        run_checks(program, report)
    assert isinstance(report, Collector)
    return [d.rule.code for d in report.findings()]


def model(**parts: str) -> str:
    given = {
        "top": "",
        "attrs": "",
        "guard": "",
        "kind": "image?",
        "outputs": "scalar, tensor?",
        "asked": "wants(tensor)",
    }
    return MODEL.format(**{**given, **parts})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({}, []),
        ({"asked": "given(image)"}, []),
        ({"asked": "given(image)", "kind": "list(text | image)"}, []),
        ({"asked": "given(audio)"}, ["MC514"]),
        ({"asked": "given(image)", "kind": "list(text | audio)"}, ["MC514"]),
        ({"asked": "wants(audio)"}, ["MC514"]),
        ({"asked": "not wants(audio) and x > 1"}, ["MC514"]),
        ({"guard": " when wants(tensor)"}, []),
        ({"guard": " when wants(video)"}, ["MC514"]),
        ({"guard": " when given(image)"}, []),
        ({"top": "let loud = wants(tensor)\n", "asked": "loud"}, []),
        ({"top": "let loud = wants(audio)\n", "asked": "loud"}, ["MC514"]),
    ],
)
def test_never_asked(parts: dict[str, str], expected: list[str]) -> None:
    assert codes(model(**parts)) == expected


@pytest.mark.parametrize(
    ("attrs", "expected"),
    [
        ("batch stack max 16  graph decode 1..16", []),
        ("batch stack max 16  graph decode 2..32", []),
        ("batch stack max 16  graph decode", []),
        ("graph decode 4..4", []),
        ("batch stack max 16  graph decode 1..15", ["MC703"]),
        ("graph decode 0..4", ["MC703"]),
        ("graph decode 8..4", ["MC703"]),
    ],
)
def test_bucket_gap(attrs: str, expected: list[str]) -> None:
    assert codes(model(attrs=f"  {{ {attrs} }}")) == expected


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ask", "-> text, audio? {", "-> text, image? {"),
        ("ask", "wants(audio)", "wants(video)"),
        ("bagel", "given(image)", "given(audio)"),
        ("qwen3_omni", "let speech = wants(audio)", "let speech = wants(image)"),
    ],
)
def test_mutants_of_the_specs(name: str, old: str, new: str) -> None:
    text = (SPECS / f"{name}.walk").read_text(encoding="utf-8")
    assert old in text and codes(text) == []
    assert "MC514" in codes(text.replace(old, new))
