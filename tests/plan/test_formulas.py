"""Formulas of the `cost:` section: arithmetic, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from mstarc.binding import Bound, check_binding, read_binding
from mstarc.diagnostics.core import Collector
from mstarc.plan.formulas import FormulaError, evaluate
from mstarc.source import SourceFile
from mstarc.workspace import load_model

ROOT = Path(__file__).resolve().parents[2]


def value_of(name: str) -> Any:
    return {"d": 4, "llm.d": 8, "sizes": [1, 2, 3], "word": "x"}[name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        (2.5, 2.5),
        ("2 * d + llm.d", 16),
        ("d ** 2 // 3 % 4", 1),
        ("max(d, 3) - min(d, 3)", 1),
        ("-d / 8", -0.5),
        ("sum(sizes)", 6),
    ],
)
def test_values(text: str | int | float, value: float) -> None:
    assert evaluate(text, value_of) == value


@pytest.mark.parametrize(
    "text",
    [
        "d +",
        "__import__('os')",
        "d.e.f",
        "d[0]",
        "lambda: 1",
        "'x'",
        "True",
        "d if d else 1",
        "min(d, key=d)",
        "min()",
        "1 if",
        "x" * 1001,
        "(" * 900,
    ],
)
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(FormulaError, match="formula"):
        evaluate(text, value_of)


@pytest.mark.parametrize(
    "text",
    [
        "d / 0",
        "d ** 1000",
        "word * 2 - 1",
        "9 ** 64 ** 64",
        "(((((9 ** 64) ** 64) ** 64) ** 64) ** 64)",
        "0 ** -1",
        "9" * 400,
        "1e300 * d",
        "1e999",
        "1e999 - 1e999",
        "10 ** 14 * word",
        "-word",
        "d + sizes",
        "word",
    ],
)
def test_what_has_no_value(text: str) -> None:
    with pytest.raises(FormulaError):
        evaluate(text, value_of)


def binding(cost: str) -> list[tuple[str, str]]:
    """Codes and messages of bagel's binding with another `cost` section."""
    text = (ROOT / "specs/bagel.yaml").read_text(encoding="utf-8").split("cost:")[0] + cost
    report = Collector()
    bound = read_binding(SourceFile("bagel.yaml", text), report)
    program = load_model(ROOT / "specs/bagel.walk").program
    assert program is not None
    if isinstance(bound, Bound):
        check_binding(bound, program, report)
    return [(d.rule.code, d.message + (d.help or "")) for d in report.findings()]


@pytest.mark.parametrize(
    ("cost", "code", "says"),
    [
        ("cost: {nodes: {lm: {params: 1}}}", "MC904", "did you mean `llm`?"),
        ("cost: {nodes: {llm: {ops: {velocty: {flops: 1}}}}}", "MC904", "did you mean `velocity`?"),
        ("cost: {values: {canvas.x: 1}}", "MC904", "canvas"),
        ("cost: {parts: {text_parts: text}}", "MC904", "did you mean `text_part`?"),
        ("cost: {nodes: {llm: {ops: {velocity: {flop: 1}}}}}", "MC901", "did you mean `flops`?"),
        ("cost: {node: {}}", "MC901", "did you mean `nodes`?"),
        ("cost: {sizes: {T: f(x)}}", "MC902", "is not arithmetic"),
        ("cost: {sizes: {T: [1]}}", "MC902", "cost.sizes.T"),
    ],
)
def test_findings(cost: str, code: str, says: str) -> None:
    found = binding(cost + "\n")
    assert found and found[0][0] == code and any(says in message for _, message in found), found


def test_deep_formulas_end_in_words() -> None:
    for text in ("-" * 990 + "1", "+".join(["1"] * 500), "max(" * 200 + "1" + ")" * 200):
        with contextlib.suppress(FormulaError):
            assert abs(evaluate(text, value_of)) in (1, 500)
