"""No traceback reaches a user, and start-up stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mstarc.cli.guard import Failure, shielded
from tests.cli.conftest import HELLO, ROOT, Command


def _explode(*_: object) -> int:
    raise KeyError("deep inside")


@pytest.mark.parametrize(
    ("args", "target"),
    [
        (("check", "specs"), "mstarc.cli.checking.run_check"),
        (("ir", HELLO), "mstarc.cli.passes.run_ir"),
        (("compile", HELLO, "-o", "x y"), "mstarc.cli.compiling.run_compile"),
        (("call", "generated/ask"), "mstarc.cli.serving.run_call"),
    ],
)
def test_a_fault_is_two_lines_and_a_command(
    mstarc: Command, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], target: str
) -> None:
    monkeypatch.setattr(target, _explode)
    ran = mstarc(*args)
    assert (ran.status, ran.out) == (70, "")
    assert "internal error: KeyError: 'deep inside'" in ran.err
    assert f"mstarc --debug {args[0]}" in ran.err
    if "x y" in args:
        assert "'x y'" in ran.err, "the command can be pasted into a shell"
    seen = mstarc("--debug", *args)
    assert seen.status == 70
    assert "Traceback" in seen.err and "_explode" in seen.err


def test_a_failing_pass_is_a_finding_and_debug_shows_it(mstarc: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc.frontend.lower", _explode)
    ran = mstarc("check", HELLO)
    assert (ran.status, "MC000" in ran.err) == (70, True)
    assert "_explode" in mstarc("--debug", "check", HELLO).err
    assert mstarc("compile", HELLO, "-o", "/nonexistent/x").status == 70
    assert mstarc("interpret", HELLO).status == 70
    assert mstarc("graph", HELLO).status == 70


def test_what_stops_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    def stop(error: BaseException) -> int:
        def step() -> int:
            raise error

        return shielded(step)

    assert stop(Failure("no such thing", 2, help="look there")) == 2
    assert capsys.readouterr().err == "error: no such thing\n  help: look there\n"
    assert stop(KeyboardInterrupt()) == 130
    assert stop(RecursionError("x")) == 70
    assert "ran out of stack" in capsys.readouterr().err


def _modules(args: list[str]) -> set[str]:
    """The modules that are loaded after a command, in a process of its own."""
    code = (
        "import sys, json, io, contextlib\nfrom mstarc.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    status = main({args!r})\n"
        "print(json.dumps([status, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    status, names = json.loads(done.stdout)
    assert status == 0, done.stderr
    return set(names)


HEAVY = {
    "torch",
    "numpy",
    "lark",
    "pydantic",
    "zmq",
    "typer",
    "rich",
    "jinja2",
    "mstarc.codegen",
    "mstarc_runtime.serving",
}
PARSER = {"ruamel", "mstarc.frontend", "mstarc.workspace", "mstarc.ir.core"}


def test_check_imports_no_more_than_it_needs() -> None:
    loaded = _modules(["check", "specs", "examples"])
    assert PARSER | {"mstarc.passes.checks"} <= loaded, "it did check"
    assert not HEAVY & loaded
    again = _modules(["check", "specs", "examples"])
    assert "mstarc.remembered" in again and not (HEAVY | PARSER) & again, "nothing has changed since"


def test_compile_imports_no_torch(tmp_path: Path) -> None:
    loaded = _modules(["compile", HELLO, "-o", str(tmp_path / "hello")])
    assert "mstarc.codegen.package" in loaded and (tmp_path / "hello" / "plan.json").is_file()
    assert not {"torch", "numpy", "zmq", "fastapi"} & loaded


def test_a_reader_that_leaves_ends_it_in_silence() -> None:
    command = [sys.executable, "-m", "mstarc", "ir", "specs/ask.walk", "--format", "json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    assert (process.wait(timeout=120), said) == (0, b"")


def test_only_the_readers_of_our_output_may_leave(tmp_path: Path) -> None:
    """A pipe to a worker, or a socket, that breaks is a fault like any other; so is the exit status of it."""
    code = (
        "import os, sys\nfrom mstarc.cli.guard import shielded\n"
        "def step():\n    here, there = os.pipe()\n    os.close(here)\n    os.write(there, b'x')\n"
        "sys.exit(shielded(step))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 70
    assert "internal error: BrokenPipeError" in done.stderr


def test_a_reader_of_findings_that_leaves_hears_no_success(tmp_path: Path) -> None:
    (tmp_path / "bad.walk").write_text("model m\nparam ???\n")
    command = [sys.executable, "-m", "mstarc", "check", str(tmp_path / "bad.walk")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stderr.close()
    with process.stdout:
        assert process.stdout.read() == b""
    assert process.wait(timeout=120) == 1


def test_help_and_version(mstarc: Command) -> None:
    text = mstarc("--help").out
    for verb in ("check", "compile", "ir", "graph", "plan", "explain", "interpret", "run", "call"):
        assert f" {verb} " in text, verb
        assert mstarc(verb, "--help").status == 0
    assert mstarc("--version").out.startswith("mstarc 0.")
