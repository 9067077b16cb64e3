"""Walks that the conductor starts ahead: the rank goes from one to the next itself, and none begins after one that failed."""

from __future__ import annotations

import asyncio
import itertools
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import Finish, Freed, Message, Open, Start, WalkEnded, WalkFailed
from mstarc_runtime.conductor import requests
from mstarc_runtime.conductor.calls import Calls, WalkCall
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor, load_worker
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.rank import Rank
from tests.runtime import toy

CONDUCTOR = """
    from mstarc_runtime.program import ConductorProgram, Entry, Input, Param


    class Toy(ConductorProgram):
        PARAMS = (Param("steps", "int", default=3, low=0, high=100000), Param("times", "int", default=2, low=1, high=100))
        ENTRIES = tuple(
            Entry(name, (Input("start", "tensor", dtype="i64"),), (("scalar", False), ("tensor", False)))
            for name in ("pair", "many", "joined", "far", "unreturned")
        )
        ARMS = {"joined_a": (("numbers",), ()), "joined_b": ((), ("numbers",)), "joined_none": ((), ())}
        RESULTS = {"count": 1, "gather": 2}

        def pair(self, request):
            yield request.start("count", request.inputs.start, -1)
            yield request.walk("gather", request.inputs.start + 50)

        def many(self, request):
            for k in range(request.params.times):
                yield request.start("gather", request.inputs.start + 10 * k)

        def joined(self, request):
            yield request.start("gather", request.inputs.start)
            yield request.together(a=self.joined_a(request), b=self.joined_b(request), none=self.joined_none(request))

        def joined_a(self, request):
            yield request.start("count", request.inputs.start + 10, -1)
            yield request.walk("count", request.inputs.start + 20, -1, closes=("numbers",))

        def joined_b(self, request):
            yield request.walk("add")

        def joined_none(self, request):
            return
            yield

        def far(self, request):
            yield request.start("gather", request.inputs.start)
            yield request.start("add")
            yield request.walk("gather", request.inputs.start + 10)

        def unreturned(self, request):
            yield request.start("unreturnable", 1)
            yield request.walk("gather", request.inputs.start)

        def count_need(self, request, need, start, limit): ...
        def gather_need(self, request, need, start): ...
        def add_need(self, request, need): ...
        def unreturnable_need(self, request, need, count): ...
"""


def linked(folder: Path, **options: Any) -> Linked:
    found = toy.linked(folder, **options)
    (folder / "conductor.py").write_text(textwrap.dedent(CONDUCTOR))
    return found


class Recorder(LocalCluster):
    """Keeps what is sent, as (name of the message, run or None)."""

    def post(self, source: int, peer: int, message: Message) -> None:
        self.told: list[tuple[str, Any]] = getattr(self, "told", [])
        self.told.append((type(message).__name__, getattr(message, "run", None)))
        super().post(source, peer, message)

    def runs(self, name: str) -> list[Any]:
        return [run for told, run in self.told if told == name]


@asynccontextmanager
async def serving(folder: Path, shuffle: int | None = None, **options: Any) -> AsyncIterator[tuple[Engine, Recorder]]:
    """On leaving, everything must have come back to zero."""
    program = linked(folder, **options)
    cluster = Recorder(program, shuffle)
    engine = Engine(program, load_conductor(program), cluster)
    await engine.start()
    toy.LOG.clear()
    try:
        yield engine, cluster
        async with asyncio.timeout(5):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        for rank in cluster.ranks.values():
            assert {name: value for name, value in rank.gauges().items() if name != "turns" and value} == {}
    finally:
        await engine.stop()


async def outputs(run: RequestRun, modality: str = "tensor") -> list[Any]:
    async with asyncio.timeout(20):
        values = [event.value async for event in run.events() if event.modality == modality]
    return [getattr(value, "tolist", lambda value=value: value)() for value in values]


def rows() -> list[int]:
    """What the counting op was called with, in order."""
    return [row for name, batch in toy.LOG if name == "next" for row in batch]


# ------------------------------------------------------------------------------------------------------------ the rank alone


class Port:
    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, peer: int, message: Message) -> None:
        self.sent.append(message)

    def ends(self) -> list[tuple[type, int]]:
        return [(type(m), m.run) for m in self.sent if isinstance(m, WalkEnded | WalkFailed)]


def opened(folder: Path, **options: Any) -> tuple[Rank, Port]:
    program, port = linked(folder, **options), Port()
    rank = Rank(program, 0, load_worker(program), port, OpTable(program, 0))
    rank.handle(Open(1, {"steps": 2}, {}, 0, []))
    toy.LOG.clear()
    return rank, port


def work(rank: Rank) -> None:
    while not rank.idle():
        rank.turn()


def test_a_rank_goes_from_walk_to_walk_without_a_message(tmp_path: Path) -> None:
    rank, port = opened(tmp_path)
    rank.handle(Start(1, 7, "gather", [10], 0, []))
    rank.handle(Start(1, 8, "gather", [20], 0, [], 7))
    rank.handle(Start(1, 9, "gather", [30], 0, [], 8))
    work(rank)
    assert rows() == [10, 11, 20, 21, 30, 31]
    assert port.ends() == [(WalkEnded, 7), (WalkEnded, 8), (WalkEnded, 9)]
    rank.handle(Start(1, 10, "gather", [40], 0, [], 9))  # that one has ended: at once
    work(rank)
    assert rows()[-2:] == [40, 41]
    rank.handle(Finish(1))
    rank.tell()
    assert port.sent[-1] == Freed(1, {})


def test_nothing_begins_after_a_walk_that_failed(tmp_path: Path) -> None:
    rank, port = opened(tmp_path, fail_at=11)
    rank.handle(Start(1, 7, "gather", [10], 0, []))
    rank.handle(Start(1, 8, "gather", [20], 0, [], 7))
    work(rank)
    rank.handle(Start(1, 9, "gather", [30], 0, [], 8))  # was on its way
    work(rank)
    assert rows() == [10, 11]
    assert port.ends() == [(WalkFailed, 7)]
    rank.handle(Finish(1))
    rank.tell()
    assert port.sent[-1] == Freed(1, {})
    assert rank.gauges()["requests"] == 0


def test_walks_of_several_arms_follow_one(tmp_path: Path) -> None:
    rank, port = opened(tmp_path)
    for run, start, after in ((7, 10, 0), (8, 20, 7), (9, 30, 7), (10, 40, 0)):
        rank.handle(Start(1, run, "gather", [start], 0, [], after))
    work(rank)
    assert sorted(rows()) == [10, 11, 20, 21, 30, 31, 40, 41]
    assert max(rows().index(10), rows().index(11)) < min(rows().index(20), rows().index(30))
    assert {run for _, run in port.ends()} == {7, 8, 9, 10}


# --------------------------------------------------------------------------------------------------------- through the engine


@pytest.mark.parametrize("shuffle", [None, 1, 2, 3])
async def test_both_are_started_before_the_first_has_ended(tmp_path: Path, shuffle: int | None) -> None:
    async with serving(tmp_path, shuffle) as (engine, cluster):
        run = await engine.submit("pair", {"start": 0}, {"steps": 3})
        assert await outputs(run) == [0, 1, 2, [50, 51, 52]]
    names = [name for name, _ in cluster.told if name in ("Start", "WalkEnded")]
    assert names == ["Start", "Start", "WalkEnded", "WalkEnded"]
    assert run.outcome.causes == {"count.counting": "max"}
    assert run.outcome.counts["count.counting"] == 3


async def test_a_walk_on_another_rank_is_started_by_the_conductor(tmp_path: Path) -> None:
    async with serving(tmp_path, ranks=2) as (engine, cluster):
        run = await engine.submit("far", {"start": 0}, {"steps": 1})
        assert await outputs(run) == [[0], [10]]
    names = [name for name, _ in cluster.told if name in ("Start", "WalkEnded")]
    assert names == ["Start", "WalkEnded"] * 3


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("shuffle", [None, 1, 2, 3])
async def test_the_arms_of_a_together_follow_too(tmp_path: Path, ranks: int, shuffle: int | None) -> None:
    async with serving(tmp_path, shuffle, ranks=ranks) as (engine, cluster):
        assert await outputs(await engine.submit("joined", {"start": 0}, {"steps": 2})) == [[0, 1], 10, 11, 20, 21]
        cluster.told.clear()
        assert await outputs(await engine.submit("joined", {"start": 0}, {"steps": 2}), "scalar") == [21, 41]
    first_end = cluster.told.index(("WalkEnded", cluster.runs("Start")[0]))
    started = [name for name, _ in cluster.told[:first_end]].count("Start")
    assert started == (4 if ranks == 1 else 3)  # on another rank the consumer is started when the walk before has ended


@pytest.mark.parametrize("shuffle", [None, 1, 2, 3])
async def test_a_failure_is_told_once_and_the_next_never_begins(tmp_path: Path, shuffle: int | None) -> None:
    async with serving(tmp_path, shuffle, fail_at=102) as (engine, cluster):
        good = await engine.submit("pair", {"start": 0}, {"steps": 4})
        bad = await engine.submit("pair", {"start": 100}, {"steps": 4})
        with pytest.raises(RequestFailed, match=r"walk `count` failed at .*cannot count past 102"):
            await outputs(bad)
        assert await outputs(good) == [0, 1, 2, 3, [50, 51, 52, 53]]
        assert engine.counters["failed"] == engine.counters["stopped"] == 1
    assert 150 not in rows()
    assert len(cluster.runs("WalkFailed")) == 1


@pytest.mark.parametrize("shuffle", [None, 1, 2, 3])
async def test_a_cancel_ends_what_runs_and_what_was_to_follow(tmp_path: Path, shuffle: int | None) -> None:
    async with serving(tmp_path, shuffle) as (engine, cluster):
        run = await engine.submit("pair", {"start": 0}, {"steps": 100000})
        events = run.events()
        assert (await anext(events)).value == 0
        run.cancel()
        with pytest.raises(RequestFailed, match="cancelled"):
            async for _ in events:
                pass
        await asyncio.wait_for(run.freed.wait(), 5)
        assert await outputs(await engine.submit("pair", {"start": 7}, {"steps": 1})) == [7, [57]]
    assert [row for before, row in pairwise(rows()) if row != before + 1] == [
        7,
        57,
    ]  # counted from 0, then the other request
    assert len(cluster.runs("Start")) == 4


async def test_the_deadline_names_the_walk_that_runs(tmp_path: Path) -> None:
    async with serving(tmp_path) as (engine, _):
        run = await engine.submit("pair", {"start": 0}, {"steps": 100000}, deadline_s=0.05)
        with pytest.raises(RequestFailed, match=r"passed while waiting for count$"):
            await outputs(run)


async def test_a_lost_rank_fails_all_that_was_started(tmp_path: Path) -> None:
    async with serving(tmp_path) as (engine, cluster):
        run = await engine.submit("pair", {"start": 0}, {"steps": 100000})
        await anext(run.events())
        ready = engine.ranks.up[0]
        engine._on_lost(0, "killed")
        with pytest.raises(RequestFailed, match="worker 0 was lost: killed") as error:
            await outputs(run)
        assert error.value.status == 503
        assert engine.gauges()["walks"] == 0
        cluster.ranks[0].handle(Finish(run.number))  # its next life knows nothing of the request
        engine._on_message(0, ready)
        assert await outputs(await engine.submit("pair", {"start": 7}, {"steps": 1})) == [7, [57]]


async def test_results_that_cannot_travel_stop_what_has_begun_meanwhile(tmp_path: Path) -> None:
    async with serving(tmp_path) as (engine, _):
        run = await engine.submit("unreturned", {"start": 0}, {"steps": 100000})
        with pytest.raises(RequestFailed, match="walk `unreturnable` failed"):
            await outputs(run)
        await asyncio.wait_for(run.freed.wait(), 5)
        assert engine.counters["failed"] == 1
    assert len(rows()) < 1000


async def test_few_starts_wait_on_a_rank(tmp_path: Path) -> None:
    async with serving(tmp_path) as (engine, cluster):
        found = await outputs(await engine.submit("many", {"start": 0}, {"times": 30, "steps": 2}))
    assert found == [[10 * k, 10 * k + 1] for k in range(30)]
    under_way = [
        [name for name, _ in cluster.told[:end]].count("Start")
        - [name for name, _ in cluster.told[:end]].count("WalkEnded")
        for end in range(len(cluster.told))
    ]
    assert max(under_way) == requests.AHEAD + 1


async def test_nothing_is_sent_behind_a_walk_that_failed_while_another_was_awaited() -> None:
    """The first of a full line ends, and the second fails before the program, which waits for the first, is resumed."""
    calls, numbers = Calls(), itertools.count(1)

    def send_walk(run: Any, name: str, args: Any, scope: int, closes: Any, after: WalkCall | None) -> WalkCall:
        call = WalkCall(run, next(numbers), name, 0, after, asyncio.get_running_loop().create_future())
        calls.add(call)
        return call

    engine = SimpleNamespace(rank_of=lambda name: 0, send_walk=send_walk)
    request: Any = SimpleNamespace(engine=engine, outcome=requests.Outcome(), count=lambda counts: None)
    line, step = requests.Line(request, 0, None), requests.WalkStep("gather", (), (), ahead=True)
    for _ in range(requests.AHEAD + 1):
        await line.walk(step)
    waits = asyncio.create_task(line.walk(step))
    await asyncio.sleep(0)
    calls.ended(WalkEnded(1, 1, [], {}, {}))
    calls.failed(2, RequestFailed("the second broke"))
    with pytest.raises(RequestFailed, match="the second broke"):
        await asyncio.wait_for(waits, 5)
    assert len(calls) == 0
