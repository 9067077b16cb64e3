"""One command line at a time, in this process: status, stdout and stderr."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from mstarc.cli import main
from mstarc.cli.guard import set_debug

ROOT = Path(__file__).resolve().parents[2]
HELLO = "examples/hello/hello.walk"


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str


Command: TypeAlias = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees what another one made mstarc remember; crash folders go where pytest deletes them. Gives that folder."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setattr("mstarc.cli.crash.crash_home", lambda: home)
    return home


@pytest.fixture
def mstarc(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command line from the root of the repository, or wherever a test has gone."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*args: str | Path) -> Ran:
        capsys.readouterr()
        try:
            status = main([str(arg) for arg in args])
        finally:
            set_debug(False)
        seen = capsys.readouterr()
        assert "Traceback" not in seen.err or "--debug" in args, seen.err
        return Ran(status, seen.out, seen.err)

    return command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mstarc: Command) -> Path:
    """A folder of its own with hello's spec in `specs`, its package in `generated/hello`; the working directory is there."""
    specs = tmp_path / "specs"
    specs.mkdir()
    for name in ("hello.walk", "hello.yaml"):
        shutil.copy(ROOT / "examples/hello" / name, specs / name)
    monkeypatch.chdir(tmp_path)
    ran = mstarc("compile", "specs/hello.walk", "-o", "generated/hello")
    assert ran.status == 0, ran.err
    return tmp_path
