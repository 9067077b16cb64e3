"""A check that is remembered gives what a check gives, and is not remembered for long."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mstarc import remembered, workspace
from mstarc.checked import Checked
from mstarc.diagnostics.machine import to_json

MALFORMED = Path(__file__).parent / "malformed"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were really checked."""
    seen: list[str] = []
    load = workspace.load_model

    def noted(path: str) -> workspace.Model:
        seen.append(path)
        return load(path)

    monkeypatch.setattr(workspace, "load_model", noted)
    return seen


def _same(a: Checked, b: Checked) -> bool:
    return (
        a == b
        and list(a.sources) == list(b.sources)
        and to_json(a.findings, a.sources) == to_json(b.findings, b.sources)
    )


def test_findings_are_replayed_to_the_bit(runs: list[str]) -> None:
    first = remembered.check([MALFORMED])
    count = len(runs)
    assert count == len(list(MALFORMED.glob("*.walk"))) > 10
    second = remembered.check([MALFORMED])
    assert len(runs) == count, "nothing was checked again"
    assert _same(first, second) and _same(second, workspace.check([MALFORMED]))
    assert second.findings and second.exit_code() == 1


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in ("names_unknown.walk", "names_unknown.yaml"):
        shutil.copy(MALFORMED / name, tmp_path / name)
    return tmp_path / "names_unknown.walk"


@pytest.mark.parametrize("change", ["walk", "yaml", "no yaml", "compiler", "damage", "elsewhere"])
def test_any_change_is_a_new_check(model: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    remembered.check([model])
    beside = model.with_suffix(".yaml")
    match change:
        case "walk":
            model.write_text(model.read_text() + "# more\n")
        case "yaml":
            beside.write_text(beside.read_text() + "nodes: {}\n")
        case "no yaml":
            beside.unlink()
        case "compiler":
            monkeypatch.setattr(remembered, "compiler_digest", lambda: "another")
        case "damage":
            (entry,) = remembered.cache_folder().iterdir()
            entry.write_bytes(entry.read_bytes()[:-9])
        case "elsewhere":
            model = model.rename(model.with_name("renamed.walk"))
            beside.rename(model.with_suffix(".yaml"))
    assert _same(remembered.check([model]), workspace.check([model]))
    assert len(runs) == 3, "before, after, and to compare"
    remembered.check([model])
    assert len(runs) == 3, "the new findings are kept"


def test_what_cannot_be_read_or_written_is_checked_each_time(
    model: Path, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.write_bytes(b"\xff")
    assert [d.rule.code for d in remembered.check([model]).findings] == ["MC012"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shutil.copy(MALFORMED / "names_unknown.walk", model)
    for _ in range(2):
        assert _same(remembered.check([model]), workspace.check([model]))
    assert len(runs) == 5


def test_the_digest_follows_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(remembered, "__file__", str(tmp_path / "remembered.py"))
    one = remembered.compiler_digest()
    assert remembered.compiler_digest() == one
    (tmp_path / "a.py").write_text("x = 2\n")
    two = remembered.compiler_digest()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({one, two, remembered.compiler_digest()}) == 3


def test_two_processes_find_what_one_does(runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = workspace.check([MALFORMED])
    runs.clear()
    assert _same(remembered.check([MALFORMED], processes=2), one)
    assert 0 < len(runs) < len(one.sources) // 2, "the other process has checked the rest"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert _same(remembered.check([MALFORMED], processes=2), one), "nothing can be left for the other process"


def test_runs_side_by_side_agree(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mstarc", "check", str(MALFORMED), "--format", "json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
    outs = {process.communicate(timeout=120)[0] for process in running}
    assert len(outs) == 1 and {process.returncode for process in running} == {1}
    assert subprocess.run(command, capture_output=True, timeout=120).stdout == outs.pop()
    assert all(path.suffix == ".json" for path in remembered.cache_folder().iterdir()), "no half-written files stay"
