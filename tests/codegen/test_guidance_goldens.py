"""`guide`, `linspace` and `shift` against numbers of BAGEL's official sampler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from mstarc_runtime.abi.host_math import linspace, shift
from mstarc_runtime.guidance import guide
from mstarc_runtime.program import ABSENT

FOLDER = Path(__file__).parents[1] / "goldens" / "bagel"
CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "guidance.json").read_text(encoding="utf-8"))
TENSORS = load_file(FOLDER / "guidance.safetensors")


def close(found: Any, due: Any, tolerance: float) -> None:
    np.testing.assert_allclose(found, due, rtol=0, atol=tolerance * float(np.abs(due).max()))


def times_of(case: dict[str, Any]) -> tuple[float, ...]:
    return shift(linspace(1, 0, case["num_boundaries"]), case["shift"])


@pytest.mark.parametrize("count", [8, 50])
def test_the_shifted_boundaries(count: int) -> None:
    close(shift(linspace(1, 0, count), 3.0), TENSORS[f"schedule/boundaries_{count}"], 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_first_step_is_mixed_as_the_official_sampler_does(name: str) -> None:
    case = CASES[name]
    times = times_of(case)
    close(times[:-1], TENSORS[f"{name}/timesteps"], 1e-6)
    low, high = case["interval"]
    v, a, b = (TENSORS.get(f"{name}/v_{context}_0", ABSENT) for context in ("main", "cfg_text", "cfg_img"))
    on = low < times[0] <= high
    scales = case["cfg_text"], case["cfg_img"]
    found = guide(v, a if on else ABSENT, b if on else ABSENT, *scales, case["renorm"], case.get("renorm_min", 0.0))
    close(found, TENSORS[f"{name}/velocity"][0], 1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if f"{name}/latents" in TENSORS])
def test_the_steps_lead_to_the_latents(name: str) -> None:
    times, x = times_of(CASES[name]), TENSORS[f"{name}/noise"]
    for k, v in enumerate(TENSORS[f"{name}/velocity"]):
        x = x - (times[k] - times[k + 1]) * v
    close(x, TENSORS[f"{name}/latents"], 5e-4)
