"""Schedules and guidance of a flow: generated code = interpreter = the released sampler's rule, written out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstarc.passes.form_regions import regions_of
from mstarc_runtime.guidance import guide
from mstarc_runtime.program import ABSENT
from mstarc_runtime.sampling.philox import DrawKey, normals
from tests.codegen.written import Asked, agree, compiled

FLOW = """
model flow
param steps      : int in 2..50 = 9
param time_shift : float in 0.1..10.0 = 3.0
param text       : float in 0.0..20.0 = 4.0
param image      : float in 0.0..20.0 = 2.0
param above      : float in 0.0..1.0 = 0.4
param upto       : float in 0.0..1.0 = 1.0
param with_b     : bool = true
param renorm     : enum(global, channel, text_channel) = global
param least      : float in 0.0..1.0 = 0.0
node net : stateless { op velocity(x: f32[5, 4], t: f32, kind: i64) -> v: f32[5, 4] }
walk draw(seen: i64) {
    times = shift(linspace(1, 0, steps), time_shift)
    x = noise(f32[5, 4])
    loop denoise times steps - 1 carry x {
        t  = times[iter]
        on = above < t and t <= upto
        parallel {
            v = net.velocity(x, t, 0)
            a = net.velocity(x, t, 1)  when on and text > 1
            b = net.velocity(x, t, 2)  when on and text > 1 and with_b
        }
        x = x - (t - times[iter + 1]) * guide(v, a, b, text, image, renorm, least)
    }
    emit x as tensor
}
request r(seen: i64) -> tensor { draw(seen) }
"""
DEFAULTS = {
    "steps": 9,
    "time_shift": 3.0,
    "text": 4.0,
    "image": 2.0,
    "above": 0.4,
    "upto": 1.0,
    "with_b": True,
    "renorm": "global",
    "least": 0.0,
}
CASES: list[dict[str, Any]] = [
    {},
    {"renorm": "channel"},
    {"renorm": "text_channel", "above": 0.0},
    {"text": 1.0},
    {"image": 1.0},
    {"image": 0.5, "renorm": "text_channel"},
    {"with_b": False},
    {"with_b": False, "renorm": "text_channel", "least": 0.9},
    {"least": 1.0},
    {"steps": 2, "time_shift": 1.0},
    {"upto": 0.7, "steps": 30},
]


def released(v: Any, a: Any, b: Any, text: float, image: float, renorm: str, least: float) -> Any:
    """The rule of BAGEL's released sampler. a, b None = that branch was not run."""
    if a is None or text <= 1.0:
        return v
    if renorm == "text_channel":
        mixed = a + text * (v - a)
        factor = torch.norm(v, dim=-1, keepdim=True) / (torch.norm(mixed, dim=-1, keepdim=True) + 1e-8)
        mixed = mixed * factor.clamp(min=least, max=1.0)
        return b + image * (mixed - b) if b is not None and image > 1.0 else mixed
    mixed = a + text * (v - a)
    if b is not None and image > 1.0:
        mixed = b + image * (mixed - b)
    if renorm == "global":
        factor = torch.norm(v) / (torch.norm(mixed) + 1e-8)
    else:
        factor = torch.norm(v, dim=-1, keepdim=True) / (torch.norm(mixed, dim=-1, keepdim=True) + 1e-8)
    return mixed * factor.clamp(min=least, max=1.0)


def sampled(seed: int, p: dict[str, Any]) -> tuple[Any, int]:
    """The flow with torch's own tables; also how many steps were guided."""
    times = torch.linspace(1, 0, p["steps"])
    times = p["time_shift"] * times / (1 + (p["time_shift"] - 1) * times)
    x = torch.from_numpy(normals((5, 4), DrawKey(seed, "draw/x", 0)))
    guided = 0
    for i in range(p["steps"] - 1):
        t = times[i]
        on = bool(t > p["above"]) and bool(t <= p["upto"]) and p["text"] > 1
        guided += on
        v, a, b = (torch.sin(x * (1 + k) + t) * (1 + k) for k in range(3))
        mixed = released(
            v, a if on else None, b if on and p["with_b"] else None, p["text"], p["image"], p["renorm"], p["least"]
        )
        x = x - (t - times[i + 1]) * mixed
    return x, guided


FIELD = "components:\n  net: tests.codegen.handed_components.Field\n"


def test_its_loop_is_a_region_with_a_body_for_each_way(tmp_path: Path) -> None:
    """A condition that asks for another one, too, holds only with it: three ways, not four."""
    program, _ = compiled(tmp_path, FLOW, FIELD)
    assert len(regions_of(program)["draw"]["denoise"].bodies) == 3
    worker = (tmp_path / "package/worker.py").read_text(encoding="utf-8")
    assert (
        "            t = times[denoise_iter]\n            on = walk.params.above < t and t <= walk.params.upto\n"
        in worker
    )
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--check", str(tmp_path)]
    assert subprocess.run(ruff, capture_output=True, check=False).returncode == 0


async def test_a_flow_is_that_of_the_interpreter_and_of_the_released_sampler(tmp_path: Path) -> None:
    asked = [Asked({"seen": 1}, case, seed=k) for k, case in enumerate(CASES)]
    found = await agree(tmp_path, FLOW, FIELD, asked)
    counts = []
    for one, got in zip(asked, found, strict=True):
        due, guided = sampled(one.seed, DEFAULTS | dict(one.params))
        counts.append(guided)
        np.testing.assert_allclose(np.asarray(got.events["tensor"][0]), due.numpy(), rtol=2e-5, atol=2e-5)
    assert counts[0] == 7  # of 8 steps: those whose shifted time is above 0.4
    assert counts[3] == 0


def test_the_released_schedule_is_guided_in_41_of_49_steps() -> None:
    assert sampled(0, DEFAULTS | {"steps": 50})[1] == 41


@pytest.mark.parametrize("renorm", ["global", "channel", "text_channel"])
@pytest.mark.parametrize("b_on", [True, False])
def test_guide_of_torch_and_numpy(renorm: str, b_on: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    v, a, b = (torch.randn(6, 3, generator=generator) for _ in range(3))
    due = released(v, a, b if b_on else None, 3.0, 1.7, renorm, 0.2)
    assert torch.allclose(guide(v, a, b if b_on else ABSENT, 3.0, 1.7, renorm, 0.2), due, atol=1e-6)
    arrays = guide(v.numpy(), a.numpy(), b.numpy() if b_on else ABSENT, 3.0, 1.7, renorm, 0.2)
    assert arrays.dtype == np.float32
    np.testing.assert_allclose(arrays, due.numpy(), atol=1e-6)


def test_guide_with_one_branch_and_without_a_limit() -> None:
    v, a = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 1.0]])
    assert torch.equal(guide(v, a, 3.0), a + 3 * (v - a))
    assert guide(v, ABSENT, 3.0) is v
    assert guide(v, a, 1.0) is v
    assert guide(v, ABSENT, a, 3.0, 2.0) is v
    assert torch.allclose(torch.norm(guide(v, a, 3.0, "global")), torch.norm(v))
