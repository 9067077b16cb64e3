"""Heads: what an iteration shows before its first op is seen at the end of the run before it, once, wherever the iteration then runs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mstarc_runtime.worker.device_captures import Run
from mstarc_runtime.worker.device_regions import DeviceLoop, DeviceOptions
from mstarc_runtime.worker.device_row import DeviceRow
from tests.runtime import tiny
from tests.runtime.device_harness import Ask, DirectRunner, LateRunner, assert_same, run
from tests.runtime.test_device_regions import spoken

GIVEN: dict[str, Any] = {"ignore_eos": True, "temperature": 0.7}


async def test_a_first_window_is_seen_a_step_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """28 items are 27 steps and a head: the first of 7 - 1 steps, then three runs of 7."""
    settled: list[int] = []
    sent: list[int] = []
    settle = DeviceLoop._settle

    def noted(loop: DeviceLoop, results: Run) -> None:
        settled.append(results.steps)
        [(_, row)] = results.rows
        settle(loop, results)
        [out] = row.row.session.outs.values()
        sent.append(out.sent)

    monkeypatch.setattr(DeviceLoop, "_settle", noted)
    linked = tiny.speech()
    linked.config["first"] = 0  # every id is sent
    await run(
        linked,
        "speech",
        [Ask({"text": "9 10"}, {"max_tokens": 60, **GIVEN}, seed=3)],
        DeviceOptions(DirectRunner(), 7, 0),
    )
    assert [sum(settled[: n + 1]) + 1 for n in range(len(settled))][: len(settled) - 1] == sent[:-1]
    assert 27 in [sum(settled[:n]) for n in range(len(settled))]
    assert 28 in sent and sent[-1] == 60


@pytest.mark.parametrize("seed", range(8))
async def test_the_host_s_loop_goes_on_behind_a_head(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Rows are handed over at random, as if they were stuck, some of them behind a head: nothing is shown twice or left out."""
    rng = random.Random(seed)
    asks = [spoken(rng, max_tokens=rng.choice([20, 45])) for _ in range(6)]
    linked = tiny.speech(capacity=rng.choice([28, 40]))
    wanted = await run(linked, "speech", asks, "host")
    promise, behind = DeviceLoop._promise, list[bool]()

    def handing_over(loop: DeviceLoop, steps: int) -> bool:
        assert not loop.under_way
        for row in [row for row in loop.rows.values() if not row.parked]:
            if rng.random() < (0.05 if row.row.head is None else 0.3):
                behind.append(row.row.head is not None)
                loop._hand_over(row)
        return bool(loop.rows) and promise(loop, steps)

    monkeypatch.setattr(DeviceLoop, "_promise", handing_over)
    found = await run(linked, "speech", asks, DeviceOptions(LateRunner(1), rng.choice([1, 3, 7]), 0))
    assert_same(found, wanted, asks)
    assert any(behind)


@pytest.mark.parametrize("seed", range(4))
async def test_a_row_without_room_goes_to_the_host_s_loop_while_a_run_is_under_way(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rows may not go on from some iteration on, in the middle of runs of others: what runs under way tell of them later is not counted."""
    rng = random.Random(seed)
    asks = [spoken(rng, max_tokens=rng.choice([20, 45]), ignore_eos=True) for _ in range(6)]
    linked = tiny.speech(capacity=rng.choice([28, 40]))
    wanted = await run(linked, "speech", asks, "host")
    limit, hand_over = DeviceLoop._limit, DeviceLoop._hand_over
    full: dict[int, int] = {}
    listed: list[bool] = []

    def without_room(loop: DeviceLoop, row: DeviceRow, steps: int) -> int:
        return min(limit(loop, row, steps), full.setdefault(row.row.session.request, rng.randrange(2, 18)))

    def noted(loop: DeviceLoop, row: DeviceRow) -> None:
        listed.append(any(row in [other for _, other in each.rows] for each in loop.under_way))
        hand_over(loop, row)

    monkeypatch.setattr(DeviceLoop, "_limit", without_room)
    monkeypatch.setattr(DeviceLoop, "_hand_over", noted)
    monkeypatch.setattr(DeviceLoop, "_due", lambda loop: True)  # whatever the clock says
    found = await run(linked, "speech", asks, DeviceOptions(LateRunner(3), rng.choice([1, 3, 7]), 1))
    assert_same(found, wanted, asks)
    assert any(listed)
