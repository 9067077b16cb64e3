"""`mstarc fmt`: what it writes, shows and answers; and that a file is never without its text."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import pytest

from mstarc.cli import formatting
from tests.cli.conftest import Command

ROUGH = "model t\nwalk w(){f() g()}   # é\n"
SMOOTH = "model t\nwalk w() {\n    f()\n    g()\n}  # é\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mstarc: Command) -> Path:
    """Two files, one of them rough; the working directory is there."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/rough.walk").write_text(ROUGH, encoding="utf-8")
    (tmp_path / "smooth.walk").write_text(SMOOTH, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_files_are_rewritten_once(mstarc: Command, folder: Path) -> None:
    ran = mstarc("fmt", ".")
    assert (ran.status, ran.out, ran.err) == (0, "", "formatted: in/rough.walk\n")
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == SMOOTH
    assert mstarc("fmt", ".").err == "2 files in canonical layout\n"
    assert names(folder) == ["rough.walk", "smooth.walk"]


def test_a_file_that_does_not_parse_is_not_counted_as_canonical(mstarc: Command, folder: Path) -> None:
    (folder / "in/rough.walk").write_text("model m let", encoding="utf-8")
    ran = mstarc("fmt", "--check", ".")
    assert ran.status == 1 and "MC010" in ran.err and ran.err.endswith("1 file in canonical layout\n")
    assert "canonical" not in mstarc("fmt", "--check", "in").err


def test_check_tells_and_diff_shows_and_neither_writes(mstarc: Command, folder: Path) -> None:
    ran = mstarc("fmt", "--check", ".")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == "would change: in/rough.walk\n  run: mstarc fmt .\n"
    shown = mstarc("fmt", "in", "--diff")
    assert (shown.status, shown.err) == (0, "")
    assert "--- in/rough.walk\n" in shown.out and "\n-walk w(){f() g()}   # é\n+walk w() {\n" in shown.out
    both = mstarc("fmt", "in", "--diff", "--check")
    assert (both.status, both.out) == (1, shown.out)
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == ROUGH
    assert mstarc("fmt", "--check", "smooth.walk").status == 0


def test_line_ends_of_another_system_are_a_change(mstarc: Command, folder: Path) -> None:
    (folder / "smooth.walk").write_bytes(SMOOTH.replace("\n", "\r\n").encode())
    assert mstarc("fmt", "smooth.walk", "--check").status == 1
    mstarc("fmt", "smooth.walk")
    assert (folder / "smooth.walk").read_bytes() == SMOOTH.encode()


def test_what_does_not_parse_is_told_and_left_and_the_rest_is_done(mstarc: Command, folder: Path) -> None:
    (folder / "bad.walk").write_text("model t\nlet   x =\n")
    (folder / "no_text.walk").write_bytes(b"\xff\xfe")
    ran = mstarc("fmt", ".")
    assert ran.status == 1
    assert "error[MC010]" in ran.err and "bad.walk:2" in ran.err and "error[MC012]" in ran.err
    assert (folder / "bad.walk").read_text() == "model t\nlet   x =\n"
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == SMOOTH


def test_paths_that_are_no_models(mstarc: Command, folder: Path) -> None:
    (folder / "empty").mkdir()
    ran = mstarc("fmt", "empty", "nowhere.walk", "in")
    assert ran.status == 2
    assert "there is no .walk file in `empty`" in ran.err and "`nowhere.walk` does not exist" in ran.err
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == SMOOTH, "the others are done"
    assert mstarc("fmt").status == 2


def given(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_standard_input(mstarc: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(ROUGH.encode(), monkeypatch)
    ran = mstarc("fmt", "-")
    assert (ran.status, ran.out, ran.err) == (0, SMOOTH, "")
    given(SMOOTH.encode(), monkeypatch)
    assert mstarc("fmt", "-", "--check").status == 0
    given(ROUGH.encode(), monkeypatch)
    checked = mstarc("fmt", "-", "--check")
    assert (checked.status, checked.out) == (1, "")
    given(b"model t\nlet x =\n", monkeypatch)
    bad = mstarc("fmt", "-")
    assert (bad.status, bad.out) == (1, "") and "error[MC010]" in bad.err and "<stdin>:2" in bad.err
    given(b"\xff", monkeypatch)
    assert "not UTF-8" in mstarc("fmt", "-").err
    assert mstarc("fmt", "-", "in").status == 2


def test_links_and_permissions_stay(mstarc: Command, folder: Path) -> None:
    target = folder / "in/rough.walk"
    target.chmod(0o640)
    (folder / "link.walk").symlink_to(target)
    assert mstarc("fmt", "link.walk").status == 0
    assert (folder / "link.walk").is_symlink()
    assert target.read_text(encoding="utf-8") == SMOOTH
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_failure_while_writing_leaves_the_old_text(
    mstarc: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    ran = mstarc("fmt", "in")
    assert ran.status == 2 and "`in/rough.walk` cannot be written: No space left on device" in ran.err
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == ROUGH
    assert names(folder) == ["rough.walk", "smooth.walk"]


def test_a_fault_of_the_formatter_is_told_and_leaves_the_text(
    mstarc: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mstarc.syntax.format.render", lambda lines, width: "model t\nwalk w() {\n    f()\n}\n")
    ran = mstarc("fmt", "in")
    assert ran.status == 70 and "the formatter changed a word" in ran.err
    assert (folder / "in/rough.walk").read_text(encoding="utf-8") == ROUGH


def test_replace_text_does_not_write_what_may_not_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(formatting.Failure, match="may not be written"):
        formatting.replace_text(folder / "smooth.walk", "x")
    assert (folder / "smooth.walk").read_text(encoding="utf-8") == SMOOTH
