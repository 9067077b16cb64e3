"""Costs of a cut: MC603 for what a step of a loop sends beyond a rank's `link`, MC803 for ranks that wait for a longer one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.ir.text import parse_program
from mstarc.plan.link import link
from mstarc.plan.placement import Placement, parse_placement
from mstarc.source import SourceFile
from tests.codegen.harness import plan_of

PIPED = """mstarc.ir 1
model t
param n: int = 4
config wide = 256
node a: stateless { op f(x: i64[]) -> (y: f32[1024, 256]) op g(x: f32[config.wide, 1024]) -> (y: i64[]) }
stream s: f32[config.wide, 1024] by fixed(size = 1) at_end drop capacity 4
stream few: i64[] by fixed(size = 1) at_end drop capacity 4
walk make(%0 x: i64[]) {
  loop go times param.n do {
    %1 y: f32[1024, 256] = invoke a.f(%0)
    send %1 to s
    send %0 to few
    send %0 to few
    loop inner times 2 do { send %1 to s }
  }
}
walk show() { for %0 u: chunk(s, f32[config.wide, 1024]) in s { %1 y: i64[] = invoke a.g(%0) emit %1 as scalar } }
walk count() { for %0 u: chunk(few, i64[]) in few { %1 y: f32[1024, 256] = invoke a.f(%0) emit %1 as tensor } }
request r(%0 x: host i64[]) -> (scalar, tensor) { together { arm p { call make(%0) } arm q { call show() } arm c { call count() } } }
"""
RANKS = 'default = 0\n[ranks.0]\n{}[ranks.1]\n{}\n[place]\n"a.g" = 1\n[walks.count]\na = 1\n'


def placed(toml: str, report: Collector) -> Placement | None:
    return parse_placement(SourceFile("p.toml", toml), report)


def findings(zero: str = "", one: str = "") -> tuple[Diagnostic, ...]:
    report = Collector()
    placement = placed(RANKS.format(zero, one), report)
    assert placement is not None
    assert link(plan_of(parse_program(PIPED)), placement, Path("p"), report) is not None, "a warning stops nothing"
    return report.findings()


def test_nothing_is_said_without_a_budget_or_within_it() -> None:
    assert findings() == ()
    assert findings(f"link = {2**20 + 16}\n") == ()


def test_each_loop_is_held_against_the_budget_of_each_rank() -> None:
    outer, inner = sorted(findings("link = 1_000_000\n"), key=lambda d: d.message)
    assert {outer.rule.code, inner.rule.code} == {"MC603"}
    assert outer.message == "a step of loop `make.go` sends 1.0 MiB to and from rank 0, whose `link` is 976.6 KiB"
    assert outer.notes == ("an item of s: 1.0 MiB from 0 to 1; 2 items of few: 16 B from 0 to 1",)
    assert inner.notes == ("an item of s: 1.0 MiB from 0 to 1",)
    both = findings("link = 1_000_000\n", "link = 1000\n")
    assert len(both) == 4 and sum("rank 1" in d.message for d in both) == 2


@pytest.mark.parametrize("link", ["0", "-1", "true", '"1 MiB"', "1.5"])
def test_what_is_no_budget(link: str) -> None:
    report = Collector()
    assert placed(f"[ranks.0]\nlink = {link}\n", report) is None
    assert [d.rule.code for d in report.findings()] == ["MC608"]


def test_values_that_a_split_walk_moves_count_too() -> None:
    text = """mstarc.ir 1
model t
node a: stateless { op f(x: f32[1024]) -> (y: f32[1024]) }
node b: stateless { op g(x: f32[1024]) -> (y: f32[1024]) }
walk w(%0 x: f32[1024]) {
  loop go times 4 carry %1 t: f32[1024] = %0 then %3 -> %4 u: f32[1024] do {
    %2 y: f32[1024] = invoke a.f(%1)
    %3 z: f32[1024] = invoke b.g(%2)
  }
}
request r(%0 x: host f32[1024]) -> () { call w(%0) }
"""
    report, limits = Collector(), Collector()
    placement = placed("[ranks.0]\n[ranks.1]\nlink = 8000\n[place]\na = 0\nb = 1\n", report)
    assert placement is not None
    link(plan_of(parse_program(text)), placement, Path("p"), report, None, limits)
    [found] = report.findings()
    assert found.message.startswith("a step of loop `w.go` sends 8.0 KiB to and from rank 1")
    assert found.notes == ("y: 4.0 KiB from 0 to 1; z: 4.0 KiB from 1 to 0",)
