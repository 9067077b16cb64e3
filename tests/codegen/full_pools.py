"""One random program over pools that hold what one request needs: six requests at once, some cancelled, on one to three ranks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mstarc.ir.core import Program
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor import local
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.session import Session
from tests.codegen.agreement import expected, random_program
from tests.codegen.harness import emissions, events_of, linked_of, serving
from tests.codegen.hash_ops import HashContext
from tests.codegen.paged_hash_ops import PagedHashOps, pages_for

STARTS = (3, 17, 404, 5, 18, 77)


@asynccontextmanager
async def _paged(
    program: Program, linked: Linked, pages: list[int], shuffle: int | None, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Engine, list[PagedHashOps]]]:
    """An engine with pools of so many pages by rank, which lets everybody in. On leaving, nothing is held."""
    tables: list[PagedHashOps] = []

    def table(of: Linked, rank: int, *more: Any) -> PagedHashOps:
        tables.append(PagedHashOps(program, of, max(1, pages[rank]), (len(STARTS) - 1) * pages[rank]))
        return tables[-1]

    patch.setattr(local, "OpTable", table)
    patch.setattr("mstarc_runtime.conductor.room.Room.pages_of", lambda room, needs: {})
    cluster = local.LocalCluster(linked, shuffle)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    try:
        yield engine, tables
        async with asyncio.timeout(30):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        for rank in cluster.ranks.values():
            assert {name: value for name, value in rank.ops.gauges().items() if value and "_bytes" not in name} == {}
            assert not rank.swaps.full()
    finally:
        await engine.stop()


async def _needed(program: Program, linked: Linked, patch: pytest.MonkeyPatch) -> list[int]:
    """Pages that one request may need, by rank: what its contexts are at their longest, forks too, which keep what their source left."""
    fork = Session.fork

    def counted(session: Session, target: str, source: str) -> None:
        fork(session, target, source)
        found = session.contexts.get(target)
        if isinstance(found, HashContext):
            found.name = target  # what is written to the fork later is its own
            found.peaks[target] = max(found.peaks.get(target, 0), found.length)

    with pytest.MonkeyPatch.context() as forks:
        forks.setattr(Session, "fork", counted)
        async with serving(program, linked, patch, None) as (engine, tables):
            for start in STARTS:
                await events_of(await engine.submit("r", {"start": start}, {}, seed=start), within_s=60)
            return [pages_for(table.peaks) for table in tables]


async def agree_in_full_pools(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """Everything is as the interpreter says; what a request showed before it was cancelled is not looked at. Bytes that were moved."""
    program, chance, moved = random_program(seed), random.Random(seed), 0
    wanted = {start: expected(program, start) for start in STARTS}
    for ranks, shuffle in ((1, None), (1, seed), (2, seed + 1), (3, seed + 2)):
        linked = linked_of(program, folder, ranks)
        pages = await _needed(program, linked, patch)
        async with _paged(program, linked, pages, shuffle, patch) as (engine, tables):
            runs = {start: await engine.submit("r", {"start": start}, {}, seed=start) for start in STARTS}
            dropped = set() if shuffle is None else set(chance.sample(STARTS, 2))
            for start in dropped:
                asyncio.get_running_loop().call_later(chance.random() * 0.01, runs[start].cancel)
            for start, run in runs.items():
                try:
                    # six at once, and of some programs each alone takes seconds
                    found = await events_of(run, within_s=60)
                except RequestFailed as error:
                    assert start in dropped and error.status == 499, f"start {start}, {ranks} ranks: {error}"
                else:
                    assert found == emissions(wanted[start]), f"start {start}, {ranks} ranks, shuffle {shuffle}"
        moved += sum(table.swap.out_bytes for table in tables)
    return moved
