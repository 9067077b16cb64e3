"""`mstarc check --fix`: only what changes no meaning, only where it is, and until nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Diagnostic, Fix, Label
from mstarc.diagnostics.fixes import fixed, safe_fixes
from mstarc.diagnostics.rules import MC006
from mstarc.source import SourceFile, Span
from mstarc.workspace import load_model
from tests.cli.conftest import Command

MODEL = """model m   # mstarc: allow MC006 -- none is here
node a : stateless { op two(x: i64) -> y: i64, z: i64 }   # größer
# mstarc: allow MC505 -- none is here
walk w(x: i64) {
    y, unused = a.two(x)
    emit y as scalar
}
request r(x: i64) -> scalar { w(x) }
"""
FIXED = """model m
node a : stateless { op two(x: i64) -> y: i64, z: i64 }   # größer
walk w(x: i64) {
    y, _ = a.two(x)
    emit y as scalar
}
request r(x: i64) -> scalar { w(x) }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "m.walk").write_text(MODEL, encoding="utf-8")
    (tmp_path / "m.yaml").write_text("components: {a: pack.parts.A}\n")
    return tmp_path / "m.walk"


def test_fix_writes_what_is_safe(mstarc: Command, spec: Path) -> None:
    before = mstarc("check", spec)
    assert before.status == 0 and before.err.count("(safe)") == 3
    assert spec.read_text(encoding="utf-8") == MODEL, "nothing is written unasked"
    ran = mstarc("check", spec, "--fix")
    assert (ran.status, ran.out) == (0, "")
    assert spec.read_text(encoding="utf-8") == FIXED
    assert f"fixed {spec}:5: bind `unused` to `_`" in ran.err and ran.err.endswith("1 model clean\n")
    again = mstarc("check", "--fix", spec)
    assert again.err == "1 model clean\n"


def test_the_meaning_stays(spec: Path, mstarc: Command) -> None:
    before = load_model(spec).program
    mstarc("check", spec, "--fix", "--format", "json")
    assert before is not None and load_model(spec).program == before


def test_what_cannot_be_fixed_is_reported(mstarc: Command, spec: Path) -> None:
    spec.write_text(MODEL.replace("emit y", "emit q"), encoding="utf-8")
    text = spec.read_text(encoding="utf-8")
    ran = mstarc("check", spec, "--fix")
    assert ran.status == 1 and "error[MC002]" in ran.err
    assert ran.err.startswith("nothing can be fixed automatically\n"), "the others wait for the program to be whole"
    assert spec.read_text(encoding="utf-8") == text


def test_what_is_left_after_the_fixes(mstarc: Command, spec: Path) -> None:
    spec.write_text(MODEL.replace("    emit y", "    z = x + 1\n    emit y"), encoding="utf-8")
    ran = mstarc("check", spec, "--fix")
    assert ran.status == 0 and "\nnothing else can be fixed automatically\nwarning[MC006]: `z`" in ran.err


def test_a_file_that_cannot_be_written(mstarc: Command, spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    ran = mstarc("check", spec, "--fix")
    assert ran.status == 2 and "cannot be written" in ran.err
    assert spec.read_text(encoding="utf-8") == MODEL


def test_fixes_that_overlap_wait_for_the_next_round() -> None:
    def finding(start: int, end: int, text: str, safety: str = "safe") -> Diagnostic:
        span = Span("x", start, end)
        return Diagnostic(MC006, "m", Label(span), fix=Fix("t", ((span, text),), safety))  # type: ignore[arg-type]

    found = [finding(0, 2, "A"), finding(1, 3, "B"), finding(4, 5, "C"), finding(5, 6, "D", "unsafe")]
    fixes = safe_fixes(found)
    assert [fix.edits[0][1] for fix in fixes] == ["A", "C"]
    assert fixed(fixes, {"x": SourceFile("x", "abcdef")}) == {"x": "AcdCf"}
