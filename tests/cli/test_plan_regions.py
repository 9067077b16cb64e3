"""`mstarc plan` about launches, streams and moves: what the shipped models are under the shipped placements, kept in goldens.

`python -m tests.cli.test_plan_regions --update-golden` writes the files anew; read the difference before you keep it.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from mstarc.cli.costs import CostCall
from mstarc.cli.planning import run_plan

GOLDENS = Path(__file__).parents[1] / "goldens" / "plan"
TABLES = ("regions", "streams", "moves between ranks")
CASES = [
    ("orpheus", ""),
    ("orpheus", "orpheus_2xcpu"),
    ("orpheus", "pd_split"),
    ("orpheus", "tp2"),
    ("pi05", ""),
    ("vjepa2_ac", ""),
    ("ask", "2xcpu"),
    ("bagel", ""),
    ("bagel", "3xh100"),
    ("qwen3_omni", "omni_2xh200"),
]


def shown(model: str, placement: str, form: str) -> tuple[str, int]:
    """The tables of this part, as text or JSON, and the exit status."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        status = run_plan(f"generated/{model}", placement or None, (), form, CostCall())
    if form == "json":
        found = json.loads(out.getvalue())
        return json.dumps({key: found[key] for key in ("moves", "regions")}, indent=2) + "\n", status
    blocks = out.getvalue().split("\n\n")
    return "\n\n".join(block for block in blocks if block.splitlines()[0] in TABLES) + "\n", status


def golden(model: str, placement: str, form: str) -> Path:
    return GOLDENS / f"{model}{'@' + placement if placement else ''}.{'json' if form == 'json' else 'txt'}"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(("model", "placement"), CASES)
def test_it_is_drawn_like_this(model: str, placement: str, form: str) -> None:
    text, status = shown(model, placement, form)
    path = golden(model, placement, form)
    assert path.is_file(), "no golden; write it with --update-golden"
    assert text == path.read_text(encoding="utf-8")
    assert status == (1 if placement in ("pd_split", "tp2", "3xh100") else 0)


def test_the_codec_fires_once_in_seven_steps() -> None:
    assert "7 llm.step + 1 snac.decode" in shown("orpheus", "", "text")[0]
    apart = shown("orpheus", "orpheus_2xcpu", "text")[0]
    assert "snac.decode" not in apart
    assert "speak on 0 to vocode on 1  shm        512       512 >= 28" in apart


def test_all_steps_of_the_flow_are_one_launch() -> None:
    assert "all flow_steps steps (10 by default): llm.velocity on prefix" in shown("pi05", "", "text")[0]


def test_guided_steps_are_a_phase_of_their_own() -> None:
    text = shown("bagel", "", "text")[0]
    assert "all steps - 1 steps (49 by default), in 2 phases" in text
    assert text.index("\n    on ") < text.index("\n    not on ")


def test_fan_out_and_join_of_the_branches() -> None:
    moves = json.loads(shown("bagel", "3xh100", "json")[0])["moves"]
    steps = {(m["verb"], m["source"], tuple(m["sinks"])): m for m in moves if m["per"] == "step"}
    assert set(steps) == {("fan-out", 0, (1, 2)), ("join", 1, (0,)), ("join", 2, (0,))}
    assert {(m["number"], m["when"]) for m in steps.values()} == {(4 * 64, "on")}  # f32, 64 numbers a row
    assert {m["usual"] for m in steps.values()} == {4 * 64 * 64 * 64}  # of 1024 x 1024 pixels, 64 x 64 rows


def test_every_edge_of_the_omni_model_has_its_transport_and_its_inequality() -> None:
    lines = shown("qwen3_omni", "omni_2xh200", "text")[0].split("\nstreams\n")[1].splitlines()[1:5]
    ways = {line.split()[0]: ("shm" if "  shm  " in line else "slot") for line in lines}
    assert ways == {"states": "shm", "media": "shm", "said": "shm", "frames": "slot"}
    assert lines[2].endswith("max_tokens+1 >= 2 >= 1 = 1 + 1 - gcd(1, 1)")
    assert lines[3].endswith("512 >= 50 = 1 + 25 + 25 - gcd(1, 25)")


if __name__ == "__main__":
    assert sys.argv[1:] == ["--update-golden"], __doc__
    GOLDENS.mkdir(exist_ok=True)
    for case in CASES:
        for kind in ("text", "json"):
            golden(*case, kind).write_text(shown(*case, kind)[0], encoding="utf-8")
