"""`mstarc check`: what is found, where it goes, what the status is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from mstarc.cli.checking import CheckCall, parse_plain
from mstarc.cli.findings import colours
from tests.cli.conftest import HELLO, ROOT, Command

BROKEN = "model m\nwalk w(a: i64) { emit b as tensor }\nrequest r(a: i64) -> tensor { w(a) }\n"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "broken.walk"
    path.parent.mkdir()
    path.write_text(BROKEN)
    path.with_suffix(".yaml").write_text("components: {}\n")
    return path


def test_what_is_clean_says_so_on_stderr(mstarc: Command) -> None:
    ran = mstarc("check", "specs", HELLO)
    assert (ran.status, ran.out) == (0, "")
    specs = list((ROOT / "specs").glob("*.walk"))
    assert ran.err == f"{len(specs) + 1} models clean\n" and len(specs) > 1


def test_a_folder_is_searched_all_the_way_down(mstarc: Command, broken: Path) -> None:
    ran = mstarc("check", broken.parent.parent)
    assert ran.status == 1
    assert ran.out == ""
    assert "error[MC002]" in ran.err and "broken.walk:2:" in ran.err
    assert "emit b as tensor" in ran.err, "the line is shown"
    assert "\x1b" not in ran.err, "no colour where there is no terminal"


def test_formats_for_tools_go_to_stdout(mstarc: Command, broken: Path) -> None:
    as_json = mstarc("check", broken, "--format", "json")
    assert as_json.status == 1
    assert [f["code"] for f in json.loads(as_json.out)["findings"]] == ["MC002"]
    sarif = mstarc("check", "--format=sarif", broken)
    assert [r["ruleId"] for r in json.loads(sarif.out)["runs"][0]["results"]] == ["MC002"]
    github = mstarc("check", broken, "--format", "github")
    assert github.out.startswith("::error ") and "line=2" in github.out
    assert json.loads(mstarc("check", HELLO, "--format", "json").out)["findings"] == []


def test_warnings_fail_only_if_denied(mstarc: Command, tmp_path: Path) -> None:
    path = tmp_path / "alone.walk"
    path.write_text("model m\nwalk w(a: i64) { emit a as tensor }\nrequest r(a: i64) -> tensor { w(a) }\n")
    ran = mstarc("check", path)
    assert (ran.status, "warning[MC908]" in ran.err) == (0, True)
    assert mstarc("check", path, "--deny-warnings").status == 1


def test_paths_that_name_no_model(mstarc: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing = mstarc("check", tmp_path / "nowhere.walk")
    assert (missing.status, "does not exist" in missing.err) == (2, True)
    empty = mstarc("check", tmp_path / "empty", HELLO)
    assert (empty.status, "there is no .walk file in" in empty.err) == (2, True)
    binary = tmp_path / "binary.walk"
    binary.write_bytes(b"\xff\xfe\x00")
    ran = mstarc("check", binary)
    assert (ran.status, "error[MC012]" in ran.err) == (1, True)


def test_wrong_options_are_explained(mstarc: Command) -> None:
    ran = mstarc("check", "specs", "--format", "xml")
    assert (ran.status, "xml" in ran.err) == (2, True)
    assert mstarc("check").status == 2
    assert mstarc("check", "--bogus", "specs").status == 2
    assert mstarc("bogus").status == 2


def test_the_short_way_takes_plain_forms_only() -> None:
    assert parse_plain(["check", "a", "--format=json", "b", "--deny-warnings"]) == CheckCall(("a", "b"), "json", True)
    for args in (["check"], ["check", "--help"], ["check", "a", "--format"], ["check", "a", "-x"], ["ir", "a"], []):
        assert parse_plain(args) is None, args


def test_both_ways_give_the_same(mstarc: Command, broken: Path) -> None:
    plain = mstarc("check", broken, "--format", "json")
    assert mstarc("check", "--format", "json", "--", broken) == plain  # `--` is left to typer


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colours(_Terminal()) and not colours(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours(_Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not colours(_Terminal())
