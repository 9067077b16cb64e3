"""How findings about a placement look: the failing block of each page that has a placement, as `mstarc plan` prints it.

`python -m tests.diagnostics.test_link_pages --update-golden` writes the files anew; read the difference before you keep it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from tests.diagnostics.test_explain_pages import CODES, blocks, compiled

FOLDER = Path(__file__).parent / "linked"
PLACED = [code for code in CODES if "toml" in blocks(code, "Fails")]


def shown(code: str, folder: Path) -> str:
    """The findings, with the folder's own name left out."""
    return compiled(code, "Fails", folder)[1].replace(f"{folder}/", "")


@pytest.mark.parametrize("code", PLACED)
def test_the_finding_looks_like_this(code: str, tmp_path: Path) -> None:
    golden = FOLDER / f"{code}.stderr"
    assert golden.is_file(), "no golden; write it with --update-golden"
    assert shown(code, tmp_path) == golden.read_text(encoding="utf-8")


def test_every_rule_of_linking_is_here() -> None:
    assert {"MC207", "MC208", "MC503", "MC604", "MC605", "MC606", "MC607", "MC608", "MC609"} <= set(PLACED)
    assert {path.stem for path in FOLDER.glob("*.stderr")} == set(PLACED)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update-golden"], __doc__
    FOLDER.mkdir(exist_ok=True)
    for each in PLACED:
        with tempfile.TemporaryDirectory() as place:
            (FOLDER / f"{each}.stderr").write_text(shown(each, Path(place)), encoding="utf-8")
