"""How a finding of each rule looks: the failing block of its page, as `mstarc check` or `mstarc plan` prints it.

`python -m tests.diagnostics.test_page_goldens --update-golden` writes the files anew; read the difference before you keep it.
"""

from __future__ import annotations

import difflib
import re
import sys
import tempfile
from pathlib import Path

import pytest

from tests.diagnostics.test_explain_pages import CODES, blocks, compiled

FOLDER = Path(__file__).parent / "pages"


def shown(code: str, folder: Path) -> str:
    """The findings, with the folder's own name left out."""
    return compiled(code, "Fails", folder)[1].replace(f"{folder}/", "")


@pytest.mark.parametrize("code", CODES)
def test_the_finding_looks_like_this(code: str, tmp_path: Path) -> None:
    golden = FOLDER / f"{code}.stderr"
    assert golden.is_file(), "no golden; write it with --update-golden"
    assert shown(code, tmp_path) == golden.read_text(encoding="utf-8")


def test_every_rule_is_here_and_no_other() -> None:
    assert {path.stem for path in FOLDER.glob("*.stderr")} == set(CODES)


def test_every_finding_says_what_to_do() -> None:
    """But a text that does not parse, whose label says what is due there."""
    silent = [
        path.stem for path in FOLDER.glob("*.stderr") if not re.search(r"^ *= (help|fix):", path.read_text(), re.M)
    ]
    assert silent == ["MC010"]


@pytest.mark.parametrize("code", CODES)
def test_the_failing_block_is_the_passing_one_with_one_mistake(code: str) -> None:
    """A mutant of each rule: what differs between the two is small, and stands together."""
    fails, passes = blocks(code, "Fails"), blocks(code, "Passes")
    changed = 0
    for language in fails.keys() | passes.keys():
        old, new = (found.get(language, "").splitlines() for found in (passes, fails))
        for op, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            changed += max(b - a, d - c) if op != "equal" else 0
    assert 0 < changed <= 7


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update-golden"], __doc__
    FOLDER.mkdir(exist_ok=True)
    for each in CODES:
        with tempfile.TemporaryDirectory() as place:
            (FOLDER / f"{each}.stderr").write_text(shown(each, Path(place)), encoding="utf-8")
