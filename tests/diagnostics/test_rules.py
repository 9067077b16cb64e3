"""The table of rules: codes, families, pages."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from mstarc.cli.explaining import RULES as ALL
from mstarc.diagnostics import rules
from mstarc.diagnostics.machine import explain_page
from mstarc.diagnostics.rules import RULES, rule_state

HEADINGS = ["What it means", "Fails", "Passes", "Why the rule exists"]
CHECKED = [code for code in ALL if rule_state(code) in ("checked", "link", "weights")]


def test_codes_and_names_are_unique_and_well_formed() -> None:
    assert all(code == rule.code and re.fullmatch(r"MC\d{3}", code) for code, rule in RULES.items())
    names = [rule.name for rule in RULES.values()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)


def test_every_code_of_the_first_list_is_kept() -> None:
    first = [*range(1, 8), *range(101, 106), *range(201, 209), *range(301, 306), *range(401, 411)]
    first += [*range(501, 505), *range(601, 605), *range(701, 704), *range(801, 804)]
    assert {f"MC{number:03}" for number in first} <= set(RULES)


def test_a_rule_silences_only_rules() -> None:
    assert all(code in RULES for rule in RULES.values() for code in rule.silences)


def test_summaries_are_one_line_without_a_period() -> None:
    assert all("\n" not in r.summary and not r.summary.endswith(".") for r in RULES.values())


@pytest.mark.parametrize("code", CHECKED)
def test_every_checked_rule_has_a_page(code: str) -> None:
    page = explain_page(code)
    assert page is not None, f"{code} has no page"
    assert page.startswith(f"# {code} {ALL[code].name}\n")
    assert re.findall(r"^## (.+)$", page, re.M) == HEADINGS
    assert len(page.splitlines()) <= (60 if rule_state(code) == "checked" else 90)


def test_every_page_belongs_to_a_rule() -> None:
    folder = files("mstarc.diagnostics").joinpath("explain")
    pages = [p.name for p in folder.iterdir() if p.name.endswith(".md")]
    assert pages and all(name.removesuffix(".md") in ALL for name in pages)
    assert explain_page("MC999") is None


def test_states() -> None:
    assert rule_state("MC000") == "internal" and rules.MC000.severity == "error"
    assert {rule_state(code) for code in RULES} == {"internal", "checked", "link", "weights", "reserved"}


def test_nothing_reports_a_reserved_code() -> None:
    """And what is reported is listed as such: a page, `see` below the finding, a test that meets it."""
    sources = [path.read_text(encoding="utf-8") for path in Path(rules.__file__).parents[1].rglob("*.py")]
    used = {code for text in sources for code in re.findall(r"\brules\.(MC\d{3})\b", text)}
    assert used and not {code for code in used if rule_state(code) == "reserved"}
