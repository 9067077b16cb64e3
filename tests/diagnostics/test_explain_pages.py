"""Every explain page is compiled: the failing block gives exactly the page's code, the passing block nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mstarc.checked import Checked
from mstarc.diagnostics.machine import explain_page
from mstarc.diagnostics.rules import RULES, rule_state
from mstarc.diagnostics.text import render_all
from mstarc.workspace import load_model

NOT_TEXT = {"MC012"}  # its failing file is no text; test_workspace has it
CODES = [code for code in RULES if rule_state(code) == "checked" and code not in NOT_TEXT]


def blocks(code: str, heading: str) -> dict[str, str]:
    """The code blocks of one section of a page, by language."""
    page = explain_page(code)
    assert page is not None
    section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.M | re.S)
    assert len(dict(found)) == len(found) > 0
    return dict(found)


def compiled(code: str, heading: str, folder: Path) -> tuple[list[str], str]:
    """Codes of the findings of a section's model, and how they look."""
    parts = blocks(code, heading)
    (folder / "page.walk").write_text(parts["walk"], encoding="utf-8")
    if "yaml" in parts:
        (folder / "page.yaml").write_text(parts["yaml"], encoding="utf-8")
    checked = load_model(folder / "page.walk").checked
    return [d.rule.code for d in checked.findings if _counts(d.rule.code, code)], look(checked)


def _counts(found: str, code: str) -> bool:
    """A page has no binding file unless it is about one."""
    return found != "MC908" or code == "MC908"


def look(checked: Checked) -> str:
    return render_all(checked.findings, checked.sources)


@pytest.mark.parametrize("code", CODES)
def test_the_failing_block_gives_exactly_this_code(code: str, tmp_path: Path) -> None:
    codes, text = compiled(code, "Fails", tmp_path)
    assert set(codes) == {code}, text


@pytest.mark.parametrize("code", CODES)
def test_the_passing_block_is_clean(code: str, tmp_path: Path) -> None:
    codes, text = compiled(code, "Passes", tmp_path)
    assert codes == [], text
