"""specs/vjepa2.walk on the reference checkpoint: every request gives the reference's features, alone and beside others."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.errors import BadRequest
from tests.e2e.shipped import ask, linked, near, running
from tests.models.vjepa2_cases import Cases

GOLDEN = Cases("vjepa2")
VIDEO = "pixel_values_videos"


@pytest.fixture(scope="module")
def program() -> Any:
    return linked("vjepa2", {"vjepa2": GOLDEN.folder})


def request_of(case: str, row: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Request, inputs and params of a row of a case."""
    inputs: dict[str, Any] = {"video": GOLDEN.tensor(case, VIDEO)[row].numpy()}
    if case.startswith("encode"):
        return "features", inputs, {}
    if case.startswith("predict"):
        masks = [name for name in ("context_mask", "target_mask") if GOLDEN.has(case, name)]
        return "predict", inputs | {name: GOLDEN.tensor(case, name)[row].numpy() for name in masks}, {}
    stated = GOLDEN.cases[case]["params"]
    params = {
        "horizon": stated["num_steps"],
        "output_frames": stated["num_output_frames"],
        "seconds": stated["anticipation_seconds"],
        "rate": stated["frames_per_second"],
    }
    return "rollout", inputs, params


def wanted(case: str, row: int) -> Any:
    if case.startswith("rollout"):
        return GOLDEN.tensor(case, "predicted").flatten(0, 1).numpy()
    name = "last_hidden_state" if case.startswith("encode") else "predictor_output"
    return GOLDEN.tensor(case, name)[row].numpy()


EVERY = [(case, row) for case in GOLDEN.cases for row in range(len(GOLDEN.tensor(case, VIDEO)))]


async def test_every_case_alone_and_together(program: Any) -> None:
    async with running(program) as engine:
        alone = [await ask(engine, *request_of(*each)) for each in EVERY]
        together = await asyncio.gather(*[ask(engine, *request_of(*each)) for each in EVERY])
    for (case, row), found in [*zip(EVERY, alone, strict=True), *zip(EVERY, together, strict=True)]:
        (features,) = found["video"]
        near(features, wanted(case, row), 3e-4 if case.startswith("rollout") else 1e-4)


async def test_a_live_rollout_is_the_same_rollout(program: Any) -> None:
    case = "rollout_1s"
    name, inputs, params = request_of(case, 0)
    async with running(program) as engine:
        steps = (await ask(engine, name, inputs, params | {"live": True}))["video"]
    near(np.stack(steps), GOLDEN.tensor(case, "predicted").numpy(), 3e-4)


async def test_frames_of_a_camera(program: Any) -> None:
    """A longer video of another size is sampled, resized and cropped; features come, the same for an array, a list and a file."""
    frames = np.random.default_rng(0).integers(0, 256, (20, 90, 120, 3), np.uint8)
    async with running(program) as engine:
        (one,) = (await ask(engine, "features", {"video": frames}))["video"]
        (two,) = (await ask(engine, "features", {"video": list(frames)}))["video"]
    assert one.shape == (64, 64) and np.array_equal(one, two)


@pytest.mark.parametrize(
    ("request_name", "inputs", "params", "field"),
    [
        ("features", {"video": np.zeros((2, 3, 32, 32), np.float32)}, {}, "video"),
        ("features", {"video": b"junk"}, {}, "video"),
        ("predict", {"video": np.zeros((2, 3, 64, 64), np.float32), "context_mask": [16]}, {}, "context_mask"),
        ("predict", {"video": np.zeros((2, 3, 64, 64), np.float32), "target_mask": [-1]}, {}, "target_mask"),
        ("rollout", {"video": np.zeros((2, 3, 64, 64), np.float32)}, {"output_frames": 4}, "output_frames"),
        ("rollout", {"video": np.zeros((2, 3, 64, 64), np.float32)}, {"horizon": 17}, "horizon"),
    ],
)
async def test_what_does_not_fit_is_refused_before_it_runs(
    program: Any, request_name: str, inputs: dict[str, Any], params: dict[str, Any], field: str
) -> None:
    async with running(program) as engine:
        with pytest.raises(BadRequest) as caught:
            await ask(engine, request_name, inputs, params)
    assert caught.value.field == field
