"""Dims against numbers: where the binding or a checkpoint gives the value of a config, it is compared; without, it stays a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.codegen.package import compile_model
from mstarc.diagnostics.core import Collector
from mstarc.frontend import load_text
from mstarc.plan.link import link
from mstarc.plan.placement import Placement
from mstarc.workspace import load_model

HEAD = """model m
config {{ d = eye.d  side = eye.side  twice = 2 * d }}
node eye : stateless {{ op see(x: f32[side, side]) -> y: f32[n, d]  op show(y: f32[n, {due}]) -> z: f32[n] }}
"""
SHOW = "walk w(x: f32[side, side]) {{ emit eye.show(eye.see(x)) as tensor }}\nrequest r(x: f32[{given}]) -> tensor {{ w(x) }}\n"
BINDING = """config: { eye: { d: 64, side: 8 } }
components: { eye: { class: pack.parts.Eye, checkpoint: big } }
checkpoints: { big: { path: nowhere } }
"""


def spec(due: str = "d", given: str = "8, 8") -> str:
    return HEAD.format(due=due) + SHOW.format(given=given)


def messages(folder: Path, text: str, binding: str = BINDING) -> list[tuple[str, str]]:
    path = folder / "m.walk"
    path.write_text(text, encoding="utf-8")
    (folder / "m.yaml").write_text(binding, encoding="utf-8")
    return [(d.rule.code, d.message) for d in load_model(path).checked.findings if d.rule.severity == "error"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (spec(due="65"), "`d` is 64 by m.yaml, 65 here"),
        (spec(given="8, 9"), "`side` is 8 by m.yaml, 9 here"),
        (spec(due="d // 2 + 3").replace("f32[n, d]", "f32[n, 36]"), "`d // 2 + 3` is 35 by m.yaml, 36 here"),
        (spec(due="twice").replace("f32[n, d]", "f32[n, 130]"), "`twice` is 128 by m.yaml, 130 here"),
        (
            spec().replace("emit eye", "emit noise(f32[side]) + noise(f32[9]) as tensor emit eye"),
            "`side` is 8 by m.yaml",
        ),
    ],
)
def test_numbers_that_the_binding_gives(tmp_path: Path, text: str, told: str) -> None:
    found = messages(tmp_path, text)
    assert [code for code, _ in found] == ["MC007"] and told in found[0][1], found


@pytest.mark.parametrize("due", ["d", "64", "8 * 8", "n2"])
def test_what_agrees_or_is_open_is_clean(tmp_path: Path, due: str) -> None:
    assert messages(tmp_path, spec(due=due)) == []


def test_without_numbers_a_config_stays_a_name() -> None:
    program, report, _ = load_text("m.walk", spec(due="65"))
    assert program is not None and not report.failed


def test_two_configs_are_not_equal_by_chance(tmp_path: Path) -> None:
    """Both are 64 here, and not in the next checkpoint."""
    found = messages(tmp_path, spec(due="side"), BINDING.replace("side: 8", "side: 64"))
    assert "MC007" in [code for code, _ in found]


def test_a_checkpoint_has_its_own_numbers(tmp_path: Path) -> None:
    """A package made for 64 does not link with a checkpoint of 32, where the spec says 64 as a number."""
    assert messages(tmp_path, spec(due="64")) == []
    package = tmp_path / "generated"
    package.mkdir()
    plan = compile_model(tmp_path / "m.walk", package).plan
    assert plan is not None
    for value, told in ((64, []), (32, ["`d` is 32 by checkpoint `big`, 64 here"])):
        report = Collector()
        linked = link(plan, Placement(), package, report, {"eye.d": value})
        assert (linked is None) == bool(told)
        assert [d.message.partition(": `d`")[2] for d in report.findings()] == [t.removeprefix("`d`") for t in told]
