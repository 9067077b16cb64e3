"""What a fault of mstarc leaves behind, and that the command it names shows the fault again."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.passes import checks, pipeline
from mstarc.passes.pipeline import Rewrite
from tests.cli.conftest import HELLO, ROOT, Command


def _explode(*_: object) -> Program:
    raise KeyError("deep inside")


def _reproduction(err: str) -> list[str]:
    (line,) = [line for line in err.splitlines() if "to reproduce:" in line]
    return shlex.split(line.partition("to reproduce: mstarc ")[2])


def _folder(home: Path) -> Path:
    (folder,) = home.glob("mstarc-crash-*")
    return folder


@pytest.fixture
def broken_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = (*pipeline.PIPELINE, Rewrite("explode", "fails", _explode))
    monkeypatch.setattr(pipeline, "PIPELINE", broken)


@pytest.mark.usefixtures("broken_pass")
@pytest.mark.parametrize("verb", ["ir", "compile", "opt"])
def test_a_failing_pass_keeps_the_ir_before_it(mstarc: Command, own_folders: Path, tmp_path: Path, verb: str) -> None:
    text = mstarc("ir", HELLO, "--after", "bind").out
    (tmp_path / "x.ir").write_text(text)
    args = {
        "ir": ("ir", HELLO, "--after", "explode"),
        "compile": ("compile", HELLO, "-o", tmp_path / "out"),
        "opt": ("opt", tmp_path / "x.ir", "-p", "explode"),
    }[verb]
    ran = mstarc(*args)
    assert (ran.status, ran.out) == (70, "") and not (tmp_path / "out").exists()
    folder = _folder(own_folders)
    assert parse_program((folder / "before.ir").read_text()) == parse_program(text)
    story = (folder / "crash.txt").read_text()
    assert "pass:    explode" in story and "Traceback" in story and "KeyError: 'deep inside'" in story
    again = _reproduction(ran.err)
    assert again[:2] == ["--debug", "opt"] and again[-2:] == ["-p", "explode"]
    seen = mstarc(*again)
    assert seen.status == 70 and "_explode" in seen.err


def test_a_failing_check_keeps_the_model_that_failed(
    mstarc: Command, own_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(program: Program, report: object) -> None:
        if program.model == "second":
            _explode()

    for name in ("first", "second"):
        text = (ROOT / HELLO).read_text().replace("model hello", f"model {name}")
        (tmp_path / f"{name}.walk").write_text(text)
        shutil.copy(ROOT / "examples/hello/hello.yaml", tmp_path / f"{name}.yaml")
    monkeypatch.setattr(checks, "STAGES", ((broken,),))
    ran = mstarc("check", tmp_path)
    assert ran.status == 70 and "error[MC000]" in ran.err
    folder = _folder(own_folders)
    assert {p.name for p in folder.iterdir()} == {"crash.txt", "before.ir", "second.walk", "second.yaml"}
    assert (folder / "second.walk").read_bytes() == (tmp_path / "second.walk").read_bytes()
    assert "_explode" in mstarc(*_reproduction(ran.err)).err
    assert mstarc("check", tmp_path).status == 70, "a fault is not remembered"
    assert _folder(own_folders) == folder, "the same fault has the same folder"


def test_nothing_that_exists_is_touched(mstarc: Command, own_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc.cli.passes.run_ir", _explode)
    mstarc("ir", HELLO)
    kept = _folder(own_folders) / "hello.walk"
    kept.write_text("mine")
    mstarc("ir", HELLO)
    assert kept.read_text() == "mine"


def test_no_place_for_the_folder(mstarc: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc.cli.crash.crash_home", lambda: Path("/proc/none"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/proc/none")
    monkeypatch.setattr("mstarc.cli.passes.run_ir", _explode)
    ran = mstarc("ir", HELLO)
    assert ran.status == 70 and _reproduction(ran.err) == ["--debug", "ir", HELLO]
