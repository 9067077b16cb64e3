"""Runs requests on a device loop and on the host's loop, and writes down everything that either lets one see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.device_queues import Queues
from mstarc_runtime.worker.device_regions import DeviceLoop
from mstarc_runtime.worker.device_runner import Fetch, Out, Runner
from mstarc_runtime.worker.rank import Rank, Regions
from mstarc_runtime.worker.walks import WalkRun


class Fetched:
    """Copies that are there already."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [tensor.clone() for tensor in tensors]

    def ready(self) -> bool:
        return True


class DirectRunner:
    """Runs the work itself, at once: devices that finish what they are told before they return."""

    queues: Queues | None = None

    def capture(self, work: Callable[[], Out]) -> Callable[[], Out]:
        return work

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        return Fetched(tensors)

    def beside(self) -> Runner:
        return self


class LateFetch(Fetched):
    """Copies that are there after a number of looks."""

    def __init__(self, tensors: Sequence[Tensor], looks: int) -> None:
        super().__init__(tensors)
        self._looks = looks

    def ready(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class LateRunner(DirectRunner):
    """A device whose results are seen late, as a GPU's are; work and its order are the same."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        return LateFetch(tensors, self.looks)


class TogetherRunner(DirectRunner):
    """A host that was away: all copies begun within so many looks are there at once."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.looks = epoch, 0

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        return TogetherFetch(tensors, self)


class TogetherFetch(Fetched):
    """A copy of a `TogetherRunner`."""

    def __init__(self, tensors: Sequence[Tensor], runner: TogetherRunner) -> None:
        super().__init__(tensors)
        self._runner, self._begun = runner, runner.looks // runner.epoch

    def ready(self) -> bool:
        self._runner.looks += 1
        return self._runner.looks // self._runner.epoch > self._begun


@dataclass
class Ask:
    """One request. `cancel_after`: events after which it is cancelled; `delay`: turns of the event loop before it is sent."""

    inputs: dict[str, Any]
    params: dict[str, Any]
    seed: int
    cancel_after: int | None = None
    delay: int = 0


@dataclass
class Seen:
    """What a request showed: its events, how it failed, how its loops ended; and what its walks left when they ended."""

    events: list[tuple[str, Any]] = field(default_factory=list)
    error: str | None = None
    causes: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    left: dict[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """All requests, and the device loops that ran them."""

    seen: list[Seen]
    loops: list[DeviceLoop]
    host_iterations: int


async def run(linked: Linked, entry: str, asks: Sequence[Ask], regions: Regions, shuffle: int | None = None) -> Report:
    """Serve the requests together; afterwards nothing may be left: no page, no row, no session."""
    cluster = LocalCluster(linked, shuffle, regions)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    rank = cluster.ranks[0]
    host = _watch(rank)
    try:
        seen = await asyncio.gather(*[_one(engine, entry, ask) for ask in asks])
        async with asyncio.timeout(20):
            while any(engine.gauges().values()) or any(not r.idle() for r in cluster.ranks.values()):
                await asyncio.sleep(0)
        for each in cluster.ranks.values():
            gauges = each.gauges()
            totals = ("turns", "swap_out_bytes", "swap_in_bytes")
            assert {name: value for name, value in gauges.items() if name not in totals and value} == {}
        loops = [loop for loop in rank.scheduler.device_loops() if loop is not None]
        assert all(loop.empty() for loop in loops)
        assert not any(loop.state.active.any() for loop in loops)
    finally:
        await engine.stop()
    for one in seen:
        one.left = rank.left.get(one.left["request"], {})  # type: ignore[attr-defined]
    return Report(seen, loops, host[0])


async def _one(engine: Engine, entry: str, ask: Ask) -> Seen:
    for _ in range(ask.delay):
        await asyncio.sleep(0)
    seen = Seen()
    request = await engine.submit(entry, ask.inputs, ask.params, seed=ask.seed)
    seen.left = {"request": request.number}
    try:
        async with asyncio.timeout(60):
            async for event in request.events():
                value = event.value
                seen.events.append((event.modality, value.tolist() if isinstance(value, np.ndarray) else value))
                if ask.cancel_after is not None and len(seen.events) == ask.cancel_after:
                    request.cancel()
    except RequestFailed as error:
        seen.error = str(error)
    seen.causes, seen.counts = dict(request.outcome.causes), dict(request.outcome.counts)
    return seen


def _watch(rank: Rank) -> list[int]:
    """Keep what every walk leaves when it ends, by request, in `rank.left`; count iterations of the host's loop."""
    left: dict[int, Any] = {}
    rank.left = left  # type: ignore[attr-defined]
    ended, host = rank.walk_ended, [0]

    def walk_ended(run: WalkRun, results: Any) -> None:
        session = run.session
        contexts = {
            name: (c.length, c.position, c.entry_ids.tolist(), len(c.pages) - c.pool.pages_for(c.length))
            for name, c in session.contexts.items()
        }
        entries = {name: _entries(context) for name, context in session.contexts.items()}
        samplers = {name: history.ids.tolist() for name, (_, history) in session.samplers.items()}
        left.setdefault(session.request, {})[run.name] = (contexts, samplers, dict(session.draws), entries)
        ended(run, results)

    rank.walk_ended = walk_ended  # type: ignore[method-assign]
    host_loop = rank.scheduler._host_loop

    def counted(key: Any) -> Any:
        host[0] += 1
        return host_loop(key)

    rank.scheduler._host_loop = counted  # type: ignore[method-assign]
    return host


def _entries(context: Context) -> Tensor:
    """What a context holds, wherever its pages are."""
    pages = [context.pool.page(page).cpu() for page in context.pages]
    return torch.cat([context.pool.data[:, :, :0].cpu(), *pages], dim=2)[:, :, : context.length].clone()


def assert_same(found: Report, wanted: Report, asks: Sequence[Ask], tolerance: float = 1e-4) -> None:
    """Everything a request shows is the same; one that was cancelled or failed may have shown more or less of it."""
    for one, other, ask in zip(found.seen, wanted.seen, asks, strict=True):
        assert (one.error, one.causes) == (other.error, other.causes) or ask.cancel_after is not None
        if ask.cancel_after is not None or one.error is not None:  # other arms had come as far as they had come
            shared = min(len(one.events), len(other.events))
            _same_events(one.events[:shared], other.events[:shared], tolerance)
            continue
        _same_events(one.events, other.events, tolerance)
        assert one.counts == other.counts
        assert one.left.keys() == other.left.keys()
        for walk in one.left:
            assert one.left[walk][:3] == other.left[walk][:3]
            for name, entries in one.left[walk][3].items():
                torch.testing.assert_close(entries, other.left[walk][3][name], atol=tolerance, rtol=tolerance)


def _same_events(found: Sequence[tuple[str, Any]], wanted: Sequence[tuple[str, Any]], tolerance: float) -> None:
    assert [name for name, _ in found] == [name for name, _ in wanted]
    for (_, value), (_, other) in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, other, atol=tolerance, rtol=tolerance)
