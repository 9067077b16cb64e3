"""The IR's text form: what is printed reads back as the same program, and errors carry the line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from mstarc.ir.core import Program
from mstarc.ir.text import HEADER, IrTextError, parse_program, print_expr, print_program, print_walk, to_json
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.text.read_expressions import read_expr
from mstarc.ir.types import Binary, Expr, Lit, Unary
from mstarc.passes.pipeline import PIPELINE, run_passes
from mstarc.workspace import load_model
from tests.ir.strategies import EXPRESSIONS, PROGRAMS

SPECS = Path(__file__).resolve().parents[2] / "specs"
HELLO = """mstarc.ir 1
model hello
config limit from "counter.limit"
param max_steps: int low 1 high 1000 = 10
node counter: stateless {
  op first(x: i64[]) -> (y: i64[])
  op next(x: i64[]) -> (y: i64[]) { batch stack }
}
stream numbers: i64[] by fixed(size = 2) at_end pad:zero capacity 8
walk count(%0 start: i64[]) {
  %1 n: i64[] = invoke counter.first(%0)
  loop counting max param.max_steps
    carry %2 n_2: i64[] = %1 then %3 -> %4 n_4: i64[]
  do {
    stop %2 == config.limit with (%2)
    emit %2 as tensor
    send %2 to numbers
    %3 n_3: i64[] = invoke counter.next(%2)
  }
}
"""


@settings(max_examples=150, deadline=None)
@given(PROGRAMS)
def test_programs_round_trip(program: Program) -> None:
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert repr(again) == repr(program)  # == takes 1, 1.0 and True for the same literal
    assert print_program(again) == text


def _round_trips(program: Program) -> None:
    text = print_program(program)
    assert text.startswith(f"{HEADER}\n")
    again = parse_program(text)
    assert again == program and print_program(again) == text


@pytest.mark.parametrize("spec", sorted(p.stem for p in SPECS.glob("*.walk")))
def test_every_spec_round_trips_after_every_pass(spec: str) -> None:
    model = load_model(SPECS / f"{spec}.walk")
    assert model.program is not None and model.bound is not None
    for program in (model.program, model.bound, *(step.program for step in run_passes(model.bound, PIPELINE, True))):
        _round_trips(program)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS)
def test_expressions_round_trip(expr: Expr) -> None:
    cursor = Cursor(print_expr(expr))
    assert repr(read_expr(cursor)) == repr(expr)
    assert cursor.token.kind == "end"


def test_a_written_program_is_canonical() -> None:
    program = parse_program(HELLO)
    assert print_program(program) == HELLO
    assert print_walk(program.walks[0]) == HELLO[HELLO.index("walk") :]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (Binary("-", Binary("-", Lit(1), Lit(2)), Lit(3)), "1 - 2 - 3"),
        (Binary("-", Lit(1), Binary("-", Lit(2), Lit(3))), "1 - (2 - 3)"),
        (Binary("*", Binary("+", Lit(1), Lit(2)), Lit(-3)), "(1 + 2) * -3"),
        (Unary("-", Lit(3)), "-(3)"),
        (Unary("not", Binary("and", Lit(True), Lit(False))), "not (true and false)"),
    ],
)
def test_parentheses_are_few_and_enough(expr: Expr, text: str) -> None:
    assert print_expr(expr) == text


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("mstarc.ir 1", "mstarc.ir 7", 1, "first line"),
        ("model hello", "modell hello", 2, "`model` is due"),
        ("low 1", "lowest 1", 4, "is due"),
        ("batch stack", "batch heap", 7, "`pack`, `stack`"),
        ("batch stack", "batch stack batch pack", 7, "twice"),
        ("emit %2", "emits %2", 16, "`emit`"),
        ("send %2 to", "send $2 to", 17, "begins no token"),
        ('"counter.limit"', r'"\q"', 3, "not a JSON string"),
        ("config.limit with", "configs.limit with", 15, "scope"),
        ("}\n}\n", "}\n", 20, "end of the text"),
    ],
)
def test_errors_carry_the_line(old: str, new: str, line: int, says: str) -> None:
    with pytest.raises(IrTextError, match=says) as caught:
        parse_program("".join(HELLO.rpartition(old)[0:1]) + new + HELLO.rpartition(old)[2])
    assert caught.value.line == line


def test_json_names_each_class_and_holds_no_span() -> None:
    tree = json.loads(to_json(parse_program(HELLO)))
    assert tree["walks"][0]["body"]["ops"][1]["carries"][0]["inner"]["name"] == "n_2"
    assert tree["nodes"][0] | {"ops": 0} == {
        "class": "Node", "name": "counter", "kind": "stateless", "cache": "", "precision": "", "weights": "", "ops": 0, "states": [],
    }  # fmt: skip
    assert "span" not in to_json(parse_program(HELLO))
