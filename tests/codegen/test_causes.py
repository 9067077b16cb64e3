"""How a loop ended: a `stop when` that says no more than that the bound is reached counts as the bound (`length` to a client)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.ir.loop_ends import cause_of
from mstarc.ir.visit import every_op
from tests.codegen.written import Asked, agree
from tests.interp.programs import program

LIKE_A_THINKER = """
model thinking
param most : int in 1..50 = 4
param end  : int in 0..99 = 50
node n : stateless {{ op next(x: i64) -> y: i64  {{ {batch} }} }}
walk w(x: i64) {{
    loop words max most carry x {{
        stop when x == end
        emit x as text
        stop when iter + 1 == most
        emit x as tensor
        x = n.next(x)
    }}
    emit x as scalar
}}
request r(x: i64) -> text?, tensor?, scalar {{ w(x) }}
"""


@pytest.mark.parametrize("batch", ["", "batch stack"])
async def test_the_last_body_that_is_left_early_ends_at_the_bound(tmp_path: Path, batch: str) -> None:
    binding = "components: {n: tests.codegen.gap_components.Sums}\n"
    asked = [Asked({"x": 1}), Asked({"x": 1}, {"end": 3}), Asked({"x": 1}, {"end": 4}), Asked({"x": 1}, {"most": 1})]
    found = await agree(tmp_path, LIKE_A_THINKER.format(batch=batch), binding, asked)
    assert [got.causes["w.words"] for got in found] == ["max", "stop", "stop", "max"]
    assert [len(got.events["text"]) for got in found] == [4, 2, 3, 1]
    assert [len(got.events.get("tensor", [])) for got in found] == [3, 2, 3, 0]


@pytest.mark.parametrize(
    ("bound", "condition", "cause"),
    [
        ("param.p", "iter.l + 1 == param.p", "max"),
        ("param.p", "iter.l + 1 >= param.p", "max"),
        ("param.p", "iter.l == param.p - 1", "max"),
        ("param.p - 1", "iter.l + 2 == param.p", "max"),
        ("5", "iter.l + 1 == 5", "max"),
        ("5", "iter.l == 4", "max"),
        ("5", "iter.l == 3", "stop"),
        ("param.p", "iter.l == param.p", "stop"),
        ("param.p", "iter.l + 1 == param.q", "stop"),
        ("param.p", "iter.l + 1 <= param.p", "stop"),
        ("param.p", "%0 == param.p", "stop"),
    ],
)
def test_which_conditions_say_only_that(bound: str, condition: str, cause: str) -> None:
    text = f"""param p: int low 1 high 9 = 3
param q: int low 1 high 9 = 3
walk w(%0 x: i64[]) {{
  loop l max {bound} do {{
    stop {condition} with ()
    emit %0 as m
  }}
}}
request r(%0 x: host i64[]) -> (m) {{
  call w(%0)
}}
"""
    (loop,) = program(text).walks[0].body.ops
    (stop, _) = every_op(loop.body)  # type: ignore[union-attr]
    assert cause_of(stop, loop) == cause  # type: ignore[arg-type]
