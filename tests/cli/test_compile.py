"""`mstarc compile` and `compile --check`: what is written, and each way in which a package can differ from its spec."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.render import render
from mstarc.ir.core import Program
from tests.cli.conftest import ROOT, Command


def test_a_package_is_written_once(mstarc: Command, project: Path) -> None:
    package = project / "generated/hello"
    assert sorted(p.name for p in package.iterdir()) == ["__init__.py", "conductor.py", "plan.json", "worker.py"]
    again = mstarc("compile", "specs/hello.walk", "-o", "generated/hello")
    assert (again.status, again.out, again.err) == (0, "", "generated/hello is up to date\n")
    (package / "worker.py").unlink()
    assert mstarc("compile", "specs/hello.walk", "-o", "generated/hello").out == "generated/hello/worker.py\n"


def test_a_spec_with_errors_writes_nothing(mstarc: Command, project: Path) -> None:
    (project / "specs/bad.walk").write_text("model m\nwalk w() { emit x as text }\nrequest r() -> text { w() }\n")
    ran = mstarc("compile", "specs/bad.walk", "-o", "generated/bad")
    assert (ran.status, ran.out) == (1, "")
    assert "error[MC002]" in ran.err
    assert not (project / "generated/bad").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "name one .walk file"),
        (("specs/hello.walk",), "generated/hello"),
        (("specs", "-o", "x"), "is a folder"),
        (("nowhere.walk", "-o", "x"), "does not exist"),
        (("specs/hello.walk", "-o", "specs"), "is no generated package"),
        (("specs/hello.walk", "-o", "specs/hello.yaml"), "is a file"),
        (("--check", "nowhere"), "does not exist"),
        (("--check", "specs/hello.yaml"), "is a file"),
        (("--check", "-o", "x"), "takes no `-o`"),
    ],
)
def test_wrong_calls(mstarc: Command, project: Path, args: tuple[str, ...], says: str) -> None:
    before = sorted(project.rglob("*"))
    ran = mstarc("compile", *args)
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err
    assert sorted(project.rglob("*")) == before


def test_a_folder_that_cannot_be_written(mstarc: Command, project: Path) -> None:
    (project / "file").write_text("")
    ran = mstarc("compile", "specs/hello.walk", "-o", "file/below")
    assert (ran.status, "cannot be written" in ran.err) == (2, True)


def test_check_is_silent_about_what_is_up_to_date(mstarc: Command, project: Path) -> None:
    ran = mstarc("compile", "--check")
    assert (ran.status, ran.out, ran.err) == (0, "", "1 package up to date\n")


def test_a_changed_spec_makes_its_package_stale(mstarc: Command, project: Path) -> None:
    spec = project / "specs/hello.walk"
    spec.write_text(spec.read_text().replace("n == limit ", "n == limit + 77 "))
    ran = mstarc("compile", "--check")
    assert ran.status == 3
    assert "stale: generated/hello/worker.py" in ran.err
    assert "run: mstarc compile specs/hello.walk -o generated/hello" in ran.err
    assert any(line.startswith("+") and "77" in line for line in ran.out.splitlines()), "a unified diff"
    assert mstarc("compile", "specs/hello.walk", "-o", "generated/hello").status == 0
    assert mstarc("compile", "--check").status == 0


def test_edits_by_hand_orphans_and_missing_files(mstarc: Command, project: Path) -> None:
    package = project / "generated/hello"
    worker = package / "worker.py"
    worker.write_text(worker.read_text() + "EDITED = 1\n")
    (package / "conductor.py").unlink()
    (package / "extra.py").write_text("")
    before = {path: path.read_bytes() for path in package.iterdir()}
    ran = mstarc("compile", "--check", "generated/hello")
    assert ran.status == 3
    assert "hand-edited: generated/hello/worker.py" in ran.err
    assert "missing: generated/hello/conductor.py" in ran.err
    assert "orphan: generated/hello/extra.py" in ran.err
    assert "-EDITED = 1" in ran.out
    assert {path: path.read_bytes() for path in package.iterdir()} == before, "--check writes nothing"


def test_a_spec_that_is_gone_or_broken_or_has_no_package(mstarc: Command, project: Path) -> None:
    spec = project / "specs/hello.walk"
    text = spec.read_text()
    spec.write_text(text.replace("emit n as", "emit unknown as"))
    broken = mstarc("compile", "--check")
    assert (broken.status, "error[MC002]" in broken.err) == (1, True)
    spec.unlink()
    gone = mstarc("compile", "--check")
    assert (gone.status, "orphan: generated/hello" in gone.err) == (3, True)
    spec.write_text(text)
    shutil.rmtree(project / "generated")
    lacking = mstarc("compile", "--check")
    assert (lacking.status, "mstarc compile specs/hello.walk -o generated/hello" in lacking.err) == (3, True)
    shutil.rmtree(project / "specs")
    nothing = mstarc("compile", "--check")
    assert (nothing.status, "no package" in nothing.err) == (2, True)


def test_a_spec_that_is_not_built_yet_needs_no_package(
    mstarc: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suffix in (".walk", ".yaml"):
        shutil.copy(project / f"specs/hello{suffix}", project / f"specs/later{suffix}")
    assert mstarc("compile", "--check").status == 3

    def refusing(program: Program, spec: str) -> dict[str, str]:
        if spec == "later.walk":
            raise NotBuilt("a thing of the future", program.walks[0].span)
        return render(program, spec)

    monkeypatch.setattr("mstarc.codegen.package.render", refusing)
    ran = mstarc("compile", "--check")
    assert (ran.status, "missing" in ran.err) == (0, False), ran.err
    assert re.search(r"^no package: specs/later\.walk:\d+: not built yet: a thing of the future$", ran.err, re.M), (
        ran.err
    )


def test_a_plan_that_is_no_plan(mstarc: Command, project: Path) -> None:
    plan = project / "generated/hello/plan.json"
    for text in ("{", "[]", '{"format": 99}', '{"format": 1}'):
        plan.write_text(text)
        assert mstarc("compile", "--check").status == 3, text
        ran = mstarc("plan", "generated/hello")
        assert (ran.status, "plan.json" in ran.err) == (1, True), text


def test_the_packages_of_this_repository_are_up_to_date(mstarc: Command) -> None:
    ran = mstarc("compile", "--check")
    assert (ran.status, ran.out) == (0, ""), ran.err


def test_where_a_package_lies_does_not_matter(mstarc: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {}
    for name in ("one", "two"):
        base = tmp_path / name
        shutil.copytree(ROOT / "examples/hello", base, ignore=shutil.ignore_patterns("generated", "__pycache__"))
        monkeypatch.chdir(tmp_path if name == "one" else base)
        spec, package = base / "hello.walk", base / "generated"
        assert (
            mstarc("compile", *((spec, "-o", package) if name == "one" else ("hello.walk", "-o", "generated"))).status
            == 0
        )
        files[name] = {path.name: path.read_bytes() for path in package.iterdir()}
    assert files["one"] == files["two"]
