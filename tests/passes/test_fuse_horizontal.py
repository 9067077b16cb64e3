"""Horizontal fusion: the calls of a `parallel` that go as one batch, and ops that several walks call."""

from __future__ import annotations

from pathlib import Path

from mstarc.ir.text import parse_program
from mstarc.passes.fuse_horizontal import Fusion, fuse_horizontal, say_fusions
from mstarc.workspace import load_model

ROOT = Path(__file__).resolve().parents[2]
TEXT = """mstarc.ir 1
model t
param on: bool = false
node n: stateless {
  op f(x: i64[]) -> (y: i64[])
  op g(x: i64[]) -> (y: i64[])
}
node m: stateless weights n { op f(x: i64[]) -> (y: i64[]) }
walk one(%0 x: i64[]) {
  parallel {
    %1 a: i64[] = invoke n.f(%0)
    %2 b: i64[] = invoke n.g(%0)
    when param.on {
      %3 c: i64[] = invoke n.f(%0)
    } -> (%3 to %4 c_2: i64[]?)
  }
  emit %1 as scalar
}
walk two(%0 x: i64[]) {
  %1 d: i64[] = invoke m.f(%0)
  emit %1 as scalar
}
request r() -> (scalar) {
}
"""


def test_calls_of_a_parallel_and_of_several_walks() -> None:
    program = parse_program(TEXT)
    facts = fuse_horizontal(program)
    assert facts == (
        Fusion("parallel", "n.f", ("one.a", "one.c")),
        Fusion("walks", "n.f", ("one.a", "one.c", "two.d")),
    )
    assert list(say_fusions(program, facts)) == [
        "one.a, one.c: 2 rows of one call of n.f for each request",
        "one.a, one.c, two.d: one queue of n.f",
    ]


def test_bagel_has_one_batch_of_three_branches() -> None:
    program = load_model(ROOT / "specs/bagel.walk").bound
    assert program is not None
    assert fuse_horizontal(program)[0] == Fusion("parallel", "llm.velocity", ("draw.v", "draw.a", "draw.b"))
