"""Random programs with flows give what the interpreter gives: values of any length, branches, `guide`, many requests in one batch."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path

import pytest

from mstarc.ir.core import Compute, Par, Stop
from mstarc.ir.types import Apply
from mstarc.ir.visit import every_expr, every_op, exprs_of
from mstarc.passes.form_regions import form_regions, loops_of
from tests.codegen.agreement import two_ended
from tests.codegen.ahead import flow_program, runs_agree, ways

SEEDS = tuple(islice((seed for seed in count() if two_ended(flow_program(seed))), 5))


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_flows(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await runs_agree(flow_program(seed), ways(seed), tmp_path, monkeypatch)


def test_these_programs_hold_everything_that_makes_a_region_ragged() -> None:
    kinds = dict.fromkeys(("parallel", "guide", "stop", "gather", "bodies", "iter", "outside"), 0)
    for program in map(flow_program, SEEDS):
        for walk in program.walks:
            regions = form_regions(walk, program)
            kinds["outside"] += sum(loop.label not in regions for loop in loops_of(walk.body))
            for region in regions.values():
                ops = [op for body in region.bodies for op in every_op(body.loop.body)]
                if region.ragged:
                    kinds["parallel"] += any(isinstance(op, Par) for op in ops)
                    kinds["guide"] += any(_guides(op) for op in ops if isinstance(op, Compute))
                    kinds["stop"] += any(isinstance(op, Stop) for op in ops)
                    kinds["gather"] += bool(region.collects)
                    kinds["bodies"] += len(region.methods()) > 2
                    kinds["iter"] += region.changing
    assert min(kinds.values()) > 0, kinds


def _guides(op: Compute) -> bool:
    return any(isinstance(part, Apply) and part.fn == "guide" for expr in exprs_of(op) for part in every_expr(expr))
