"""Random programs, several requests at once, over a pool that holds what one of them needs: everything is as the interpreter says."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from mstarc_runtime.conductor import local
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.session import Session
from tests.codegen.agreement import expected, random_program, two_ended
from tests.codegen.harness import emissions, events_of, linked_of, serving
from tests.codegen.hash_ops import HashContext
from tests.codegen.paged_hash_ops import PagedHashOps, pages_for

STARTS = (3, 17, 404, 5, 18, 77)
SEEDS = tuple(islice((seed for seed in count() if two_ended(random_program(seed))), 12))
MOVED: dict[int, float] = {}  # bytes, by seed


@asynccontextmanager
async def paged(
    program: Any, linked: Any, pages: dict[int, int], shuffle: int | None, patch: pytest.MonkeyPatch
) -> Any:
    """An engine with pools of so many pages by rank, which lets everybody in. On leaving, nothing is held."""
    tables: dict[int, PagedHashOps] = {}

    def table(of: Any, rank: int, *more: Any) -> PagedHashOps:
        tables[rank] = PagedHashOps(program, of, max(1, pages[rank]), (len(STARTS) - 1) * pages[rank])
        return tables[rank]

    patch.setattr(local, "OpTable", table)
    patch.setattr("mstarc_runtime.conductor.room.Room.pages_of", lambda room, needs: {})
    cluster = local.LocalCluster(linked, shuffle)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    try:
        yield engine, tables
        async with asyncio.timeout(10):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        for rank in cluster.ranks.values():
            assert {name: value for name, value in rank.ops.gauges().items() if value and "_bytes" not in name} == {}
            assert not rank.swaps.full()
    finally:
        await engine.stop()


@pytest.fixture
def forks_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fork count among the peaks of a table: it may keep a page that its source has left."""
    fork = Session.fork

    def counted(session: Session, target: str, source: str) -> None:
        fork(session, target, source)
        if target in session.contexts and isinstance(session.contexts[target], HashContext):
            peaks = session.rank.ops.peaks  # type: ignore[attr-defined]
            peaks[target] = max(peaks.get(target, 0), session.contexts[target].length)

    monkeypatch.setattr(Session, "fork", counted)


@pytest.mark.usefixtures("forks_count")
@pytest.mark.parametrize("seed", SEEDS)
async def test_random_programs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, chance = random_program(seed), random.Random(seed)
    wanted = {start: expected(program, start) for start in STARTS}
    MOVED[seed] = 0
    for ranks, shuffle in ((1, None), (1, seed), (2, seed + 1), (3, seed + 2)):
        linked = linked_of(program, tmp_path, ranks)
        async with serving(program, linked, monkeypatch, None) as (engine, tables):  # how long contexts become
            for start in STARTS:
                await events_of(await engine.submit("r", {"start": start}, {}, seed=start))
            pages = {rank: pages_for(table.peaks) for rank, table in enumerate(tables)}
        async with paged(program, linked, pages, shuffle, monkeypatch) as (engine, paged_tables):
            runs = {start: await engine.submit("r", {"start": start}, {}, seed=start) for start in STARTS}
            dropped = set(chance.sample(STARTS, 2)) if shuffle is not None else set()
            for start in dropped:
                asyncio.get_running_loop().call_later(chance.random() * 0.01, runs[start].cancel)
            for start, run in runs.items():
                try:
                    assert await events_of(run) == emissions(wanted[start]), f"start {start}, {ranks} ranks, {shuffle}"
                except RequestFailed as error:
                    assert start in dropped and error.status == 499
            MOVED[seed] += sum(table.swap.out_bytes for table in paged_tables.values())


def test_pages_were_moved() -> None:
    """Runs after the others of this file."""
    assert sum(moved > 0 for moved in MOVED.values()) > len(MOVED) / 2
