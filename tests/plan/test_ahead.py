"""`[ahead]` of a placement: what it does to launches, and where it asks for what cannot be undone (MC208)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.codegen.package import compile_model
from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.plan.link import link
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement, parse_placement
from mstarc.plan.region_rows import region_rows
from mstarc.source import SourceFile
from mstarc_runtime.abi.linked import Linked

MODEL = """model t
cache kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context main, copy on kv max 99
sampler pick { temperature = 1 }
extern look(x: i64) -> i64
node a : stateless {
    op f(x: i64) -> y: i64
    op slow(x: i64) -> y: i64  { async off }
}
node kept : stateless { state seen: i64 = 0  op f(x: i64) -> y: i64 }
node llm : transformer(kv) { op step(x: i64) -> logits: f32[9] { attend causal  positions seq } }
stream s : i64 by fixed(size = 1) capacity 8
walk w(x: i64) {
    loop go max 20 carry x {
        ABOVE
        stop when x == 3
        BELOW
        emit x as scalar
        send x -> s
        x = sample(pick, llm.step(x) writes main)
    }
}
walk u() { for x in s { emit a.f(x) as tensor } }
request r(x: i64) -> scalar, tensor {
    together {
        one: w(x)
        two: u()
    }
}
"""


def planned(folder: Path, above: str = "", below: str = "", model: str = MODEL) -> Plan:
    text = model.replace("ABOVE", above).replace("BELOW", below)
    (folder / "t.walk").write_text(text, encoding="utf-8")
    (folder / "t.yaml").write_text(
        "components: {a: p.A, kept: p.K, llm: p.L}\nexterns: {look: p.look}\n", encoding="utf-8"
    )
    compiled = compile_model(folder / "t.walk", folder / "out")
    assert compiled.plan is not None, [d.message for d in compiled.model.checked.findings]
    return compiled.plan


def attempt(plan: Plan, toml: str, folder: Path) -> tuple[Linked | None, tuple[Diagnostic, ...]]:
    report = Collector()
    placement = parse_placement(SourceFile("p.toml", toml), report)
    found = None if placement is None else link(plan, placement, folder / "out", report)
    return found, report.findings()


def refused(plan: Plan, toml: str, folder: Path) -> Diagnostic:
    found, findings = attempt(plan, toml, folder)
    assert found is None
    assert len(findings) == 1, [d.message for d in findings]
    return findings[0]


EFFECTS = [
    ("emit look(x) as scalar", "extern `look` runs on the host"),
    ("emit a.slow(x) as scalar", "`a.slow` says `async off`"),
    ("emit kept.f(x) as scalar", "`kept` keeps `seen` from call to call"),
    ("fork copy from main", "`fork copy` replaces a context"),
    ("drop copy", "`drop` empties `copy`"),
    ("loop in_it max 4 carry y = x { y = a.f(y)  stop when y == 2 }", "loop `in_it` inside it ends on a device value"),
]


@pytest.mark.parametrize(("effect", "reason"), EFFECTS)
def test_an_effect_above_the_check(effect: str, reason: str, tmp_path: Path) -> None:
    found = refused(planned(tmp_path, above=effect), '[ahead]\n"w.go" = 2\n', tmp_path)
    assert found.rule.code == "MC208"
    assert "loop `w.go` may not begin 2 iterations before it is known that it has ended" in found.message
    assert reason in found.message
    [label] = found.secondary
    assert label.text in found.message
    text = (tmp_path / "t.walk").read_bytes()
    assert text[label.span.start : label.span.end].decode() == effect, "the label is the effect, in the spec"


@pytest.mark.parametrize(("effect", "reason"), EFFECTS)
def test_an_effect_below_the_check(effect: str, reason: str, tmp_path: Path) -> None:
    """It is sound to run ahead as far as the check, and nobody does."""
    found = refused(planned(tmp_path, below=effect), '[ahead]\n"w.go" = 2\n', tmp_path)
    assert found.rule.code == "MC607"
    assert [reason in label.text for label in found.secondary] == [True]


@pytest.mark.parametrize(("effect", "reason"), EFFECTS)
def test_a_loop_that_nobody_asks_does_not_run_ahead(effect: str, reason: str, tmp_path: Path) -> None:
    plan = planned(tmp_path, above=effect)
    for toml in ("[ranks.0]\n", '[ahead]\n"w.go" = 0\n'):
        found, _ = attempt(plan, toml, tmp_path)
        assert found is not None
        [row] = [row for row in region_rows(plan, found) if row.loop == "w.go"]
        assert row.ahead == "no" and reason in row.note
        assert next(loop for loop in found.loops if loop.label == "go").ahead == 0


def test_effects_that_are_held_or_cut_back_are_none(tmp_path: Path) -> None:
    """Emissions, sends, draws and writes above a check do no harm."""
    plan = planned(
        tmp_path, above="emit x as scalar\ncollect x as seen", model=MODEL.replace("\n        emit x as scalar", "")
    )
    for most in (1, 5, None):
        found, findings = attempt(plan, f'[ahead]\n"w.go" = {most}\n' if most else "", tmp_path)
        assert found is not None, [d.message for d in findings]
        [loop] = found.loops
        assert (loop.ahead, loop.rollback) == (most, ["main", "pick"])
        [row] = region_rows(plan, found)
        assert row.ahead == (f"at most {most}: main, pick cut back" if most else "yes: main, pick cut back")


def test_a_launch_of_more_steps_than_may_run_ahead_is_none(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        model=MODEL.replace("by fixed(size = 1) capacity 8", "by fixed(size = 4) at_end drop capacity 8")
        .replace(
            "op f(x: i64) -> y: i64\n    op slow",
            "op f(x: i64) -> y: i64\n    op four(x: i64[4]) -> y: i64\n    op slow",
        )
        .replace("emit a.f(x)", "emit a.four(x)"),
    )
    for most, unroll in ((None, 4), (3, 4), (2, 1), (0, 1)):
        found, findings = attempt(plan, "" if most is None else f'[ahead]\n"w.go" = {most}\n', tmp_path)
        assert found is not None, [d.message for d in findings]
        [loop] = found.loops
        assert (loop.unroll, bool(loop.fused)) == (unroll, unroll == 4)


def test_names_and_numbers(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    found = refused(plan, '[ahead]\n"w.gone" = 2\n', tmp_path)
    assert (found.rule.code, found.help) == ("MC606", "did you mean `w.go`?")
    for value in ("-1", "true", "1.5", '"a"', "99999999"):
        assert refused(plan, f'[ahead]\n"w.go" = {value}\n', tmp_path).rule.code == "MC608"
    table = refused(plan, "[ahead]\nw.go = 2\n", tmp_path)
    assert (table.rule.code, table.help) == ("MC608", 'a loop is named in quotes: "w.LOOP"')
    assert refused(plan, "ahead = 3\n", tmp_path).rule.code == "MC608"


def test_a_loop_without_a_check_has_nothing_to_run_ahead_of(tmp_path: Path) -> None:
    plan = planned(tmp_path, model=MODEL.replace("stop when x == 3", "stop when iter == 3"))
    found = refused(plan, '[ahead]\n"w.go" = 2\n', tmp_path)
    assert found.rule.code == "MC606" and "its end is known before it starts" in found.message


def test_the_finding_without_the_spec_that_it_was_made_from(tmp_path: Path) -> None:
    plan = planned(tmp_path, above="drop copy")
    (tmp_path / "t.walk").write_text("model other\n", encoding="utf-8")
    found = refused(plan, '[ahead]\n"w.go" = 1\n', tmp_path)
    assert found.secondary == () and found.notes == (
        "line 15 of t.walk: `drop` empties `copy`, which no length brings back",
    )


def test_nothing_is_asked() -> None:
    assert Placement().ahead == {}
