"""Calls of branches that `guide` leaves out get its scale as a guard, on IR text; what anything else needs of a call keeps it."""

from __future__ import annotations

import pytest

from mstarc.codegen.render import render
from mstarc.ir.core import Invoke, Program, When
from mstarc.ir.text import parse_program, print_expr, print_program
from mstarc.ir.verify import verify
from mstarc.ir.visit import every_op
from mstarc.passes.leave_out import leave_out
from mstarc.passes.pipeline import PIPELINE, run_passes

HEAD = """mstarc.ir 1
model t
param s: float low 0.0 high 9.0 = 2.0
param r: float low 0.0 high 9.0 = 2.0
let strong = param.s > 1 and param.r > 1
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c0 on kv max 99
context c1 on kv max 99
context c2 on kv max 99
context on_s on kv max 99 when param.s > 1
context on_both on kv max 99 when let.strong
node llm: transformer on kv {
  op peek(x: f32[4]) -> (y: f32[4]) { attend full positions same takes 2 frozen }
  op luck(x: f32[4]) -> (y: f32[4]) { attend full positions same takes 2 frozen random }
  op grow(x: f32[4]) -> (y: f32[4]) { attend full positions seq takes 2 }
}
node net: stateless { op f(x: f32[4], k: i64[]) -> (y: f32[4]) op two(x: f32[4]) -> (y: f32[4], z: f32[4]) }
node kept: stateless { op f(x: f32[4]) -> (y: f32[4]) state n: i64[] = 0 }
"""


def program(body: str) -> Program:
    text = HEAD + f"walk w(%0 x: f32[4]) {{\n{body}\n}}\nrequest r(%0 x: f32[4]) -> (tensor) {{\n  call w(%0)\n}}\n"
    return parse_program(text)


def guards(before: Program) -> dict[str, str]:
    """Result of a guarded call -> its guard. The program after the pass is well formed, and a second run finds nothing to do."""
    after = leave_out(before)
    verify(after)
    render(after, "x.walk")
    assert leave_out(after) is after
    assert parse_program(print_program(after)) == after
    (walk,) = after.walks
    found = {}
    for op in every_op(walk.body):
        if isinstance(op, When):
            (call,) = op.body.ops
            assert isinstance(call, Invoke)
            found[call.results[0].name if call.results[0] else ""] = print_expr(op.cond)
    return found


ONE = "  %1 v: f32[4] = invoke net.f(%0, 0)\n  %2 a: f32[4] = {call}\n  %3 y: f32[4] = compute guide(%1, %2, {scale})\n  emit %3 as tensor"


def one(call: str = "invoke net.f(%0, 1)", scale: str = "param.s") -> dict[str, str]:
    return guards(program(ONE.format(call=call, scale=scale)))


def test_a_branch_runs_where_its_scale_is_above_one() -> None:
    assert one() == {"a": "param.s > 1"}
    assert one("invoke llm.peek(%0) reads c1") == {"a": "param.s > 1"}
    assert one(scale="param.s * param.r") == {"a": "param.s * param.r > 1"}
    assert one(scale="0.5") == {"a": "0.5 > 1"}


def test_what_is_guarded_by_the_scale_already_stays() -> None:
    before = program(ONE.format(call="invoke llm.peek(%0) reads on_s", scale="param.s"))
    assert leave_out(before) is before
    assert one("invoke llm.peek(%0) reads on_both") == {}
    assert one("invoke llm.peek(%0) reads on_both", "param.r") == {}
    assert one("invoke llm.peek(%0) reads on_s", "param.r") == {"a": "param.r > 1"}
    assert one(scale="3.0") == {}


@pytest.mark.parametrize("call", ["invoke llm.luck(%0) reads c1", "invoke llm.grow(%0) writes c1", "invoke kept.f(%0)"])
def test_calls_that_leave_something_behind_run(call: str) -> None:
    assert one(call) == {}


def test_a_result_that_something_else_reads() -> None:
    for more in (
        "emit %2 as tensor",
        "emit %2 + %1 as tensor",
        "%4 z: f32[4] = compute guide(%2, %1, param.s)\nemit %4 as tensor",
    ):
        body = ONE.format(call="invoke net.f(%0, 1)", scale="param.s")
        assert guards(program(f"{body}\n{more}")).get("a") is None
    both = "  %2 a: f32[4], %3 z: f32[4] = invoke net.two(%0)\n  %4 y: f32[4] = compute guide(%1, %2, %3, param.s, param.r)\n"
    assert guards(program(f"  %1 v: f32[4] = invoke net.f(%0, 0)\n{both}  emit %4 as tensor")) == {}


def test_two_branches() -> None:
    body = """
  parallel {
    %1 v: f32[4] = invoke llm.peek(%0) reads c0
    %2 a: f32[4] = invoke llm.peek(%0) reads c1
    %3 b: f32[4] = invoke llm.peek(%0) reads c2
  }
  %4 y: f32[4] = compute guide(%1, %2, %3, param.s, param.r)
  emit %4 as tensor"""
    assert guards(program(body)) == {"a": "param.s > 1", "b": "param.s > 1 and param.r > 1"}


def test_in_two_guides_a_branch_runs_if_one_needs_it() -> None:
    body = """
  %1 v: f32[4] = invoke net.f(%0, 0)
  %2 a: f32[4] = invoke net.f(%0, 1)
  %3 y: f32[4] = compute guide(%1, %2, param.s)
  %4 z: f32[4] = compute guide(%1, %2, param.r)
  emit %3 + %4 as tensor"""
    assert guards(program(body)) == {"a": "param.s > 1 or param.r > 1"}


def test_a_guard_is_added_to_a_when() -> None:
    body = """
  loop l times 4 carry %1 z: f32[4] = %0 then %5 -> %6 z_2: f32[4]
  do {
    %2 v: f32[4] = invoke net.f(%1, 0)
    when iter.l > 1 {
      %3 a: f32[4] = invoke net.f(%1, 1)
    } -> (%3 to %4 a_2: f32[4]?)
    %5 y: f32[4] = compute guide(%2, %4, param.s + iter.l)
  }
  emit %6 as tensor"""
    assert guards(program(body)) == {"a": "iter.l > 1 and param.s + iter.l > 1"}


def test_a_scale_that_is_not_known_at_the_call() -> None:
    """It changes in a loop that the call does not stand in, or is computed behind the call."""
    body = """
  %1 a: f32[4] = invoke net.f(%0, 1)
  %2 k: host f32[] = compute param.s * 2
  %3 v: f32[4] = invoke net.f(%0, 0)
  %4 y: f32[4] = compute guide(%3, %1, %2)
  emit %4 as tensor"""
    assert guards(program(body)) == {}
    known = body.replace("%1 a: f32[4] = invoke net.f(%0, 1)\n", "").replace(
        "param.s * 2\n", "param.s * 2\n  %1 a: f32[4] = invoke net.f(%0, 1)\n"
    )
    known = known.replace("%2", "%T").replace("%1", "%2").replace("%T", "%1")
    assert guards(program(known)) == {"a": "%1 > 1"}


def test_the_pipeline_runs_it_first() -> None:
    before = program(ONE.format(call="invoke net.f(%0, 1)", scale="param.s"))
    first = next(iter(run_passes(before, PIPELINE, verified=True)))
    assert first.name == "leave-out" and first.program == leave_out(before)


def test_a_second_branch_that_no_call_gives_is_not_taken_for_a_scale() -> None:
    """An array that the request brought: it is known on the host, as a scale is."""
    body = """
  %1 v: f32[4] = invoke net.f(%0, 0)
  %2 a: f32[4] = invoke net.f(%0, 1)
  %3 y: f32[4] = compute guide(%1, %2, {second}, param.s, param.r)
  emit %3 as tensor"""
    for second, guarded in (("%0", {"a": "param.s > 1"}), ("%0 + 1.0", {})):
        text = print_program(program(body.format(second=second))).replace("%0 x: f32[4]", "%0 x: host f32[4]")
        assert guards(parse_program(text)) == guarded
