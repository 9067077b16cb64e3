"""Generated code on the runtime gives what the interpreter gives: the same emissions, loop ends and context lengths, on one to
three ranks, under any order of messages and turns, alone and in a batch. This is what generated code means.
"""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from mstarc.ir.core import Program, Stop
from mstarc.passes.effects import calls_of
from mstarc.passes.form_regions import form_regions, loops_of
from mstarc.passes.transitions import Ahead
from tests.codegen.agreement import agree_everywhere, random_program, two_ended

SEEDS = tuple(islice((seed for seed in count() if two_ended(random_program(seed))), 300))


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_programs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await agree_everywhere(seed, tmp_path, monkeypatch)


def started_ahead(program: Program) -> int:
    """Walk calls whose end the conductor does not wait for."""
    return sum(call in Ahead(request) for request in program.requests for call in calls_of(request.body))


def test_random_programs_hold_both_kinds_of_loops() -> None:
    regions = coroutines = sends = gathers = stops = starts = 0
    for seed in SEEDS:
        program = random_program(seed)
        starts += started_ahead(program)
        for walk in program.walks:
            found = form_regions(walk, program)
            regions += len(found)
            coroutines += sum(loop.label not in found for loop in loops_of(walk.body))
            sends += sum(any(body.sends for body in region.bodies) for region in found.values())
            gathers += sum(bool(region.collects) for region in found.values())
            stops += sum(any(isinstance(op, Stop) for op in r.loop.body.ops) for r in found.values())
    assert len(SEEDS) == 300
    assert starts > 300
    assert min(regions, coroutines) > 20
    assert min(sends, gathers, stops) > 5
