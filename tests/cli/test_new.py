"""`mstarc new`: what it writes checks, is formatted, compiles and runs, whatever the model is called; nothing is overwritten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mstarc.cli.scaffold import scaffold
from tests.cli.conftest import ROOT, Command


def run(*args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, in a folder."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mstarc", *args]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


def test_the_readme_s_commands_work_and_say_what_it_says(mstarc: Command, tmp_path: Path) -> None:
    made = mstarc("new", "tally", tmp_path / "my models/tally")
    assert (made.status, made.out) == (0, "")
    folder = tmp_path / "my models/tally"
    assert f"'{folder}'" in made.err and "mstarc compile tally.walk -o generated" in made.err
    readme = (folder / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```\n(.*?)^```$", readme, re.M | re.S)
    assert block is not None
    commands = [line.split()[1:] for line in block[1].splitlines()]
    assert [command[0] for command in commands] == ["check", "fmt", "compile", "call"]
    for command in commands:
        ran = run(*command, folder=folder)
        assert ran.returncode == 0, ran.stderr
    tensors = re.findall(r"tensor: (\d+)", ran.stdout)
    scalars = re.findall(r"scalar: (\d+)", ran.stdout)
    assert f"The call answers {' '.join(tensors)}, and the sums {' and '.join(scalars)}." in readme
    assert len(tensors) == 6
    assert sorted(path.name for path in folder.iterdir() if path.suffix) == [
        "README.md",
        "tally.walk",
        "tally.yaml",
        "tally_components.py",
    ]


@pytest.mark.parametrize("name", ["x", "source", "Summer_2", "NAME", "model_", "text", "m" * 64])
def test_any_name_gives_a_clean_model(
    name: str, mstarc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mstarc("new", name).status == 0
    monkeypatch.chdir(tmp_path / name)
    checked = mstarc("check", ".", "--deny-warnings")
    assert (checked.status, checked.err) == (0, "1 model clean\n")
    assert mstarc("fmt", "--check", ".").status == 0
    assert mstarc("compile", f"{name}.walk", "-o", "generated").status == 0
    assert mstarc("graph", f"{name}.walk", "-o", f"{name}.html").status == 0
    assert mstarc("plan", "generated").status == 0


@pytest.mark.parametrize("name", ["a/b", "", "2x", "for", "walk", "class", "ü", "a b", "m" * 65, "a-b"])
def test_what_is_no_name(name: str, mstarc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = mstarc("new", name)
    assert ran.status == 2 and f"`{name}` is" in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "near"), [("my-model", "my_model"), ("2x", "x"), ("a b/c", "a_b_c"), ("ü", "")])
def test_a_name_is_offered(name: str, near: str, mstarc: Command, tmp_path: Path) -> None:
    ran = mstarc("new", name, tmp_path)
    assert ran.status == 2 and (f"help: mstarc new {near}\n" in ran.err if near else "help" not in ran.err)


def test_nothing_is_overwritten(mstarc: Command, tmp_path: Path) -> None:
    kept = tmp_path / "README.md"
    kept.write_text("mine")
    ran = mstarc("new", "tally", tmp_path)
    assert ran.status == 2 and "README.md` exists" in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"] and kept.read_text() == "mine"
    under = mstarc("new", "tally", kept)
    assert under.status == 2 and "cannot be written" in under.err


def test_components_follow_the_style_of_the_project() -> None:
    files = scaffold("tally")
    for command in (["check"], ["format", "--check"]):
        args = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "mstarc/tally_components.py", "-"]
        ran = subprocess.run(args, cwd=ROOT, input=files["tally_components.py"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout
    assert all(len(line) <= 120 for text in files.values() for line in text.splitlines())
