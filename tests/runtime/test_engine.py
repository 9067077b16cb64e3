"""The engine over in-process ranks: batching, streams, isolation, cancellation, and nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.package import load_conductor
from tests.runtime import toy


@asynccontextmanager
async def serving(folder: Path, shuffle: int | None = None, **options: Any) -> AsyncIterator[Engine]:
    """A started engine over the toy; on leaving, everything must have come back to zero."""
    linked = toy.linked(folder, **options)
    cluster = LocalCluster(linked, shuffle)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    toy.LOG.clear()
    try:
        yield engine
        async with asyncio.timeout(5):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        for rank in cluster.ranks.values():
            gauges = rank.gauges()
            assert {name: value for name, value in gauges.items() if name != "turns" and value} == {}
    finally:
        await engine.stop()


async def outputs(run: RequestRun) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {"scalar": [], "tensor": []}
    async with asyncio.timeout(20):
        async for event in run.events():
            found[event.modality].append(event.value)
    return found


def sums(numbers: list[int]) -> list[int]:
    padded = numbers + [0] * (len(numbers) % 2)
    return [a + b for a, b in zip(padded[::2], padded[1::2], strict=True)]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shuffle", [None, *range(10)])
async def test_results_do_not_depend_on_ranks_or_order(tmp_path: Path, ranks: int, shuffle: int | None) -> None:
    async with serving(tmp_path, shuffle, ranks=ranks, capacity=3) as engine:
        runs = [await engine.submit("sums", {"start": 10 * i}, {"steps": i}) for i in range(6)]
        found = await asyncio.gather(*[outputs(run) for run in runs])
    for i, out in enumerate(found):
        numbers = list(range(10 * i, 11 * i))
        assert out == {"tensor": numbers, "scalar": sums(numbers)}
        assert runs[i].outcome.causes == {"count.counting": "max"}
        assert runs[i].outcome.counts["count.counting"] == i


async def test_rows_join_and_leave_one_batch(tmp_path: Path) -> None:
    async with serving(tmp_path, capacity=64) as engine:
        long = await engine.submit("sums", {"start": 0}, {"steps": 100000})
        short = await engine.submit("sums", {"start": 10**6}, {"steps": 3})
        out = await outputs(short)
        long.cancel()
    batches = [rows for name, rows in toy.LOG if name == "next"]
    assert out["tensor"] == [10**6, 10**6 + 1, 10**6 + 2]
    assert [len(rows) for rows in batches].count(2) == 3
    assert [rows[0] for rows in batches if rows[0] < 10**6] == list(range(len(batches)))


@pytest.mark.parametrize("ranks", [1, 2])
async def test_stop_before_send_and_cause(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks) as engine:
        run = await engine.submit("sums", {"start": 3}, {"steps": 50, "limit": 6})
        out = await outputs(run)
    assert out == {"tensor": [3, 4, 5], "scalar": [7, 5]}
    assert run.outcome.causes == {"count.counting": "stop"}
    assert run.outcome.counts["count.counting"] == 3


@pytest.mark.parametrize("ranks", [1, 2])
async def test_consumer_that_ends_early_turns_the_stream_into_a_sink(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks, capacity=2) as engine:
        out = await outputs(await engine.submit("early", {"start": 0}, {"steps": 40}))
    assert out == {"tensor": list(range(40)), "scalar": [1]}


@pytest.mark.parametrize("ranks", [1, 2])
async def test_consumer_that_does_not_run(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks, capacity=2) as engine:
        out = await outputs(await engine.submit("alone", {"start": 0}, {"steps": 40}))
    assert out == {"tensor": list(range(40)), "scalar": []}


@pytest.mark.parametrize("ranks", [1, 2])
async def test_coroutine_sends_wait_for_credit(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks, capacity=2) as engine:
        out = await outputs(await engine.submit("general", {"start": 0}, {"steps": 9}))
    assert out["scalar"] == sums(list(range(9)))


async def test_producer_never_runs_ahead_of_its_credit(tmp_path: Path) -> None:
    async with serving(tmp_path, capacity=2) as engine:
        await outputs(await engine.submit("sums", {"start": 0}, {"steps": 10}))
    sent = taken = 0
    for name, _ in toy.LOG:
        sent += name == "next"
        taken += 2 * (name == "pair")
        assert sent - taken <= 3  # 2 in the stream, 1 taken in a chunk that is being added


async def test_a_failing_row_hits_only_its_request(tmp_path: Path) -> None:
    async with serving(tmp_path, capacity=64, fail_at=103) as engine:
        good = [await engine.submit("sums", {"start": 10 * i}, {"steps": 8}) for i in range(3)]
        bad = await engine.submit("sums", {"start": 100}, {"steps": 8})
        found = await asyncio.gather(*[outputs(run) for run in good])
        seen: list[Any] = []
        with pytest.raises(RequestFailed, match="cannot count past 103") as error:
            async for event in bad.events():
                seen.append(event.value)
    assert error.value.status == 500
    assert [out["tensor"] for out in found] == [list(range(10 * i, 10 * i + 8)) for i in range(3)]
    assert [value for value in seen if value >= 100 and value <= 103] == [100, 101, 102, 103]


async def test_collect_and_empty_loops(tmp_path: Path) -> None:
    async with serving(tmp_path) as engine:
        some = await outputs(await engine.submit("gathered", {"start": 4}, {"steps": 3}))
        none = await outputs(await engine.submit("gathered", {"start": 4}, {"steps": 0}))
    assert some["tensor"][0].tolist() == [4, 5, 6]
    assert none["tensor"][0].tolist() == []


@pytest.mark.parametrize("ranks", [1, 2])
async def test_walk_results_feed_the_next_walk(tmp_path: Path, ranks: int) -> None:
    """Outside `together` nobody takes: sends are discarded and never wait."""
    async with serving(tmp_path, ranks=ranks, capacity=2) as engine:
        out = await outputs(await engine.submit("twice", {"start": 0}, {"steps": 9}))
    assert out == {"tensor": list(range(18)), "scalar": []}


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_stream_that_no_arm_sends_on_has_ended(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks) as engine:
        assert await outputs(await engine.submit("starved", {"start": 0}, {})) == {"tensor": [], "scalar": []}


@pytest.mark.parametrize("ranks", [1, 2])
async def test_cancel_frees_everything_and_shows_no_more(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks) as engine:
        run = await engine.submit("sums", {"start": 0}, {"steps": 100000})
        events = run.events()
        for _ in range(5):
            await anext(events)
        run.cancel()
        with pytest.raises(RequestFailed, match="cancelled"):
            async for _ in events:
                pass
        other = await outputs(await engine.submit("sums", {"start": 0}, {"steps": 2}))
    assert other == {"tensor": [0, 1], "scalar": [1]}


async def test_deadline_says_what_it_waits_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as engine:
        run = await engine.submit("sums", {"start": 0}, {"steps": 100000}, deadline_s=0.05)
        with pytest.raises(RequestFailed, match=r"deadline of 0\.05 s passed while waiting for add, count") as error:
            async for _ in run.events():
                pass
    assert error.value.status == 504


@pytest.mark.parametrize(
    ("inputs", "params", "field"),
    [
        ({"start": 1}, {"steps": -1}, "steps"),
        ({"start": 1}, {"steps": 2.5}, "steps"),
        ({"start": 1}, {"steps": "3"}, "steps"),
        ({"start": 1}, {"steps": True}, "steps"),
        ({"start": 1}, {"step": 1}, "step"),
        ({}, {}, "start"),
        ({"start": "x"}, {}, "start"),
        ({"start": 1, "end": 2}, {}, "end"),
    ],
)
async def test_bad_input_is_refused_by_name(tmp_path: Path, inputs: Any, params: Any, field: str) -> None:
    async with serving(tmp_path) as engine:
        with pytest.raises(BadRequest, match=field) as error:
            await engine.submit("sums", inputs, params)
    assert error.value.field == field


# ------------------------------------------------------------------------------- one request's fault is no other's


@asynccontextmanager
async def strange(folder: Path, ranks: int, **changes: Any) -> AsyncIterator[Engine]:
    """The toy with a phrase stream whose `cut` is given."""
    linked = toy.linked(folder, ranks=ranks, capacity=64)
    stream = msgspec.structs.replace(linked.streams[0], **changes)
    linked = msgspec.structs.replace(linked, streams=[stream], externs={"cut": "tests.runtime.toy.cut"})
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        yield engine
        assert engine.ready
    finally:
        await engine.stop()


async def failing(run: RequestRun, message: str) -> None:
    with pytest.raises(RequestFailed, match=message):
        await outputs(run)


@pytest.mark.parametrize("ranks", [1, 2])
async def test_a_cut_that_raises(tmp_path: Path, ranks: int) -> None:
    phrase = {"policy": "phrase", "args": {"cut": "cut", "max": 2}, "at_end": "partial"}
    async with strange(tmp_path, ranks, **phrase) as engine:
        good = await engine.submit("sums", {"start": 0}, {"steps": 8})
        bad = await engine.submit("sums", {"start": toy.UNCUTTABLE - 3}, {"steps": 8})
        await failing(bad, "cannot cut")
        assert (await outputs(good))["tensor"] == list(range(8))
        again = await engine.submit("sums", {"start": 5}, {"steps": 2})
        assert (await outputs(again))["tensor"] == [5, 6]


async def test_values_of_other_shapes_share_a_loop_but_no_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as engine:
        starts: list[Any] = [1, [1, 2, 3], [[1], [2]], 10]
        runs = [await engine.submit("gathered", {"start": start}, {"steps": 3}) for start in starts]
        found = [(await outputs(run))["tensor"][0].tolist() for run in runs]
    assert found == [[1, 2, 3], [1, 2, 3, 2, 3, 4, 3, 4, 5], [[1], [2], [2], [3], [3], [4]], [10, 11, 12]]


@pytest.mark.parametrize("ranks", [1, 2])
async def test_items_that_cannot_be_stacked(tmp_path: Path, ranks: int) -> None:
    async with serving(tmp_path, ranks=ranks) as engine:
        good = await engine.submit("general", {"start": 0}, {"steps": 6})
        bad = await engine.submit("ragged", {"start": 0}, {"steps": 6})
        await failing(bad, "walk `add` failed")
        assert (await outputs(good))["scalar"] == [1, 5, 9]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("entry", ["unsendable", "unemittable", "unreturnable"])
async def test_values_that_cannot_travel(tmp_path: Path, ranks: int, entry: str) -> None:
    async with serving(tmp_path, ranks=ranks) as engine:
        good = await engine.submit("sums", {"start": 0}, {"steps": 200})
        bad = await engine.submit(entry, {"start": 0}, {"steps": 2})
        if entry == "unsendable" and ranks == 1:
            await failing(bad, "walk `add` failed")  # it never leaves the rank; adding it fails
        else:
            await failing(bad, "failed")
        assert (await outputs(good))["tensor"] == list(range(200))
