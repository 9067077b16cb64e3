"""The hooks of `.pre-commit-hooks.yaml`: each, run as pre-commit runs it, fails on what it should and passes on the rest."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import ROOT, Command, Ran

HOOKS: dict[str, dict[str, Any]] = {hook["id"]: hook for hook in YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mstarc: Command) -> Path:
    for name in ("hello.walk", "hello.yaml"):
        shutil.copy(ROOT / "examples/hello" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, changed: str, mstarc: Command) -> Ran | None:
    """What pre-commit runs when a file has changed; None: it does not."""
    hook = HOOKS[name]
    if not re.search(hook["files"], changed):
        return None
    program, *verb = hook["entry"].split()
    assert program == "mstarc" and hook["language"] == "python"
    return mstarc(*verb, *hook.get("args", ()), *([changed] if hook.get("pass_filenames", True) else ()))


def test_check(folder: Path, mstarc: Command) -> None:
    assert run("mstarc-check", "hello.py", mstarc) is None
    for changed in ("hello.walk", "hello.yaml"):
        ran = run("mstarc-check", changed, mstarc)
        assert ran is not None and ran.status == 0, changed
    binding = folder / "hello.yaml"
    binding.write_text(binding.read_text().replace("counter: examples", "conter: examples"))
    ran = run("mstarc-check", "hello.yaml", mstarc)
    assert ran is not None and ran.status == 1, "a binding alone can break a model"


def test_fmt(folder: Path, mstarc: Command) -> None:
    assert run("mstarc-fmt", "hello.yaml", mstarc) is None
    spec = folder / "hello.walk"
    mstarc("fmt", spec)
    smooth = spec.read_text()
    spec.write_text(smooth.replace("config {", "config{"))
    ran = run("mstarc-fmt", "hello.walk", mstarc)
    assert ran is not None and ran.status == 0
    assert spec.read_text() == smooth
