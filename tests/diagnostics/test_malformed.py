"""Malformed specs, at least one a family: what `mstarc check` prints for each is kept beside it.

`python -m tests.diagnostics.test_malformed --update-golden` writes the files anew; read the difference before you keep it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mstarc.checked import FINDINGS
from mstarc.diagnostics.text import render_all
from mstarc.workspace import check

FOLDER = Path(__file__).parent / "malformed"
SPECS = sorted(path.name for path in FOLDER.glob("*.walk"))


def shown(name: str) -> tuple[str, int]:
    """What the text form says about one spec, named as seen from its folder, and the exit code."""
    here = Path.cwd()
    os.chdir(FOLDER)
    try:
        checked = check([name])
    finally:
        os.chdir(here)
    return render_all(checked.findings, checked.sources), checked.exit_code()


@pytest.mark.parametrize("name", SPECS)
def test_the_findings_look_like_this(name: str) -> None:
    golden = FOLDER / name.replace(".walk", ".stderr")
    text, status = shown(name)
    assert golden.is_file(), "no golden; write it with --update-golden"
    assert text == golden.read_text(encoding="utf-8")
    assert status == FINDINGS


@pytest.mark.parametrize("name", SPECS)
def test_every_finding_has_a_place_and_a_code(name: str) -> None:
    checked = check([FOLDER / name])
    assert checked.findings
    for finding in checked.findings:
        source = checked.sources[finding.primary.span.file]
        assert 0 <= finding.primary.span.start < finding.primary.span.end <= len(source.text.encode())


def test_every_family_is_here() -> None:
    codes = {finding.rule.code[:3] for name in SPECS for finding in check([FOLDER / name]).findings}
    assert {"MC0", "MC1", "MC2", "MC3", "MC4", "MC5", "MC9"} <= codes
    assert len(SPECS) >= 10


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update-golden"], __doc__
    for spec in SPECS:
        (FOLDER / spec.replace(".walk", ".stderr")).write_text(shown(spec)[0], encoding="utf-8")
