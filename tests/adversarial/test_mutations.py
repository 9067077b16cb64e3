"""Damaged specs, bindings and placements: findings or a program that links, never an internal error, never a hang."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from mstarc import workspace
from mstarc.codegen.package import compile_model, write_package
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.plan.link import link
from mstarc.plan.model import read_plan
from mstarc.plan.placement import Placement, read_placement
from tests.adversarial.mutations import mutated

ROOT = Path(__file__).resolve().parents[2]
SPECS = (ROOT / "specs/ask.walk", ROOT / "examples/hello/hello.walk")
PLACEMENTS = (ROOT / "specs/placements/1xcpu.toml", ROOT / "specs/placements/2xcpu.toml")
TEXTS_S = 5  # for one text: beyond it, it hangs


@contextmanager
def limited(what: str) -> Iterator[None]:
    """Fails if the block takes longer than TEXTS_S seconds."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"{what} took longer than {TEXTS_S} s")

    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(TEXTS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def model_links(folder: Path) -> str:
    """What becomes of the model in a folder: `refused`, `linked` or `not linked`, the last two after generated code compiled."""
    spec = next(folder.glob("*.walk"))
    found = workspace.load_model(spec)
    assert not [d.message for d in found.checked.findings if d.rule is rules.MC000]
    if found.failed:
        assert found.checked.findings
        return "refused"
    compiled = compile_model(spec, folder / "out")
    if not compiled.files:
        assert compiled.fault is not None or compiled.model.failed
        return "refused"
    write_package(compiled.files, folder / "out")
    for path in (folder / "out").glob("*.py"):
        compile(path.read_bytes(), str(path), "exec")
    report = Collector()
    linked = link(read_plan(folder / "out"), Placement(), folder / "out", report)
    assert (linked is None) == report.failed
    return "not linked" if linked is None else "linked"


def run_seeds(damage: Callable[[random.Random, Path, Path], None], folder: Path, kind: str) -> set[str]:
    """75 models, one after the other; the outcomes that came up."""
    outcomes = set()
    for seed in range(75):
        draw = random.Random(f"{kind} {seed}")
        spec = SPECS[seed % len(SPECS)]
        here = folder / str(seed)
        here.mkdir()
        damage(draw, spec, here)
        with limited(f"{kind} {seed}"):
            outcomes.add(model_links(here))
    return outcomes


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("kind", [".walk", ".yaml"])
def test_models(kind: str, half: int, tmp_path: Path) -> None:
    """150 of each kind."""

    def damage(draw: random.Random, spec: Path, here: Path) -> None:
        for path in (spec, spec.with_suffix(".yaml")):
            data = path.read_bytes()
            (here / path.name).write_bytes(mutated(draw, data) if path.suffix == kind else data)

    assert {"refused", "linked"} <= run_seeds(damage, tmp_path, f"{kind} {half}")


def test_placements(tmp_path: Path) -> None:
    """150 times."""
    package = ROOT / "generated/ask"
    plan = read_plan(package)
    refused = 0
    for seed in range(150):
        draw = random.Random(f"toml {seed}")
        path = tmp_path / "placement.toml"
        path.write_bytes(mutated(draw, draw.choice(PLACEMENTS).read_bytes()))
        report = Collector()
        with limited(f"toml {seed}"):
            placed = read_placement(path, report)
            linked = None if placed is None else link(plan, placed, package, report)
        assert (linked is None) == report.failed, seed
        refused += linked is None
    assert 0 < refused < 150


@pytest.mark.parametrize("value", ["text", "1343text", ".nan", "1.5", "true", "[[x]]"])
def test_a_list_of_token_ids_that_holds_something_else(value: str, tmp_path: Path) -> None:
    """A text among the ids once made the linker recurse without end."""
    text = (ROOT / "specs/ask.yaml").read_text(encoding="utf-8")
    (tmp_path / "ask.yaml").write_text(text.replace("1303, 1343,", f"1303, {value},"), encoding="utf-8")
    (tmp_path / "ask.walk").write_bytes((ROOT / "specs/ask.walk").read_bytes())
    with limited(value):
        assert model_links(tmp_path) in ("refused", "not linked")
