"""`compile --check`: stale, edited by hand, orphaned and missing files are told apart, each with the command that repairs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mstarc.codegen.package import check_package, compile_model, find_packages, write_package

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A fresh package of the hello model beside a copy of its spec."""
    for name in ("hello.walk", "hello.yaml"):
        shutil.copy(ROOT / "examples/hello" / name, tmp_path)
    folder = tmp_path / "generated"
    write_package(compile_model(tmp_path / "hello.walk", folder).files, folder)
    return folder


def kinds(package: Path) -> dict[str, str]:
    return {problem.path.name: problem.kind for problem in check_package(package)[0]}


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_fresh(package: Path) -> None:
    assert kinds(package) == {}
    assert write_package(compile_model(package.parent / "hello.walk", package).files, package) == []


def test_a_moved_line_changes_only_the_source_map(package: Path) -> None:
    replace_in(package.parent / "hello.walk", "walk count", "\n\nwalk count")
    assert kinds(package) == {"plan.json": "stale"}


def test_a_changed_spec(package: Path) -> None:
    replace_in(package.parent / "hello.walk", "emit n as tensor", "emit n + 1 as tensor")
    problems, _ = check_package(package)
    assert {p.path.name: p.kind for p in problems} == {"plan.json": "stale", "worker.py": "stale"}
    worker = next(p for p in problems if p.path.name == "worker.py")
    assert '+        b.emit("tensor", n + 1)' in worker.diff
    assert '-        b.emit("tensor", n)' in worker.diff
    assert worker.repair.startswith("mstarc compile ")


def test_a_changed_binding(package: Path) -> None:
    replace_in(package.parent / "hello.yaml", "limit: 1000", "limit: 7")
    assert kinds(package) == {"plan.json": "stale"}


def test_an_edited_file(package: Path) -> None:
    replace_in(package / "worker.py", "numbers", "letters")
    assert kinds(package) == {"worker.py": "hand-edited"}


def test_an_edited_plan(package: Path) -> None:
    replace_in(package / "plan.json", '"capacity": "8"', '"capacity": "9"')
    assert kinds(package) == {"plan.json": "hand-edited"}


def test_an_edited_file_of_a_changed_spec_is_still_told_apart(package: Path) -> None:
    replace_in(package.parent / "hello.walk", "= 10", "= 11")
    replace_in(package / "worker.py", "numbers", "letters")
    assert kinds(package) == {"worker.py": "hand-edited", "conductor.py": "stale", "plan.json": "stale"}


def become(path: Path, make: Callable[[Path], object]) -> None:
    """Something else of that name, which cannot be read as a file."""
    path.unlink()
    make(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda p: (p / "worker.py").unlink(), {"worker.py": "missing"}),
        (lambda p: become(p / "worker.py", Path.mkdir), {"worker.py": "missing"}),
        (lambda p: become(p / "worker.py", os.mkfifo), {"worker.py": "missing"}),
        (lambda p: become(p / "plan.json", os.mkfifo), {"generated": "orphan"}),
        (lambda p: (p / "extra.py").write_text(""), {"extra.py": "orphan"}),
        (lambda p: (p / "plan.json").unlink(), {"generated": "orphan"}),
        (lambda p: (p / "plan.json").write_text("{"), {"generated": "orphan"}),
        (lambda p: (p / "plan.json").write_text('{"format": 99}'), {"generated": "orphan"}),
        (lambda p: (p.parent / "hello.walk").unlink(), {"generated": "orphan"}),
        (lambda p: (p.parent / "hello.walk").write_text("model hello\nwalk {"), {"hello.walk": "broken"}),
    ],
    ids=[
        "missing",
        "folder",
        "pipe",
        "pipe as plan",
        "extra",
        "no plan",
        "no json",
        "other format",
        "no spec",
        "broken spec",
    ],
)
def test_what_is_there_and_what_is_not(
    package: Path, change: Callable[[Path], object], expected: dict[str, str]
) -> None:
    change(package)
    assert kinds(package) == expected


def test_packages_are_found_below_a_root(tmp_path: Path) -> None:
    for folder in ("generated/a", "examples/b/generated", "generated/empty", "specs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "generated/a/plan.json").write_text("{}")
    (tmp_path / "examples/b/generated/plan.json").write_text("{}")
    for name in ("a", "c"):
        (tmp_path / f"specs/{name}.walk").write_text("")
    packages, without = find_packages(tmp_path)
    assert packages == [tmp_path / "examples/b/generated", tmp_path / "generated/a"]
    assert without == [tmp_path / "specs/c.walk"]
