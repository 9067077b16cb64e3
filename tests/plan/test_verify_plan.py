"""The independent checker: plans of sound programs hold, an edit that makes a plan say something else is refused, no code is shared."""

from __future__ import annotations

import ast
import functools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mstarc import __version__
from mstarc.cli.guard import Failure
from mstarc.cli.packages import link_package
from mstarc.codegen.package import compile_model
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Invoke, Program
from mstarc.ir.errors import PassFailed
from mstarc.ir.text import parse_program
from mstarc.ir.visit import every_op
from mstarc.passes.pipeline import find_pass, run_pass
from mstarc.plan.faults import report_faults
from mstarc.plan.layout import Layout, layouts_of
from mstarc.plan.link import link
from mstarc.plan.model import Plan, read_plan
from mstarc.plan.moves import Move, moves_of
from mstarc.plan.placement import Placement, RankPlace, parse_placement
from mstarc.plan.rules import MC610
from mstarc.plan.verify import Fault, verify_linked, verify_moves, verify_plan
from mstarc.source import SourceFile
from mstarc_runtime.abi.linked import Linked
from tests.codegen.harness import plan_of
from tests.interp.random_programs import Generator

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [*sorted(ROOT.glob("generated/*/plan.json")), ROOT / "examples/hello/generated/plan.json"]
FOLDER = ROOT / "mstarc/plan/verify"
SEEDS = range(60)


@functools.cache
def random_program(seed: int) -> Program:
    return parse_program(Generator(seed, sound=seed % 2 == 0, chains=seed % 3 == 0).text())


def codes(faults: Iterator[Fault] | tuple[Fault, ...]) -> set[str]:
    return {fault.rule.code for fault in faults}


# ----------------------------------------------------------------------------------------------------------- what holds


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: path.parent.name)
def test_plans_of_the_shipped_specs_hold(path: Path) -> None:
    assert verify_plan(read_plan(path.parent)) == ()


def test_plans_of_random_programs_hold() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        plan = plan_of(random_program(seed))
        assert verify_plan(plan) == (), seed
        loops = [loop for walk in plan.walks for loop in walk.loops]
        seen.update(region=sum(bool(loop.region) for loop in loops), whole=sum(loop.whole for loop in loops))
        seen.update(ahead=sum(loop.ahead and loop.checks > 0 for loop in loops))
        seen.update(phases=sum(len(loop.phases) > 1 for loop in loops))
    assert all(seen[kind] > 5 for kind in ("region", "whole", "ahead", "phases")), seen


def spread(program: Program, seed: int, ranks: int) -> Placement:
    """Every call on a rank of its own choice."""
    draw = random.Random(seed)
    calls = {walk.name: [op for op in every_op(walk.body) if isinstance(op, Invoke)] for walk in program.walks}
    walks = {
        name: {value.name: (draw.randrange(ranks),) for op in ops for value in op.results if value is not None}
        for name, ops in calls.items()
    }
    place = {f"{node.name}.{op.name}": (draw.randrange(ranks),) for node in program.nodes for op in node.ops}
    return Placement(ranks=(RankPlace(),) * ranks, place=place, walks=walks)


@functools.cache
def planned(seed: int) -> tuple[dict[str, Layout], list[Move]]:
    """The layouts of a random program on 2 or 3 ranks, and its moves."""
    program = random_program(seed)
    layouts = layouts_of(plan_of(program), spread(program, seed, 2 + seed % 2))
    return layouts, moves_of(layouts)


def test_moves_of_random_programs_on_random_ranks_are_matched() -> None:
    kinds: Counter[str] = Counter()
    for seed in SEEDS:
        layouts, moves = planned(seed)
        kinds.update(move.kind for move in moves)
        assert list(verify_moves(layouts, moves)) == [], seed
    assert all(kinds[kind] > 10 for kind in ("value", "kv", "exit")), kinds


def test_it_shares_no_code_with_what_it_checks() -> None:
    """But the IR, the tables of a plan, their text form, and the formulas of the language."""
    allowed = ("mstarc.ir.", "mstarc.diagnostics", "mstarc.plan.verify", "mstarc_runtime.abi.")
    plain = {"mstarc.plan.model", "mstarc.plan.rules", "mstarc.plan.evaluate"}
    for path in FOLDER.glob("*.py"):
        for node in ast.parse(path.read_text()).body:  # below `if TYPE_CHECKING` stand types alone
            name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert not name.startswith("mstarc") or name.startswith(allowed) or name in plain, f"{path.name}: {name}"
    model = ast.parse((ROOT / "mstarc/plan/evaluate.py").read_text()).body
    assert not [n for n in model if isinstance(n, ast.ImportFrom) and "passes" in (n.module or "")]


# ------------------------------------------------------------------------------------------------------------- mutants

Edit = Callable[[random.Random, Any], None]
EDITS: dict[str, tuple[Edit, str]] = {}


class NoPlace(Exception):
    """A plan has no place for an edit."""


def edit(code: str) -> Callable[[Edit], Edit]:
    """Enter an edit of a plan's tree under its name, with a code that it may be refused with."""

    def entered(change: Edit) -> Edit:
        EDITS[change.__name__] = (change, code)
        return change

    return entered


def one(draw: random.Random, rows: list[Any]) -> Any:
    if not rows:
        raise NoPlace
    return draw.choice(rows)


def a_walk(draw: random.Random, plan: Any) -> Any:
    return one(draw, [walk for walk in plan["walks"] if len(walk["body"]) > 2])


def a_loop(draw: random.Random, plan: Any, wanted: Callable[[Any], bool] = lambda loop: True) -> Any:
    return one(draw, [loop for walk in plan["walks"] for loop in walk["loops"] if wanted(loop)])


def a_fusion(draw: random.Random, plan: Any) -> Any:
    return one(draw, [row for row in plan["fusions"] if not row["apart"]])


@edit("MC610")
def a_step_before_its_input(draw: random.Random, plan: Any) -> None:
    body = one(draw, [w["body"] for w in plan["walks"] if any(" = invoke " in line for line in w["body"])])
    at = one(draw, [k for k, line in enumerate(body) if " = invoke " in line])
    ident = body[at].split("%")[1].split()[0]
    readers = [
        k for k in range(at + 1, len(body)) if f"%{ident}" in body[k].replace(",", " ").replace(")", " ").split()
    ]
    body[one(draw, readers)] = f"  emit %{900 + at} as tensor"


@edit("MC610")
def a_value_made_twice(draw: random.Random, plan: Any) -> None:
    body = a_walk(draw, plan)["body"]
    at = one(draw, [k for k, line in enumerate(body) if " = invoke " in line and "_ = " not in line])
    body.insert(at, body[at])


@edit("MC610")
def a_name_that_is_not_declared(draw: random.Random, plan: Any) -> None:
    body = a_walk(draw, plan)["body"]
    at = one(draw, [k for k, line in enumerate(body) if " invoke " in line])
    body[at] = body[at].replace("(", "zz(", 1)


@edit("MC610")
def a_table_without_a_name(draw: random.Random, plan: Any) -> None:
    fields = ("nodes", "sends", "takes", "contexts", "samplers", "externs")
    names = one(draw, [walk[field] for walk in plan["walks"] for field in fields if walk[field]])
    names.remove(draw.choice(names))


@edit("MC610")
def a_table_with_a_name_too_many(draw: random.Random, plan: Any) -> None:
    walk = one(draw, plan["walks"])
    walk[draw.choice(("nodes", "sends", "takes", "contexts", "samplers", "externs"))].append("zz")


@edit("MC610")
def a_walk_before_that_there_is_not(draw: random.Random, plan: Any) -> None:
    one(draw, plan["walks"])["before"].append("zz")


@edit("MC610")
def a_chain_of_another_walk(draw: random.Random, plan: Any) -> None:
    one(draw, [chain for request in plan["requests"] for chain in request["chains"]])[0] = "zz?"


@edit("MC610")
def two_walks_exchanged(draw: random.Random, plan: Any) -> None:
    if len(plan["walks"]) < 2:
        raise NoPlace
    first, second = draw.sample(plan["walks"], 2)
    first["body"], second["body"] = second["body"], first["body"]


@edit("MC610")
def another_bound(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan)["bound"] = "12345"


@edit("MC610")
def another_kind_of_loop(draw: random.Random, plan: Any) -> None:
    loop = a_loop(draw, plan)
    loop["kind"] = "times" if loop["kind"] == "max" else "max"


@edit("MC610")
def a_loop_without_a_row(draw: random.Random, plan: Any) -> None:
    walk = one(draw, [walk for walk in plan["walks"] if walk["loops"]])
    walk["loops"].remove(draw.choice(walk["loops"]))


@edit("MC610")
def a_loop_with_two_rows(draw: random.Random, plan: Any) -> None:
    walk = one(draw, [walk for walk in plan["walks"] if walk["loops"]])
    walk["loops"].append(draw.choice(walk["loops"]))


@edit("MC610")
def a_check_more(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan)["checks"] += 1


@edit("MC208")
def ahead_of_what_lasts(draw: random.Random, plan: Any) -> None:
    loop = a_loop(draw, plan, lambda loop: loop["checks"] and any("async" not in bar["text"] for bar in loop["bars"]))
    loop.update(ahead=True, bars=[])


@edit("MC208")
def not_cut_back(draw: random.Random, plan: Any) -> None:
    rollback = a_loop(draw, plan, lambda loop: loop["ahead"] and loop["rollback"])["rollback"]
    rollback.remove(draw.choice(rollback))


@edit("MC610")
def cut_back_twice(draw: random.Random, plan: Any) -> None:
    rollback = a_loop(draw, plan, lambda loop: loop["ahead"] and loop["rollback"])["rollback"]
    rollback.append(draw.choice(rollback))


@edit("MC702")
def one_launch_of_a_loop_that_waits(draw: random.Random, plan: Any) -> None:
    reasons = ("extern", "it waits", "it can end", "forked")
    a_loop(draw, plan, lambda loop: any(r.startswith(reasons) for r in loop["apart"])).update(whole=True, apart=[])


@edit("MC702")
def one_launch_of_an_open_end(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan, lambda loop: loop["kind"] == "max")["whole"] = True


@edit("MC702")
def a_region_with_a_loop_in_it(draw: random.Random, plan: Any) -> None:
    for walk in plan["walks"]:
        for outer, inner in zip(walk["loops"], walk["loops"][1:], strict=False):
            depth = [next(line for line in walk["body"] if f"loop {x['label']} " in line) for x in (outer, inner)]
            if len(depth[1]) - len(depth[1].lstrip()) > len(depth[0]) - len(depth[0].lstrip()):
                outer["region"] = "zz"
                return
    raise NoPlace


@edit("MC610")
def a_region_that_carries_something_else(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan, lambda loop: loop["region"])["carry"].append("i64[]")


@edit("MC610")
def a_region_of_one_size_said_to_be_ragged(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan, lambda loop: loop["region"] and not loop["ragged"])["ragged"] = True


@edit("MC702")
def a_region_of_any_size(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan, lambda loop: loop["region"])["fixed"].append("f32[dim.T]")


@edit("MC702")
def a_host_value_in_a_region(draw: random.Random, plan: Any) -> None:
    walk = one(draw, [w for w in plan["walks"] if any(loop["region"] for loop in w["loops"])])
    label = next(loop["label"] for loop in walk["loops"] if loop["region"])
    start = next(k for k, line in enumerate(walk["body"]) if line.lstrip().startswith(f"loop {label} "))
    end = walk["body"].index(walk["body"][start].split("loop")[0] + "}", start)
    line = one(draw, [line for line in walk["body"][start:end] if " invoke " in line and "(_" not in line])
    node, op = line.split(" invoke ")[1].split("(")[0].split(".")
    ports = next(o["params"] for n in plan["nodes"] if n["name"] == node for o in n["ops"] if o["name"] == op)
    ports[0]["host"] = True


@edit("MC610")
def calls_of_a_phase_in_another_order(draw: random.Random, plan: Any) -> None:
    phases = [phase for walk in plan["walks"] for loop in walk["loops"] for phase in loop["phases"]]
    phase = one(draw, [phase for phase in phases if len(set(phase["calls"])) > 1])
    phase["calls"] = phase["calls"][1:] + phase["calls"][:1]


@edit("MC610")
def a_phase_less(draw: random.Random, plan: Any) -> None:
    a_loop(draw, plan, lambda loop: len(loop["phases"]) > 1)["phases"].pop()


@edit("MC610")
def a_step_more(draw: random.Random, plan: Any) -> None:
    a_fusion(draw, plan)["unroll"] += 1


@edit("MC610")
def a_firing_less(draw: random.Random, plan: Any) -> None:
    a_fusion(draw, plan)["firings"] -= 1


@edit("MC610")
def another_call_in_a_step(draw: random.Random, plan: Any) -> None:
    row = a_fusion(draw, plan)
    row["step_calls"] = [*row["step_calls"], "zz.zz"]


@edit("MC610")
def items_counted_otherwise(draw: random.Random, plan: Any) -> None:
    row = a_fusion(draw, plan)
    row["compacts"] = not row["compacts"]


@edit("MC610")
def a_launch_of_a_loop_elsewhere(draw: random.Random, plan: Any) -> None:
    a_fusion(draw, plan)["loop"] = "zz"


@edit("MC610")
def another_stride(draw: random.Random, plan: Any) -> None:
    row = a_fusion(draw, plan)
    stream = next(stream for stream in plan["streams"] if stream["name"] == row["stream"])
    for name in stream["args"]:
        if name in ("stride", "chunk") or stream["policy"] == "fixed":
            stream["args"][name] = str(int(stream["args"][name]) + 1)


def trees() -> list[Any]:
    plans = [read_plan(path.parent) for path in PACKAGES] + [plan_of(random_program(seed)) for seed in SEEDS]
    return [msgspec.to_builtins(plan) for plan in (*plans, plan_of(parse_program(FUSED)))]


FUSED = """mstarc.ir 1
model t
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c on kv max 100
sampler s(temperature = 1.0)
node a: transformer on kv { op step(x: i64[]) -> (y: f32[9]) { attend causal positions seq takes 1 } }
node b: stateless { op four(x: i64[4]) -> (y: f32[9]) }
stream q: i64[] by fixed(size = 4) at_end drop capacity 64
walk w(%0 x: i64[]) {
  loop go max 9 carry %1 t: i64[] = %0 then %3 -> %4 after: i64[] do {
    stop %1 == 3 with (%1)
    send %1 to q
    %2 y: f32[9] = invoke a.step(%1) writes c
    %3 n: i64[] = sample s(%2) site "n"
  }
}
walk u() { for %0 c: chunk(q, i64[4]) in q { %1 y: f32[9] = invoke b.four(%0) emit %1 as tensor } }
request r(%0 x: host i64[]) -> (tensor) { together { arm one { call w(%0) } arm two { call u() } } }
"""


@pytest.fixture(scope="module")
def whole_trees() -> list[Any]:
    return trees()


@pytest.mark.parametrize("name", sorted(EDITS))
def test_an_edited_plan_is_refused(name: str, whole_trees: list[Any]) -> None:
    change, code = EDITS[name]
    draw, refused = random.Random(name), 0
    found: set[str] = set()
    for tree in draw.sample(whole_trees, len(whole_trees)):
        changed = json.loads(json.dumps(tree))
        try:
            change(draw, changed)
        except NoPlace:
            continue
        faults = codes(verify_plan(msgspec.convert(changed, Plan)))
        assert faults, f"{tree['model']}: accepted"
        found |= faults
        refused += 1
        if refused == 12:
            break
    assert refused > 0 and code in found, (refused, found)


def test_there_are_many_edits() -> None:
    assert len(EDITS) >= 25


MOVES: dict[str, Callable[[random.Random, Move], tuple[Move, ...]]] = {
    "nothing is sent": lambda draw, move: (),
    "it is sent twice": lambda draw, move: (move, move),
    "it is sent from another rank": lambda draw, move: (replace(move, source=7),),
    "it is sent to another rank": lambda draw, move: (replace(move, sinks=(9,)),),
}


@pytest.mark.parametrize("name", sorted(MOVES))
@pytest.mark.parametrize("kind", ["value", "exit"])
def test_a_changed_move_is_refused(name: str, kind: str) -> None:
    draw, changed = random.Random(name), 0
    for seed in SEEDS:
        layouts, moves = planned(seed)
        places = [k for k, move in enumerate(moves) if move.kind == kind]
        if not places:
            continue
        at = draw.choice(places)
        broken = [*moves[:at], *MOVES[name](draw, moves[at]), *moves[at + 1 :]]
        assert codes(verify_moves(layouts, broken)) == {"MC602" if kind == "exit" else "MC610"}, seed
        changed += 1
    assert changed > 5


def test_a_value_sent_in_another_loop_or_only_sometimes_is_refused() -> None:
    layouts, moves = planned(2)
    values = [k for k, move in enumerate(moves) if move.kind == "value"]
    elsewhere = [replace(m, loop=m.loop + "x") if k == values[0] else m for k, m in enumerate(moves)]
    assert codes(verify_moves(layouts, elsewhere)) == {"MC610"}
    always = [k for k in values if not moves[k].when]
    sometimes = [replace(m, when="q") if k in always else m for k, m in enumerate(moves)]
    assert any("in any case" in fault.message for fault in verify_moves(layouts, sometimes))


def linked_fused(toml: str = "") -> tuple[dict[str, Layout], Linked]:
    report = Collector()
    text = "default = 0\n[ranks.0]\n[ranks.1]\n" + toml
    placement = parse_placement(SourceFile("p.toml", text), report)
    assert placement is not None
    plan = plan_of(parse_program(FUSED))
    found = link(plan, placement, Path("p"), report)
    assert found is not None, report.findings()
    return layouts_of(plan, placement), found


def test_a_link_holds_and_a_changed_one_does_not() -> None:
    together, apart = linked_fused(), linked_fused("[place]\nb = 1\n")
    for layouts, found in (together, apart):
        assert list(verify_linked(layouts, found)) == []
    assert (together[1].loops[0].unroll, apart[1].loops[0].unroll) == (4, 1)
    [launch] = verify_linked(apart[0], msgspec.structs.replace(apart[1], loops=together[1].loops))
    assert launch.rule.code == "MC701" and "`b.four` of it runs elsewhere" in launch.message
    faults = list(verify_linked(apart[0], msgspec.structs.replace(apart[1], streams=together[1].streams)))
    assert [f.message for f in faults] == ["stream `q` is taken from rank 1, and linked to rank 0"]
    [slot] = [msgspec.structs.replace(stream, transport="slot") for stream in apart[1].streams]
    [fault] = verify_linked(apart[0], msgspec.structs.replace(apart[1], streams=[slot]))
    assert fault.message == "stream `q` goes by `slot` between rank 0 and rank 1"


# ---------------------------------------------------------------------------------------------------- regions, by hand

HEAD = """mstarc.ir 1
model t
extern ask(x: i64[]) -> (y: i64[])
node a: stateless { op f(x: i64[]) -> (y: i64[]) }
stream p: i64[] by fixed(size = 1) at_end drop capacity 8
stream q: i64[] by fixed(size = 1) at_end drop capacity 8
"""


def said_to_be_one_launch(body: str, more: str = "") -> list[Fault]:
    text = f"{HEAD}walk w(%0 x: i64[]) {{\n  loop go times 4 carry %1 t: i64[] = %0 then %1 -> %9 u: i64[] do {{\n{body}\n  }}\n}}\n{more}"
    tree = msgspec.to_builtins(plan_of(parse_program(text)))
    loop = next(walk for walk in tree["walks"] if walk["name"] == "w")["loops"][0]
    assert not loop["whole"], "the planner knows better"
    loop["whole"] = True
    return list(verify_plan(msgspec.convert(tree, Plan)))


@pytest.mark.parametrize(
    ("body", "more", "code", "says"),
    [
        (
            "%2 y: i64[] = invoke a.f(%1) %3 z: host i64[] = extern ask(%2) %4 v: i64[] = invoke a.f(%3)",
            "",
            "MC701",
            "comes back",
        ),
        (
            "%2 y: i64[] = invoke a.f(%1) %3 z: host i64[] = extern ask(%0) %4 v: i64[] = invoke a.f(%3)",
            "",
            "MC702",
            "`ask`",
        ),
        ("%2 y: i64[] = invoke a.f(%1) %3 z: host i64[] = extern ask(%2)", "", "MC702", "`ask`"),
        (
            "send %1 to p %2 y: i64[] = next q",
            "walk v() { for %0 c: chunk(p, i64[]) in p { send %0 to q } }",
            "MC701",
            "w -> p -> v -> q -> w",
        ),
        (
            "send %1 to p %2 y: i64[] = next q",
            "walk v() { for %0 c: chunk(p, i64[]) in p { emit %0 as tensor } }\nwalk y(%0 x: i64[]) { send %0 to q }",
            "MC702",
            "waits for items of `q`",
        ),
    ],
)
def test_what_leaves_and_comes_back_and_what_only_leaves(body: str, more: str, code: str, says: str) -> None:
    [fault] = said_to_be_one_launch(body, more)
    assert (fault.rule.code, fault.subject) == (code, "w.go")
    assert says in fault.message
    assert fault.op.split()[0] in body


# ------------------------------------------------------------------------------------------------------------- at work


def test_a_pass_that_forms_a_region_of_everything_is_a_fault_of_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mstarc.passes import loop_regions

    monkeypatch.setattr(loop_regions._Body, "reasons", lambda self: iter(()))
    text = f"{HEAD}walk w(%0 x: i64[]) {{ loop go times 4 do {{ %1 y: host i64[] = extern ask(%0) }} }}\n"
    with pytest.raises(PassFailed, match=r"verify-plan.*\n.*MC702 region-impure: loop `w.go`.*extern `ask`"):
        run_pass(find_pass("verify-plan"), parse_program(text))
    (tmp_path / "m.walk").write_text(
        "model m\nextern ask(y: i64) -> i64\n"
        "walk w(x: i64) { loop go times 4 carry t = x { t = ask(t) } emit t as scalar }\n"
        "request r(x: i64) -> scalar { w(x) }\n"
    )
    with pytest.raises(PassFailed, match="MC702"):
        compile_model(tmp_path / "m.walk", tmp_path / "out")


def test_a_link_refuses_what_was_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "generated"
    shutil.copytree(ROOT / "examples/hello/generated", folder)
    path = folder / "plan.json"
    text = path.read_text()
    loop = next(loop for walk in json.loads(text)["walks"] for loop in walk["loops"])
    changed = text.replace(f'"checks": {loop["checks"]}', f'"checks": {loop["checks"] + 1}')
    assert changed != text
    path.write_text(changed)
    with pytest.raises(Failure, match="cannot be linked"):
        link_package(str(folder), None)
    said = capsys.readouterr().err
    assert "error[MC610]" in said and f"{path}:" in said and "write the package anew" in said


def test_whose_plan_it_is_is_said(tmp_path: Path) -> None:
    plan = plan_of(parse_program(FUSED))
    older = msgspec.structs.replace(plan, compiler="0.0.1")
    report = Collector()
    report_faults([Fault(MC610, "it is so", "w", "go")], older, tmp_path, tmp_path / "x.walk", report)
    [found] = report.findings()
    assert found.notes == (f"mstarc 0.0.1 wrote it, and this is {__version__}",)
