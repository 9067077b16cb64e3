"""Packages that were edited by hand: MC016 at the place, with what the spec gives there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mstarc.cli import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("orpheus.walk", "orpheus.yaml"):
        shutil.copy(ROOT / "specs" / name, tmp_path / name)
    assert main(["compile", str(tmp_path / "orpheus.walk"), "-o", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def told(package: Path, file: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The finding, the line it points at, and its notes and helps."""
    capsys.readouterr()
    assert main(["plan", str(package)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error[MC016]: ") and f"{package / file}:" in lines[1]
    number = int(lines[1].split(":")[-2])
    assert not lines[-1].startswith("Traceback")
    return [lines[0], (package / file).read_text().splitlines()[number - 1].strip(), *lines]


def swap(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return edit


@pytest.mark.parametrize(
    ("edit", "says", "line", "due"),
    [
        (swap('"type": "f32[config.vocab]"', '"type": "f32["'), "an expression is due", '"type": "f32["', '"f32[config.vocab]"'),
        (swap('"frozen": false', '"frozen": 0'), "Expected `bool`, got `int`", '"frozen": 0,', "`false`"),
        (swap('"config.layers"', '"config.layers +"'), "an expression is due", '"layers": "config.layers +",', '`"config.layers"`'),
        (swap('"head_dim": "', '"head_dims": "'), "missing required field `head_dim`", "{", '`{"head_dim":'),
    ],
)  # fmt: skip
def test_an_edit_is_told_where_it_is_and_what_was_to_be_there(
    edit: Callable[[str], str], says: str, line: str, due: str, package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = package / "plan.json"
    plan.write_text(edit(plan.read_text()))
    finding, place, *lines = told(package, "plan.json", capsys)
    assert says in finding and place == line
    assert any(each.strip().startswith("= note: the spec gives") and due in each for each in lines)
    assert any(f"mstarc compile {package.parent / 'orpheus.walk'} -o {package}" in each for each in lines)


def test_a_plan_on_one_line_is_told_by_its_columns(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = package / "plan.json"
    text = json.dumps(json.loads(plan.read_text())).replace('"type": "f32[config.vocab]"', '"type": "f32["', 1)
    plan.write_text(text)
    _, _, *lines = told(package, "plan.json", capsys)
    assert lines[1].endswith(f"plan.json:1:{text.index(json.dumps('f32[')) + 1}")


def test_a_plan_that_is_cut_short(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = package / "plan.json"
    plan.write_text(plan.read_text()[:3000])
    finding, *_ = told(package, "plan.json", capsys)
    assert "is not a plan" in finding and "(char 3000)" in finding


def test_without_its_spec_it_is_told_what_is_wrong_and_no_more(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package.parent / "orpheus.walk").unlink()
    plan = package / "plan.json"
    plan.write_text(plan.read_text().replace('"type": "f32[config.vocab]"', '"type": "f32["', 1))
    finding, _, *lines = told(package, "plan.json", capsys)
    assert "an expression is due" in finding
    assert not any("the spec gives" in each for each in lines) and any("compile SPEC -o" in each for each in lines)
