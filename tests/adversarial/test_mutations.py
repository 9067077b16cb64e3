"""Damaged specs, bindings, placements and packages: findings or a program that links, never a traceback, never a hang.

`python -m tests.adversarial.many models` (or `packages`) runs more of the same cases.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.plan.link import link
from mstarc.plan.model import read_plan
from mstarc.plan.placement import read_placement
from tests.adversarial.damage import ROOT, damaged_model, damaged_package, limited, model_becomes
from tests.adversarial.mutations import mutated

MODELS = 500
PACKAGES = 64
PLACEMENTS = (ROOT / "specs/placements/1xcpu.toml", ROOT / "specs/placements/2xcpu.toml")


@pytest.mark.parametrize("part", range(10))
def test_models(part: int, tmp_path: Path) -> None:
    outcomes = set()
    for number in range(part * MODELS // 10, (part + 1) * MODELS // 10):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes.add(damaged_model(number, folder))
    assert {"refused", "linked"} <= outcomes


@pytest.mark.parametrize("part", range(4))
def test_packages(part: int, tmp_path: Path) -> None:
    outcomes = set()
    for number in range(part * PACKAGES // 4, (part + 1) * PACKAGES // 4):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcomes.add(damaged_package(number, folder))
    assert "refused" in outcomes


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
    assert model_becomes("ask.walk", tmp_path) in ("refused", "not linked")
