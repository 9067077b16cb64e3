"""Linking: routes and numbers under a placement, and the coded errors of placements that cannot be."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from mstarc.cli import main
from mstarc.codegen.package import compile_model
from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.ir.text import parse_program
from mstarc.plan.link import link
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement, find_placement, parse_placement, read_placement
from mstarc.source import SourceFile
from mstarc_runtime.abi.formula import evaluate
from mstarc_runtime.abi.linked import Linked
from tests.codegen.harness import plan_of

ROOT = Path(__file__).resolve().parents[2]
TWO = 'default = 0\n[ranks.0]\ndevice = "cpu"\n[ranks.1]\ndevice = "cpu"\nthreads = 2\n'


@pytest.fixture(scope="module")
def ask() -> Plan:
    plan = compile_model(ROOT / "specs/ask.walk", ROOT / "generated/ask").plan
    assert plan is not None
    return plan


def linked(plan: Plan, toml: str = "", **overrides: Any) -> Linked:
    found, findings = attempt(plan, toml, overrides)
    assert found is not None, [d.message for d in findings]
    return found


def attempt(plan: Plan, toml: str, overrides: Any = None) -> tuple[Linked | None, tuple[Diagnostic, ...]]:
    report = Collector()
    placement = parse_placement(SourceFile("p.toml", toml), report) if toml else Placement()
    found = None if placement is None else link(plan, placement, ROOT / "generated/ask", report, overrides)
    return found, report.findings()


def refused(plan: Plan, toml: str) -> Diagnostic:
    found, findings = attempt(plan, toml)
    assert found is None
    assert len(findings) == 1, [d.message for d in findings]
    return findings[0]


def line_of(diagnostic: Diagnostic, toml: str) -> str:
    """The line of the placement that a finding points at."""
    span = diagnostic.primary.span
    assert span.file == "p.toml"
    return toml.encode()[span.start : span.end].decode()


# ------------------------------------------------------------------------------------------------------------- routes


def test_without_a_placement_all_is_on_rank_0(ask: Plan) -> None:
    found = linked(ask)
    assert [(r.rank, r.device, r.threads) for r in found.ranks] == [(0, "cpu", 0)]
    assert {walk.rank for walk in found.walks} == {0}
    assert [(s.source, s.sink, s.transport) for s in found.streams] == [(0, 0, "slot")]


def test_the_shipped_placements(ask: Plan) -> None:
    report = Collector()
    placement = read_placement(find_placement("2xcpu", ROOT / "specs"), report)
    assert placement is not None
    found = link(ask, placement, ROOT / "generated/ask", report)
    assert found is not None
    assert {walk.name: walk.rank for walk in found.walks} == {"read": 0, "hear": 0, "answer": 0, "speak": 1}
    assert [(s.name, s.source, s.sink, s.transport) for s in found.streams] == [("phrases", 0, 1, "shm")]
    assert [rank.label for rank in found.ranks] == ["llm, ears, scribe", "voice"]
    assert found.placement == "2xcpu"
    assert read_placement(find_placement("1xcpu", ROOT / "specs"), report) is not None
    assert not report.failed


def test_it_is_what_the_runtime_decodes(ask: Plan) -> None:
    found = linked(ask)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Linked) == found
    ops = {f"{n.name}.{o.name}": o for n in found.nodes for o in n.ops}
    assert (ops["llm.read"].params, ops["llm.read"].takes) == (["packed"], "rows:0")
    assert (ops["llm.step"].params, ops["llm.step"].takes) == (["scalar"], "const:1")
    assert (ops["ears.encode"].params, ops["ears.encode"].result_kinds) == (["plain"], ["row"])
    assert ops["scribe.read"].cross
    assert found.config["vocab"] == 49152
    samplers = {s.name: s for s in found.samplers}
    assert samplers["reply"].settings["temperature"] == "param:temperature"
    assert samplers["opener"].settings["suppress"][:2] == [1, 2]
    assert 220 in samplers["opener"].settings["suppress"]
    assert 220 not in samplers["scribbler"].settings["suppress"]
    assert found.streams[0].args == {"cut": "cut", "max": 64}
    assert found.modalities["chat"]["request"] == "chat"


def test_a_checkpoint_overrides_the_binding(ask: Plan) -> None:
    found = linked(ask, "", **{"llm.vocab_size": 300})
    assert found.config["vocab"] == 300
    assert next(n for n in found.nodes if n.name == "llm").config["vocab_size"] == 300
    assert linked(ask).config["vocab"] == 49152


def test_a_walk_of_externs_only_runs_beside_its_stream() -> None:
    plan = plan_of(
        parse_program(
            """mstarc.ir 1
model t
extern show(x: i64[]) -> (y: i64[])
node a: stateless { op f(x: i64[]) -> (y: i64[]) }
stream s: i64[] by fixed(size = 1) at_end partial capacity 4
walk w(%0 x: host i64[]) { %1 y: i64[] = invoke a.f(%0) send %1 to s }
walk u() { for %0 c: chunk(s, i64[]) in s { %1 y: host i64[] = extern show(%0) emit %1 as m } }
"""
        )
    )
    found = linked(plan, TWO + "[place]\na = 1\n")
    assert {walk.name: walk.rank for walk in found.walks} == {"w": 1, "u": 1}


OPS = """mstarc.ir 1
model t
config h = 5
param p: int low 1 high 9 = 3
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c on kv max 4 * config.h
node a: transformer on kv {{ op f(x: f32[dim.N, 2], ids: i64[dim.T]) -> (y: f32[2]) {{ attend full positions seq takes {takes} }} }}
stream s: i64[] by fixed(size = config.h) at_end partial capacity {capacity}
walk w(%0 x: host i64[]) {{ send %0 to s }}
"""


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ("dim.T", "rows:1"),
        ("dim.N + 2", {"op": "+", "of": [{"rows": [0, 0]}, 2]}),
        ("config.h", "const:5"),
    ],
)
def test_takes(takes: str, expected: object) -> None:
    found = linked(plan_of(parse_program(OPS.format(takes=takes, capacity="9"))))
    assert found.nodes[0].ops[0].takes == expected
    assert found.contexts[0].max == 20
    assert found.streams[0].args == {"size": 5}


def test_a_context_without_a_bound_is_refused() -> None:
    text = OPS.format(takes="dim.T", capacity="9").replace("context c on kv max 4 * config.h", "context c on kv")
    found, findings = attempt(plan_of(parse_program(text)), "")
    assert found is None
    assert [d.rule.code for d in findings] == ["MC504"]
    assert "context `c` has no `max`" in findings[0].message


@pytest.mark.parametrize(
    ("takes", "expected"),
    [
        ("2 * dim.N", 12),
        ("dim.N - 3", 3),
        ("dim.T - dim.N", -2),
        ("dim.N + 2 * config.h", 16),
        ("dim.N // 4 + param.p", 10),
    ],
)
def test_takes_are_counted_in_each_call(takes: str, expected: int) -> None:
    found = linked(plan_of(parse_program(OPS.format(takes=takes, capacity="9"))))
    op = found.nodes[0].ops[0]
    values = {"N": np.zeros((6, 2)), "T": [1, 2, 3, 4]}
    assert evaluate(op.takes, SimpleNamespace(p=9), None, [values["N"], values["T"]]) == expected


def test_takes_of_a_length_that_no_argument_has_are_refused() -> None:
    found, findings = attempt(plan_of(parse_program(OPS.format(takes="dim.Z", capacity="9"))), "")
    assert found is None
    assert [d.rule.code for d in findings] == ["MC607"]
    assert "not built yet: op `f` needs `Z`, which no argument has as a dim" in findings[0].message


def test_positions_and_their_advance() -> None:
    text = OPS.format(takes="dim.T", capacity="9")
    text = text.replace(
        "positions seq takes dim.T", "positions at at [0, param.p] advance param.p + config.h takes dim.T"
    )
    op = linked(plan_of(parse_program(text))).nodes[0].ops[0]
    assert (op.positions, op.at) == ("at", [0, {"param": "p"}])
    assert evaluate(op.advance, SimpleNamespace(p=3)) == 8


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ("9", 9),
        ("param.p + 4", "param:p+4"),
        ("config.h + 1 + param.p", "param:p+6"),
        ("2 * param.p", {"op": "*", "of": [2, {"param": "p"}]}),
    ],
)
def test_capacities(capacity: str, expected: int | str) -> None:
    found = linked(plan_of(parse_program(OPS.format(takes="dim.T", capacity=capacity))))
    assert found.streams[0].capacity == expected


# ------------------------------------------------------------------------------------------------------------- faults


def test_a_name_that_the_model_lacks(ask: Plan) -> None:
    toml = TWO + "[place]\nvoise = 1\n"
    found = refused(ask, toml)
    assert (found.rule.code, found.help) == ("MC606", "did you mean `voice`?")
    assert line_of(found, toml) == "voise = 1"


def test_a_walk_on_two_ranks(ask: Plan) -> None:
    toml = TWO + "[place]\nears = 1\n"
    found = refused(ask, toml)
    assert found.rule.code == "MC605"
    assert "walk `hear` is split over ranks 0 and 1" in found.message
    assert found.help == "not built yet: a walk on several ranks; place every op of walk `hear` on one rank"
    assert line_of(found, toml) == "ears = 1"


@pytest.mark.parametrize(
    ("toml", "code", "line"),
    [
        (TWO + "[place]\nvoice = 2\n", "MC606", "voice = 2"),
        (TWO + "[place]\nvoice = true\n", "MC606", "voice = true"),
        (TWO + "[place]\nvoice = [0, 1]\n", "MC607", "voice = [0, 1]"),
        (TWO.replace("default = 0", "default = 4"), "MC601", "default = 4"),
        ('[ranks.0]\ndevice = "tpu"\n', "MC607", 'device = "tpu"'),
        ("[ranks.0]\nthreads = -1\n", "MC608", "threads = -1"),
        ("[ranks.0]\ncores = 1\n", "MC608", "cores = 1"),
        ("[rank.0]\n", "MC608", None),
        ("ranks = 3\n", "MC608", "ranks = 3"),
        ("[ranks.x]\n", "MC608", "[ranks.x]"),
        ("[ranks.0]\n[ranks.00]\n", "MC609", "[ranks.00]"),
        ("[ranks.0]\n[ranks.0]\n", "MC608", None),
        ("[ranks.0]\n[ranks.2]\n", "MC609", "[ranks.2]"),
        ("[place\n", "MC608", "[place"),
        ("place = 3\n", "MC608", "place = 3"),
    ],
)
def test_placements_that_cannot_be(ask: Plan, toml: str, code: str, line: str | None) -> None:
    found = refused(ask, toml)
    assert found.rule.code == code
    if line is not None:
        assert line_of(found, toml) == line


def test_a_context_on_two_ranks() -> None:
    plan = plan_of(
        parse_program(
            """mstarc.ir 1
model t
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c on kv max 8
node a: transformer on kv { op f(x: i64[]) -> (y: f32[2]) { attend full positions seq takes 1 } }
node b: transformer on kv { op f(x: i64[]) -> (y: f32[2]) { attend full positions seq takes 1 } }
walk w(%0 x: host i64[]) { _ = invoke a.f(%0) writes c }
walk u(%0 x: host i64[]) { _ = invoke b.f(%0) writes c }
request r(%0 x: host i64[]) -> () { call w(%0) call u(%0) }
"""
        )
    )
    toml = TWO + "[place]\nb = 1\n"
    found = refused(plan, toml)
    assert (found.rule.code, found.message) == ("MC607", "context `c` is used on ranks 0 and 1")
    assert line_of(found, toml) == "b = 1"


def test_what_ranks_share_is_told_at_the_placement_with_its_walks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context, a sampler with a history, and the end of a stream."""
    (tmp_path / "m.walk").write_text(
        "model m\n"
        "cache kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)\n"
        "context c on kv max 9\n"
        "sampler s { repetition_penalty = 2 }\n"
        "stream t : i64  by fixed(size = 1)  capacity 4\n"
        "node a : transformer(kv) { op f(x: i64) -> y: f32[9] { attend full  positions seq } }\n"
        "node b : transformer(kv) { op f(x: i64) -> y: f32[9] { attend full  positions seq } }\n"
        "node d : stateless { op f(x: i64) -> y: i64 }\n"
        "walk w(x: i64) { send sample(s, a.f(x)) -> t }\n"
        "walk u(x: i64) { send sample(s, b.f(x)) -> t }\n"
        "walk v() { for i in t { emit d.f(i) as scalar } }\n"
        "request r(x: i64) -> scalar { together { one: w(x)  two: v() } }\n"
        "request q(x: i64) -> scalar { together { one: u(x)  two: v() } }\n"
        "request p(x: i64) -> scalar { w(x)  together { one: u(x)  two: v() } }\n"
    )
    (tmp_path / "m.yaml").write_text("components: {a: pack.A, b: pack.B, d: pack.D}\n")
    (tmp_path / "p.toml").write_text(TWO + "[place]\nb = 1\n")
    assert main(["compile", str(tmp_path / "m.walk"), "-o", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    assert main(["plan", str(tmp_path / "out"), "--placement", str(tmp_path / "p.toml")]) == 1
    told = capsys.readouterr().err
    for what in ("context `c` is used on", "sampler `s` is used on", "stream `t` is sent on from"):
        frame = told.split(f"error[MC607]: {what} ranks 0 and 1\n")[1].split("error[")[0]
        assert "b = 1" in frame.split(":::")[0] and "^^^^^" in frame.split(":::")[0]
        walks = [line.split("|")[1].strip() for line in frame.split(":::")[1].splitlines() if "| walk" in line]
        assert walks == [
            "walk w(x: i64) { send sample(s, a.f(x)) -> t }",
            "walk u(x: i64) { send sample(s, b.f(x)) -> t }",
        ]
        assert "on rank 0" in frame and "on rank 1" in frame


def test_a_placement_that_is_not_there(tmp_path: Path) -> None:
    report = Collector()
    assert read_placement(tmp_path / "no.toml", report) is None
    assert [d.rule.code for d in report.findings()] == ["MC012"]
