"""Walks on several ranks: which calls run where, what crosses, and the findings that name what the runtime lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.plan.layout import layouts_of
from mstarc.plan.link import link
from mstarc.plan.model import Plan
from mstarc.plan.move_rows import MoveRow, move_rows
from mstarc.plan.moves import Move, moves_of
from mstarc.plan.placement import Placement, parse_placement
from mstarc.source import SourceFile
from mstarc_runtime.abi.linked import Linked
from tests.codegen.harness import plan_of
from tests.plan.test_link import line_of

RANKS = "default = 0\n" + "".join(f"[ranks.{k}]\n" for k in range(3))
HEAD = """mstarc.ir 1
model t
config width = 4
param on: bool = true
extern ask(x: i64[]) -> (y: i64[])
cache kv(layers = 2, heads = 2, kv_heads = 2, head_dim = 8)
context c on kv max 100
context d on kv max 100
sampler s(temperature = 1.0)
node a: transformer on kv {
  op read(x: i64[dim.T]) -> (y: f32[9]) { attend causal positions seq takes dim.T }
  op step(x: i64[]) -> (y: f32[9]) { attend causal positions seq takes 1 }
  op look(x: f32[dim.N, 4]) -> (y: f32[dim.N, 4]) { attend full positions seq takes dim.N frozen }
}
node b: stateless { op f(x: f32[9]) -> (y: f32[9]) op g(x: f32[9], z: f32[9]) -> (y: f32[9]) }
"""


def program(text: str) -> Program:
    return parse_program(HEAD + text)


def placed(toml: str) -> Placement:
    report = Collector()
    placement = parse_placement(SourceFile("p.toml", RANKS + toml), report)
    assert placement is not None, [d.message for d in report.findings()]
    return placement


def moves(text: str, toml: str) -> list[Move]:
    """The moves, without the types of what moves."""
    return [replace(move, value=None) for move in moves_of(layouts_of(plan_of(program(text)), placed(toml)))]


def rows(text: str, toml: str) -> list[MoveRow]:
    plan, placement = plan_of(program(text)), placed(toml)
    found, _ = linked(plan, toml)
    assert found is not None
    return move_rows(plan, placement, found)


def linked(plan: Plan, toml: str) -> tuple[Linked | None, tuple[Diagnostic, ...]]:
    report, limits = Collector(), Collector()
    found = link(plan, placed(toml), Path("p"), report, None, limits)
    assert not report.failed, [d.message for d in report.findings()]
    return found, limits.findings()


DECODE = """walk w(%0 ids: i64[dim.T]) {
  %1 y: f32[9] = invoke a.read(%0) writes c
  %2 t: i64[] = sample s(%1) site "t"
  loop go max 9 carry %3 t_2: i64[] = %2 then %5 -> %6 t_3: i64[] do {
    stop %3 == 3 with (%3)
    %4 y_2: f32[9] = invoke a.step(%3) writes c
    %5 t_4: i64[] = sample s(%4) site "t_2"
  }
}
request r(%0 ids: host i64[dim.T]) -> () { call w(%0) }
"""


def test_on_one_rank_nothing_moves() -> None:
    assert moves(DECODE, "") == []
    assert moves(DECODE, "[place]\na = 2\n") == []


def test_prefill_and_decode_apart() -> None:
    """The walk is at home where its loop runs: logits and the prompt's keys and values go there once."""
    assert moves(DECODE, '[place]\n"a.read" = 1\n') == [
        Move("w", "", "value", "y", 1, (0,)),
        Move("w", "", "kv", "c", 1, (0,)),
    ]
    found = rows(DECODE, '[place]\n"a.read" = 1\n')
    assert [row.bytes for row in found] == ["36 B", "256 B * entries, at most 25.0 KiB"]


BRANCHES = """walk w(%0 x: f32[dim.N, config.width]) {
  loop go times 9 carry %1 z: f32[dim.N, config.width] = %0 then %6 -> %7 z_2: f32[dim.N, config.width] do {
    %2 v: f32[dim.N, 4] = invoke a.look(%1) reads c
    when param.on { %3 u: f32[dim.N, 4]? = invoke a.look(%1) reads d } -> (%3 to %4 u_2: f32[dim.N, 4]?)
    %5 q: f32[dim.N, 4] = invoke a.look(%1) reads d
    %6 z_3: f32[dim.N, 4] = compute %2 + %5
  }
}
walk fill(%0 ids: i64[dim.T]) { fork d from c _ = invoke a.read(%0) writes c }
request r(%0 ids: host i64[dim.T], %1 x: host f32[dim.N, config.width]) -> () { call fill(%0) call w(%1) }
"""


def test_branches_of_a_step_on_ranks_of_their_own() -> None:
    toml = "[walks.w]\nu = 1\nq = 2\n"
    assert moves(BRANCHES, toml) == [
        Move("w", "", "kv", "d", 0, (1, 2), verb="fan-out"),
        Move("w", "go", "value", "z", 0, (1,), when="on"),
        Move("w", "go", "value", "z", 0, (2,)),
        Move("w", "go", "value", "q", 2, (0,), verb="join"),
    ]


def test_what_two_conditions_read_goes_in_any_case() -> None:
    text = """walk w(%0 x: f32[9]) {
  %1 y: f32[9] = invoke b.f(%0)
  when param.on { %2 u: f32[9]? = invoke b.f(%1) } -> (%2 to %3 u_2: f32[9]?)
  when not param.on { %4 v: f32[9]? = invoke b.f(%1) } -> (%4 to %5 v_2: f32[9]?)
}
request r(%0 x: host f32[9]) -> () { call w(%0) }
"""
    assert moves(text, "[walks.w]\nu = 1\nv = 1\n") == [Move("w", "", "value", "y", 0, (1,))]
    assert moves(text, "[walks.w]\nu = 1\n") == [Move("w", "", "value", "y", 0, (1,), when="on")]


def test_a_fork_carries_over_to_the_round_after_the_next() -> None:
    """`d` is what `c` was when the round before began: rank 1 wrote it, and rank 0 reads it in each round but the first two."""
    text = """walk w(%0 x: i64[]) {
  loop go times 9 do {
    %1 y: f32[9] = invoke a.look(%0) reads d
    fork d from c
    %2 z: f32[9] = invoke a.step(%0) writes c
  }
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""
    assert moves(text, "[walks.w]\nz = 1\n") == [Move("w", "go", "kv", "d", 1, (0,))]


def test_what_moves_once_in_an_inner_loop_moves_in_each_round_of_the_outer_one() -> None:
    text = """walk w(%0 x: i64[]) {
  loop out times 9 do {
    %1 y: f32[9] = invoke a.step(%0) writes c
    loop go times 9 do { %2 z: f32[9] = invoke a.look(%0) reads c }
  }
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""
    assert moves(text, "[walks.w]\nz = 1\n") == [Move("w", "out", "kv", "c", 0, (1,))]


def test_a_context_that_is_dropped_is_empty_everywhere() -> None:
    text = """walk w(%0 x: i64[]) {
  %1 y: f32[9] = invoke a.step(%0) writes c
  drop c
  %2 z: f32[9] = invoke a.look(%0) reads c
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""
    assert moves(text, "[walks.w]\nz = 1\n") == []


def test_bytes_name_what_only_a_request_knows() -> None:
    found = {(row.what, row.source): row for row in rows(BRANCHES, "[walks.w]\nq = 2\n")}
    assert found["z", 0].bytes == "16 B * N"
    assert (found["z", 0].number, found["z", 0].factors) == (16, ["N"])
    assert (found["q", 2].per, found["q", 2].where) == ("step", "w.go")


def test_a_loop_that_needs_the_flag_elsewhere() -> None:
    text = """walk w(%0 x: i64[]) {
  loop go max 9 carry %1 t: i64[] = %0 then %4 -> %5 t_2: i64[] do {
    stop %1 == 3 with (%1)
    %2 y: f32[9] = invoke a.step(%1) writes c
    %3 h: f32[9] = invoke b.f(%2)
    %4 n: i64[] = sample s(%3) site "n"
  }
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""
    assert moves(text, "[place]\nb = 1\n") == [
        Move("w", "go", "exit", "stop", 0, (1,)),
        Move("w", "go", "value", "y", 0, (1,)),
        Move("w", "go", "value", "h", 1, (0,)),
    ]


def test_a_context_that_two_ranks_write_in_turn_moves_every_step() -> None:
    text = """walk w(%0 x: i64[]) {
  loop go times 9 do {
    %1 y: f32[9] = invoke a.step(%0) writes c
    %2 z: f32[9] = invoke a.step(%0) writes c
  }
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""
    assert moves(text, "[walks.w]\nz = 1\n") == [
        Move("w", "go", "kv", "c", 0, (1,)),
        Move("w", "go", "kv", "c", 1, (0,)),
    ]


def test_keys_and_values_follow_from_walk_to_walk() -> None:
    assert moves(BRANCHES, "[walks.fill]\na = 1\n") == [Move("w", "", "kv", context, 1, (0,)) for context in "cd"]


@pytest.mark.parametrize(
    ("toml", "code", "says", "line"),
    [
        ('[place]\n"a.read" = 1\n', "MC605", "walk `w` is split over ranks 0 and 1", '"a.read" = 1'),
        ("[walks.w]\ny = 1\n", "MC605", "`y` on rank 1, `a` on rank 0", "y = 1"),
        ("[place]\na = [0, 2]\n", "MC607", "node `a` is on ranks 0 and 2 at once", "a = [0, 2]"),
        ('[ranks.1]\nhost = "x"\n', "MC607", "rank 1 is on host `x` and rank 0 on host ``", 'host = "x"'),
    ],
)
def test_what_the_runtime_lacks_is_a_finding_beside_the_picture(toml: str, code: str, says: str, line: str) -> None:
    ranks = "default = 0\n[ranks.0]\n" + ("[ranks.2]\n" if "ranks.1" in toml else "[ranks.1]\n[ranks.2]\n")
    report, limits = Collector(), Collector()
    placement = parse_placement(SourceFile("p.toml", ranks + toml), report)
    assert placement is not None
    found = link(plan_of(program(DECODE)), placement, Path("p"), report, None, limits)
    assert found is not None
    finding = next(d for d in limits.findings() if d.rule.code == code)
    assert says in finding.message
    assert finding.help is not None
    assert finding.help.startswith("not built yet: ")
    assert line_of(finding, ranks + toml) == line
    assert link(plan_of(program(DECODE)), placement, Path("p"), limits) is None


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[walks.v]\na = 1\n", "names walk `v`"),
        ("[walks.w]\nyy = 1\n", "names node `yy`"),
        ('[place]\n"a.reed" = 1\n', "names op `a.reed`"),
    ],
)
def test_names_that_are_not_there(toml: str, says: str) -> None:
    report = Collector()
    assert link(plan_of(program(DECODE)), placed(toml), Path("p"), report) is None
    assert [d.rule.code for d in report.findings()] == ["MC606"]
    assert says in report.findings()[0].message
    assert line_of(report.findings()[0], RANKS + toml).startswith(("[walks.v]", "yy", '"a.reed"'))


@pytest.mark.parametrize(
    ("toml", "code"),
    [
        ("[place]\na = [0, 0]\n", "MC606"),
        ("[place]\na = []\n", "MC606"),
        ("[place]\na.read = 1\n", "MC608"),
        ("[walks]\nw = 1\n", "MC608"),
        ("walks = 3\n", "MC608"),
        ("[ranks.3]\nhost = 3\n", "MC608"),
    ],
)
def test_tables_that_cannot_be(toml: str, code: str) -> None:
    report = Collector()
    given = RANKS if not toml.startswith("walks") else ""
    assert parse_placement(SourceFile("p.toml", given + toml), report) is None
    assert {d.rule.code for d in report.findings()} == {code}


JUDGED = """walk w(%0 x: i64[]) {
  loop go max 9 carry %1 t: i64[] = %0 then %4 -> %5 t_2: i64[] do {
    %2 y: f32[9] = invoke a.step(%1) writes c
    %3 eos: f32[9] = invoke b.f(%2)
    stop %3[0] == 1 with (%1)
    %4 n: i64[] = sample s(%2) site "n"
  }
}
request r(%0 x: host i64[]) -> () { call w(%0) }
"""


def test_a_rank_that_could_run_on_is_told_what_to_do() -> None:
    """MC602: the flag is made on rank 1, and rank 0 needs nothing from there to go on."""
    report = Collector()
    assert link(plan_of(program(JUDGED)), placed("[place]\nb = 1\n"), Path("p"), report) is None
    [found] = report.findings()
    assert (found.rule.code, line_of(found, RANKS + "[place]\nb = 1\n")) == ("MC602", "default = 0")
    assert "ends by `eos` of rank 1, and rank 0 can begin" in found.message
    told = '[place]\nb = 1\n[ahead]\n"w.go" = 0\n'
    _, limits = linked(plan_of(program(JUDGED)), told)
    assert {d.rule.code for d in limits} == {"MC605"}


def test_a_rank_that_waits_anyway_need_not_be_told() -> None:
    """The draw stands on rank 0, and what rank 1 gets each time comes from there."""
    text = JUDGED.replace("stop %3[0] == 1 with (%1)", "stop %1 == 3 with (%1)")
    _, limits = linked(plan_of(program(text)), "[place]\nb = 1\n")
    assert {d.rule.code for d in limits} == {"MC605"}
