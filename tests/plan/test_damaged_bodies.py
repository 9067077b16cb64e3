"""Bodies of walks in a plan that somebody has edited: a clear failure or a picture, never a traceback."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path

import pytest

from mstarc.cli.costs import CostCall
from mstarc.cli.guard import Failure
from mstarc.cli.planning import run_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("model", ["orpheus", "pi05"])
def test_lines_that_are_lost_doubled_or_changed(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "generated" / model
    shutil.copytree(ROOT / "generated" / model, folder)
    whole = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    rng = random.Random(model)
    failed = 0
    for _ in range(60):
        changed = copy.deepcopy(whole)
        body = rng.choice(changed["walks"])["body"]
        place = rng.randrange(len(body))
        word = rng.choice(body[place].replace("(", " ").replace(")", " ").split())
        other = rng.choice(["", "%0", "llm", "x", "99", "device", word + word])
        body[place] = body[place].replace(word, other, 1)
        (folder / "plan.json").write_text(json.dumps(changed), encoding="utf-8")
        try:
            run_plan(str(folder), None, (), "json", CostCall())
        except Failure as failure:
            failed += 1
            told = "cannot be used as it is" in str(failure), "error[MC016]" in capsys.readouterr().err
            assert all(told) or "cannot be linked" in str(failure)
        capsys.readouterr()
    assert failed > 10
