"""`mstarc ir` after passes, and `mstarc opt`: dumps, differences, facts, and what is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mstarc.ir.core import Program
from mstarc.ir.text import parse_program, print_program
from mstarc.passes import pipeline
from mstarc.passes.pipeline import Analysis, Rewrite
from mstarc.workspace import load_model
from tests.cli.conftest import HELLO, ROOT, Command


def _drop_requests(program: Program) -> Program:
    return replace(program, requests=())


def _count(program: Program) -> int:
    return len(program.requests)


TOYS = (
    Analysis("count", "counts requests", _count, lambda _, number: [f"{number} requests"]),
    Rewrite("forget", "drops requests", _drop_requests),
    Rewrite("rest", "does nothing", lambda program: program),
    Analysis("count-again", "counts requests", _count, lambda _, number: [f"{number} requests"]),
)


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline of four passes of known effect."""
    monkeypatch.setattr(pipeline, "PIPELINE", TOYS)


def test_after_each_pass(mstarc: Command) -> None:
    plain, bound = mstarc("ir", HELLO, "--after", "lower").out, mstarc("ir", HELLO, "--after", "bind").out
    assert plain == mstarc("ir", HELLO).out and plain.startswith("mstarc.ir 1\n")
    assert "1000" not in plain.split("node")[0].split("param")[0]
    assert "1000" in bound.split("param")[0], "the config's value is in place"
    regions = mstarc("ir", HELLO, "--after", "form-regions").out
    assert "# loop count.counting: region `count_counting`" in regions
    model = load_model(ROOT / HELLO)
    assert model.bound is not None
    for chosen in pipeline.PIPELINE:
        ran = mstarc("ir", HELLO, "--after", chosen.name)
        assert (ran.status, ran.err) == (0, "")
        text = "".join(line + "\n" for line in ran.out.splitlines() if not line.startswith("# "))
        assert print_program(parse_program(ran.out)) == text


def test_after_all_says_what_changes(mstarc: Command, toys: None) -> None:
    parts = mstarc("ir", HELLO, "--after-all").out.split("# after ")[1:]
    assert [part.split("\n")[0] for part in parts] == [
        "lower", "bind", "count", "forget", "rest: nothing changes", "count-again",
    ]  # fmt: skip
    assert parts[2] == "count\n# 1 requests\n\n" and parts[5] == "count-again\n# 0 requests\n\n"
    assert "request sums" in parts[1] and "mstarc.ir 1" in parts[3] and "request sums" not in parts[3]
    trees = json.loads(mstarc("ir", HELLO, "--after-all", "--format", "json").out)
    assert [tree["after"] for tree in trees] == ["lower", "bind", "count", "forget", "rest", "count-again"]
    assert [len(tree["program"]["requests"]) for tree in trees] == [1, 1, 1, 0, 0, 0]
    assert trees[2]["facts"] == ["1 requests"]


def test_the_difference_of_two(mstarc: Command, toys: None) -> None:
    out = mstarc("ir", HELLO, "--diff", "count", "forget").out
    assert out.startswith("--- after count\n+++ after forget\n")
    removed = [line for line in out.splitlines() if line.startswith("-")]
    assert any("request sums" in line for line in removed) and "-# 1 requests" in removed
    back = mstarc("ir", HELLO, "--diff", "forget", "count").out
    assert any(line.startswith("+request sums") for line in back.splitlines())
    assert mstarc("ir", HELLO, "--diff", "forget", "rest").out == ""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--after", "form-region"), "did you mean `form-regions`?"),
        (("--after", "zzz"), "`lower`, `bind`"),
        (("--diff", "bind", "zzz"), "no pass `zzz`"),
        (("--diff", "bind", "lower", "--format", "json"), "--format json"),
        (("--after", "bind", "--after-all"), "exclude each other"),
    ],
)
def test_ir_refuses(mstarc: Command, args: tuple[str, ...], says: str) -> None:
    ran = mstarc("ir", HELLO, *args)
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err


def test_passes_need_a_clean_bound_model(mstarc: Command, tmp_path: Path) -> None:
    spec = tmp_path / "alone.walk"
    spec.write_text((ROOT / HELLO).read_text())
    ran = mstarc("ir", spec, "--after", "form-regions")
    assert (ran.status, ran.out) == (1, "") and "binding" in ran.err
    assert mstarc("ir", spec).status == 0, "what is written needs no binding"
    spec.with_suffix(".yaml").write_text((ROOT / "examples/hello/hello.yaml").read_text().replace("limit: ", "limt: "))
    ran = mstarc("ir", spec, "--after", "form-regions")
    assert (ran.status, ran.out) == (1, "") and "checked programs only" in ran.err


def _stdin(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))


def test_opt_is_the_pipeline_on_text(mstarc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = mstarc("ir", HELLO, "--after", "bind").out
    file = tmp_path / "hello.ir"
    file.write_text(bound)
    assert mstarc("opt", file).out == bound, "no pass, no change"
    ran = mstarc("opt", file, "-p", "form-regions")
    facts = [line for line in ran.out.splitlines() if line.startswith("# ")]
    assert ran.status == 0 and ran.out.startswith(bound) and facts[0].startswith("# form-regions: loop count.counting")
    _stdin(monkeypatch, bound.encode())
    assert mstarc("opt", "-", "-p", "form-regions").out == ran.out
    tree = json.loads(mstarc("opt", file, "-p", "form-regions", "--format", "json").out)
    assert tree["after"] == "form-regions" and [f"# {line}" for line in tree["facts"]] == facts


def test_opt_runs_what_is_named_in_that_order(mstarc: Command, tmp_path: Path, toys: None) -> None:
    file = tmp_path / "hello.ir"
    file.write_text(mstarc("ir", HELLO).out)
    out = mstarc("opt", file, "-p", "count,forget, count").out
    assert [line for line in out.splitlines() if line.startswith("#")] == ["# count: 1 requests", "# count: 0 requests"]
    assert mstarc("opt", file, "-p", "forget").out == print_program(_drop_requests(parse_program(file.read_text())))


def test_opt_lists_the_passes(mstarc: Command) -> None:
    listed = [line.split()[0] for line in mstarc("opt", "--list").out.splitlines()]
    assert listed == ["lower", "bind", *(p.name for p in pipeline.PIPELINE)]
    assert len(set(listed)) == len(listed)


@pytest.mark.parametrize(
    ("text", "args", "status", "says"),
    [
        (b"mstarc.ir 99\n", (), 1, "line 1: the first line is not `mstarc.ir 1`"),
        (b"mstarc.ir 1\nmodel x\nwalk w() {\n  emit %7 as text\n}\n", (), 1, "%7"),
        (b"mstarc.ir 1\nmodel x\nlet y = " + b"(" * 5000 + b"1", (), 1, "nested too deeply"),
        (b"\xff", (), 2, "UTF-8"),
        (b"mstarc.ir 1\nmodel x\n", ("-p", "form-region"), 2, "did you mean `form-regions`?"),
        (b"mstarc.ir 1\nmodel x\n", ("-p", "lower"), 2, "does not run on IR"),
    ],
)
def test_opt_refuses(
    mstarc: Command, monkeypatch: pytest.MonkeyPatch, text: bytes, args: tuple[str, ...], status: int, says: str
) -> None:
    _stdin(monkeypatch, text)
    ran = mstarc("opt", "-", *args)
    assert (ran.status, ran.out) == (status, "")
    assert says in ran.err


def test_opt_of_no_file(mstarc: Command, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.ir"):
        ran = mstarc("opt", path)
        assert (ran.status, ran.out) == (2, "") and "cannot be read" in ran.err
