"""Launches of loops: what the plan says may be one launch, and what a placement makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.codegen.package import compile_model
from mstarc.plan.model import Plan
from tests.plan.test_link import TWO, linked

ROOT = Path(__file__).resolve().parents[2]


def plan_of(model: str) -> Plan:
    plan = compile_model(ROOT / f"specs/{model}.walk", ROOT / f"generated/{model}").plan
    assert plan is not None
    return plan


@pytest.fixture(scope="module")
def orpheus() -> Plan:
    return plan_of("orpheus")


def test_the_codec_runs_in_the_launch_of_the_language_model(orpheus: Plan) -> None:
    [loop] = linked(orpheus).loops
    assert (loop.walk, loop.label, loop.region) == ("speak", "frames", "speak_frames")
    assert (loop.unroll, loop.fused) == (7, ["codes"])
    assert (loop.ahead, loop.rollback) == (None, ["main", "speech"])


def test_apart_they_are_two_launches_and_a_stream(orpheus: Plan) -> None:
    found = linked(orpheus, TWO + "[place]\nllm = 0\nsnac = 1\n")
    assert (found.loops[0].unroll, found.loops[0].fused) == (1, [])
    assert (found.streams[0].source, found.streams[0].sink, found.streams[0].transport) == (0, 1, "shm")


@pytest.mark.parametrize(("model", "loop", "steps"), [("pi05", "flow.steps", 10), ("vjepa2_ac", "imagine.dream", 1)])
def test_all_steps_of_a_static_loop_are_one_launch(model: str, loop: str, steps: int) -> None:
    loops = {f"{found.walk}.{found.label}": found for found in linked(plan_of(model)).loops}
    assert (loops[loop].whole, loops[loop].unroll) == (True, steps)


def test_a_loop_that_waits_for_items_runs_one_iteration_at_a_time() -> None:
    plan = plan_of("ask")
    loops = {f"{found.walk}.{found.label}": found for found in linked(plan).loops}
    assert {found.unroll for found in loops.values()} == {1}
    [fusion] = plan.fusions
    assert fusion.apart[0] == "where a phrase of `phrases` ends is decided on the host"


def test_arguments_of_a_region_have_numbers_for_dims() -> None:
    for model in ("orpheus", "ask", "vjepa2_ac"):
        plan = plan_of(model)
        for found in linked(plan).loops:
            assert bool(found.carry) == bool(found.region)
            assert all(isinstance(dim, int) and dim > 0 for shape in found.carry + found.fixed for dim in shape.dims)
    [loop] = linked(plan_of("orpheus")).loops
    assert [(shape.dtype, shape.dims) for shape in loop.carry] == [("i64", [])]
