"""The language reference `specs/README.md` as data: its code blocks, and the words and tables of its sections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mstarc.diagnostics.text import render_all
from mstarc.frontend import load_text
from mstarc.passes.checks import run_checks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "specs" / "README.md").read_text(encoding="utf-8")
NAME = "page.walk"
#: what the page says that its fragments may leave open
UNFINISHED = frozenset({"MC006", "MC411", "MC505", "MC509", "MC510", "MC515"})

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_FIRST = re.compile(r"# (?:(?P<place>declarations|in a walk|in a request)(?:, )?)?(?:fails (?P<code>MC\d{3}))?\n")
_STANDS = {
    "declarations": "# declarations stand here",
    "in a walk": "# statements in a walk stand here",
    "in a request": "# statements in a request stand here",
}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. place: "" = a whole file, else where the fragment stands. code: the finding that it must give, or ""."""

    language: str
    text: str
    section: str
    place: str = ""
    code: str = ""

    @property
    def title(self) -> str:
        """What a failing test is called."""
        return f"{self.section}: {self.text.splitlines()[-1].strip()[:40]}" if self.place else self.text.splitlines()[0]


def blocks(language: str) -> list[Block]:
    """All blocks of a language, in order."""
    found = []
    for match in _FENCE.finditer(TEXT):
        if match[1] == language:
            first = _FIRST.match(match[2])
            place, code = (first["place"] or "", first["code"] or "") if first else ("", "")
            found.append(Block(match[1], match[2], _heading_before(match.start()), place, code))
    return found


def _heading_before(position: int) -> str:
    return str(re.findall(r"^## (.*)$", TEXT[:position], re.M)[-1])


def section(heading: str) -> str:
    """The text of one section."""
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
    assert found is not None, f"the page has no section `{heading}`"
    return found[1]


def table(heading: str, first: str) -> list[list[str]]:
    """The rows of the table of a section whose first head is `first`; cells without the bars around them."""
    rows: list[list[str]] = []
    inside = False
    for line in section(heading).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif inside and set(cells[0]) != {"-"}:
            rows.append([cell.replace("\\|", "|") for cell in cells])
        inside = inside or (bool(cells) and cells[0] == first)
    assert rows, f"section `{heading}` has no table `{first}`"
    return rows


def quoted(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`]+)`", text)


def model(name: str) -> str:
    """The whole model of that name."""
    return next(b.text for b in blocks("walk") if b.text.startswith(f"model {name}\n"))


def around(text: str, place: str) -> str:
    """The page's model around fragments, with a fragment in its place."""
    return model("around").replace(_STANDS[place], text)


def findings(text: str) -> tuple[list[str], str]:
    """Codes of everything that the front end and the checks find in a model, and how it looks."""
    program, report, source = load_text(NAME, text)
    if program is not None and not report.failed:
        run_checks(program, report)
    found = report.findings()
    return [d.rule.code for d in found], render_all(found, {NAME: source})


def codes_of(block: Block) -> tuple[set[str], str]:
    """Codes of a block's findings, without those that a fragment may leave open."""
    text = around(block.text, block.place) if block.place else block.text
    codes, look = findings(text)
    is_part = block.place or block.text == model("around")
    return set(codes) - (UNFINISHED - {block.code} if is_part else set()), look
