"""specs/pi05.walk on the reference checkpoint: actions from given pixels, ids and noise, alone and beside others; a frozen prefix."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from mstarc_runtime.abi.messages import Message, Start, WalkEnded
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.engines.transformer import TransformerEngine
from mstarc_runtime.program import Part
from mstarc_runtime.worker.device_regions import DeviceLoop, DeviceOptions
from tests.e2e.pi05_given import GOLDEN, PAIRS, noise, task_of
from tests.e2e.shipped import ask, linked, near, running
from tests.runtime.device_harness import Ask, LateRunner, assert_same, run

EXTERNS = {name: f"tests.e2e.pi05_given.{name}" for name in ("prompt", "cameras")}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("mstarc_runtime.worker.ops.normals", noise)
    return linked("pi05", {"pi05": GOLDEN.folder}, EXTERNS)


async def action(engine: Any, number: int) -> Any:
    case, row = PAIRS[number]
    task = task_of(case, row)
    inputs = {"images": [Part("image", task=task)], "task": task}
    steps = GOLDEN.cases[case]["params"]["num_steps"]
    (found,) = (await ask(engine, "act", inputs, {"flow_steps": steps}, seed=number))["action"]
    return found


def wanted(number: int) -> Any:
    case, row = PAIRS[number]
    return GOLDEN.tensor(case, "actions")[row].numpy()


async def test_every_case_alone_and_together(program: Any) -> None:
    """One to three cameras, a gap, padding, five steps: each as the reference, also in one batch of all."""
    async with running(program) as engine:
        alone = [await action(engine, number) for number in range(len(PAIRS))]
        together = await asyncio.gather(*[action(engine, number) for number in range(len(PAIRS))])
    for number in range(len(PAIRS)):
        near(alone[number], wanted(number), 3e-4)
        near(together[number], alone[number], 1e-5)
    assert {GOLDEN.tensor(case, "image_mask")[row].sum().item() for case, row in PAIRS} == {1, 2, 3}


async def test_the_rank_goes_from_the_prefix_to_the_flow_by_itself(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are started before the first has ended, and the actions are those of the reference."""
    told: list[str] = []
    post = LocalCluster.post

    def noted(cluster: LocalCluster, source: int, peer: int, message: Message) -> None:
        if isinstance(message, Start | WalkEnded):
            told.append(message.walk if isinstance(message, Start) else "an end")
        post(cluster, source, peer, message)

    monkeypatch.setattr(LocalCluster, "post", noted)
    async with running(program) as engine:
        near(await action(engine, 0), wanted(0), 3e-4)
    assert told == ["look", "flow", "an end", "an end"]


async def test_the_flow_leaves_the_prefix_as_it_was(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page, length and position of a prefix is the same before and after each flow step, bit for bit."""
    call = TransformerEngine.call
    checked: list[int] = []

    def watched(engine: TransformerEngine, method: Any, spec: Any, calls: Any, *more: Any) -> Any:
        if not spec.frozen:
            return call(engine, method, spec, calls, *more)
        before = [_state(engine, each.contexts[0]) for each in calls]
        results = call(engine, method, spec, calls, *more)
        for each, was in zip(calls, before, strict=True):
            now = _state(engine, each.contexts[0])
            assert now[1:] == was[1:] and torch.equal(now[0], was[0])
        checked.extend(len(each.contexts[0].pages) for each in calls)
        return results

    monkeypatch.setattr(TransformerEngine, "call", watched)
    async with running(program) as engine:
        found = await asyncio.gather(*[action(engine, number) for number in range(3)])
    assert len(checked) == sum(GOLDEN.cases[PAIRS[n][0]]["params"]["num_steps"] for n in range(3)) and min(checked) > 0
    for number, each in enumerate(found):
        near(each, wanted(number), 3e-4)


def _state(engine: TransformerEngine, context: Any) -> tuple[Any, ...]:
    """(keys and values of its pages, pages, length, position)."""
    rows = [
        engine.pool.data[:, :, page * engine.pool.page_size : (page + 1) * engine.pool.page_size]
        for page in context.pages
    ]
    return torch.cat(rows, dim=2).clone(), list(context.pages), context.length, context.position


async def test_the_noise_is_drawn_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without given noise: equal seeds, equal actions; other seeds, others."""
    program = linked("pi05", {"pi05": GOLDEN.folder}, EXTERNS)
    task = task_of(*PAIRS[0])
    inputs = {"images": [Part("image", task=task)], "task": task}
    async with running(program) as engine:
        one, two, three = [(await ask(engine, "act", inputs, seed=seed))["action"][0] for seed in (7, 7, 8)]
    assert np.array_equal(one, two) and np.abs(one - three).max() > 1e-2


@pytest.mark.parametrize("unroll", [0, 4])
async def test_the_flow_as_one_launch(unroll: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured or on the host, with fewer, as many and more steps than a launch holds, and side by side: the same actions."""
    launch, launched = DeviceLoop._launch, []

    def noted(loop: DeviceLoop, steps: int) -> None:
        launched.append(steps)
        launch(loop, steps)

    monkeypatch.setattr(DeviceLoop, "_launch", noted)
    program = linked("pi05", {"pi05": GOLDEN.folder}, EXTERNS)
    asks = []
    for number, steps in ((0, 10), (1, 3), (2, 12), (1, 1)):
        task = task_of(*PAIRS[number])
        asks.append(Ask({"images": [Part("image", task=task)], "task": task}, {"flow_steps": steps}, seed=number))
    wanted_report = await run(program, "act", asks, "host")
    found = await run(program, "act", asks, DeviceOptions(LateRunner(2), unroll, 1))
    assert_same(found, wanted_report, asks)
    assert (found.host_iterations, [loop.unroll for loop in found.loops]) == (0, [unroll or 10])
    assert set(launched) == {unroll or 10}
