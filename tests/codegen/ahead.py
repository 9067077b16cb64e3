"""Random programs on the device path of a CPU rank: captured loops are called directly, their results are seen late, and what is free
is poisoned. Takes a seed; fails if anything that a request shows is not what the interpreter gives with the same components.

Runs of k iterations go ahead of what the host has seen, so rows go on after their end, sends wait for credit between runs, and a
cancelled request leaves work behind. All of that must be invisible.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import torch
from torch import Tensor

from mstarc.interp import Outcome, interpret
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.device_batch import Outcome as RunOutcome
from mstarc_runtime.worker.device_regions import DeviceLoop, DeviceOptions
from mstarc_runtime.worker.device_row import DeviceRow
from mstarc_runtime.worker.rank import Rank, Regions
from mstarc_runtime.worker.session import Session
from mstarc_runtime.worker.streams import StreamOut
from tests.codegen.ahead_programs import AheadGenerator
from tests.codegen.flow_programs import FlowGenerator
from tests.codegen.harness import linked_of, spread
from tests.interp.component_machine import ComponentMachine
from tests.runtime.device_harness import LateRunner

STARTS = (3, 17, 404)
ROWS = 2  # of a loop, so that one request waits for a row
MOST = 1024  # entries of a context
UNROLLS = (1, 7, 14)
Out = TypeVar("Out")


@cache
def ahead_program(seed: int) -> Program:
    program = parse_program(AheadGenerator(seed).text())
    verify(program)
    return program


@cache
def flow_program(seed: int) -> Program:
    program = parse_program(FlowGenerator(seed).text())
    verify(program)
    return program


@dataclass
class Shown:
    """What a request showed: values and attributes by modality, how its loops ended; and what its sessions held at their end."""

    events: dict[str, list[tuple[Any, Mapping[str, Any]]]]
    causes: Mapping[str, str]
    contexts: dict[str, tuple[int, int]] = field(default_factory=dict)
    draws: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """How a program is run. `cancel`: the request that is cancelled, and after how many events."""

    unroll: int
    ahead: int
    looks: int
    ranks: int = 1
    shuffle: int | None = None
    cancel: tuple[int, int] | None = None


def ways(seed: int) -> list[Way]:
    """A run of each length, mostly one behind, on one to three ranks, in some order; in one of them a request is cancelled."""
    r = random.Random(seed)
    cancelled = r.choice(UNROLLS)
    return [
        Way(
            unroll,
            ahead=r.choice([1, 1, 2, 0]),
            looks=r.choice([0, 1, 3]),
            ranks=r.randint(1, 3),
            shuffle=r.choice([None, r.randrange(10**6)]),
            cancel=(r.randrange(len(STARTS)), r.randrange(1, 6)) if unroll == cancelled else None,
        )
        for unroll in UNROLLS
    ]


# ------------------------------------------------------------------------------------------------------------ interpreter


def expected(program: Program, linked: Linked, start: int) -> Shown:
    """What the interpreter gives with the same components."""
    out: Outcome = interpret(program, ComponentMachine.of_linked(linked), {"start": start}, seed=start)
    events: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
    for event in out.events:
        attributes = {name: _plain(value) for name, value in event.attrs.items()}
        events.setdefault(event.modality, []).append((_plain(event.value), attributes))
    draws = {name: tuple(int(token) for token in ids) for name, ids in out.draws.items() if ids}
    return Shown(events, dict(out.causes), dict(out.contexts), draws)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


# ----------------------------------------------------------------------------------------------------------------- poison


class PoisonRunner(LateRunner):
    """Late results, and outputs that the next replay of any capture destroys, as the graphs of one memory pool do."""

    def __init__(self, looks: int) -> None:
        super().__init__(looks)
        self._last: list[Tensor] = []
        self.replays = 0

    def capture(self, work: Callable[[], Out]) -> Callable[[], Out]:
        def replay() -> Out:
            for tensor in self._last:
                poison(tensor)
            self.replays += 1
            out = work()
            if isinstance(out, RunOutcome):
                self._last = [out.valid, out.ids, *out.values.values()]
            return out

        return replay


def poison(tensor: Tensor) -> None:
    """Fill with what shows if it is used."""
    tensor.fill_(float("nan") if tensor.is_floating_point() else -1 if tensor.dtype != torch.bool else True)


@contextmanager
def poisoned(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Freed pages and the slots of rows that have left are poisoned, streams refuse what they have no room for, and warnings of the
    worker are errors."""
    patch.setattr("mstarc_runtime.worker.kv.PagedPool.from_bytes", partial(PagedPool.from_bytes, poison=True))
    patch.setattr("mstarc_runtime.worker.rank.MAX_ROWS", ROWS)
    patch.setattr(StreamOut, "push", _if_there_is_room(StreamOut.push))
    for name in ("_leave", "_hand_over"):
        patch.setattr(DeviceLoop, name, _then_poison(getattr(DeviceLoop, name)))
    heard = _Warnings()
    log = logging.getLogger("mstarc.worker")
    log.addHandler(heard)
    try:
        yield
    finally:
        log.removeHandler(heard)
    assert not heard.said, heard.said


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


def _if_there_is_room(push: Callable[..., None]) -> Callable[..., None]:
    def pushes(self: StreamOut, item: Any, **more: Any) -> None:
        assert self.room(), f"stream {self.stream} of capacity {self.capacity} is full"
        push(self, item, **more)

    return pushes


def _then_poison(leave: Callable[..., None]) -> Callable[..., None]:
    def leaves(self: DeviceLoop, row: DeviceRow, *more: Any) -> None:
        slot, state = row.slot, self.state
        leave(self, row, *more)
        kept = [state.active, state.iter, state.until, state.bound, state.ended]
        for tensor in state.tensors():
            if not any(tensor is one for one in kept):
                poison(tensor[slot])

    return leaves


# ---------------------------------------------------------------------------------------------------------------- runtime


def linked_program(program: Program, folder: Path) -> Linked:
    """The program with hash components on one rank."""
    bound = {node.name: "tests.codegen.tensor_hash.Plain" for node in program.nodes}
    bound["llm"] = "tests.codegen.tensor_hash.Causal"
    linked = linked_of(program, folder, 1, bound)
    pages = len(STARTS) * len(linked.contexts) * MOST // 16
    caches = [msgspec.structs.replace(cache, pages=pages) for cache in linked.caches]
    contexts = [msgspec.structs.replace(context, max=MOST) for context in linked.contexts]
    return msgspec.structs.replace(linked, caches=caches, contexts=contexts)


async def shown_by(linked: Linked, regions: Regions, way: Way) -> list[Shown]:
    """All starts at once. Afterwards nothing may be left: no page, no row, no session."""
    cluster = LocalCluster(linked, way.shuffle, regions)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    try:
        held = _watch(cluster.ranks.values())
        runs = [await engine.submit("r", {"start": start}, {}, seed=start) for start in STARTS]
        found = await asyncio.gather(*[_shown(run, k, way) for k, run in enumerate(runs)])
        async with asyncio.timeout(100):
            while any(engine.gauges().values()) or not all(rank.idle() for rank in cluster.ranks.values()):
                await asyncio.sleep(0)
        for rank in cluster.ranks.values():
            assert {name: value for name, value in rank.gauges().items() if name != "turns" and value} == {}
            for loop in rank.scheduler.device_loops():
                assert loop.empty() and not loop.state.active.any()
        for run, one in zip(runs, found, strict=True):
            one.contexts, one.draws = held.get(run.number, ({}, {}))
        return list(found)
    finally:
        await engine.stop()


async def _shown(run: Any, number: int, way: Way) -> Shown:
    events: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
    count, stop = 0, way.cancel[1] if way.cancel is not None and way.cancel[0] == number else -1
    try:
        async with asyncio.timeout(200):
            async for event in run.events():
                events.setdefault(event.modality, []).append((_plain(event.value), dict(event.attributes)))
                count += 1
                if count == stop:
                    run.cancel()
    except Exception:
        if stop < 0:
            raise
    return Shown(events, dict(run.outcome.causes))


def _watch(ranks: Any) -> dict[int, tuple[dict[str, tuple[int, int]], dict[str, tuple[int, ...]]]]:
    """Contexts (length, position) and draws of every request, as its sessions hold them when they end."""
    held: dict[int, tuple[dict[str, tuple[int, int]], dict[str, tuple[int, ...]]]] = {}

    def watch(rank: Rank) -> None:
        finish = rank._finish

        def finishes(request: int) -> None:
            session: Session | None = rank.sessions.get(request)
            if session is not None:
                contexts, draws = held.setdefault(request, ({}, {}))
                contexts.update({name: (c.length, c.position) for name, c in session.contexts.items()})
                counted = {name: tuple(h.ids.tolist()) for name, (_, h) in session.samplers.items() if h.count}
                draws.update(counted)
            finish(request)

        rank._finish = finishes  # type: ignore[method-assign]

    for rank in ranks:
        watch(rank)
    return held


def assert_shown(found: Sequence[Shown], wanted: Sequence[Shown], way: Way) -> None:
    """Everything is the same; a request that was cancelled has shown a beginning of it."""
    for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if way.cancel is not None and way.cancel[0] == k:
            for modality, values in one.events.items():
                assert values == other.events.get(modality, [])[: len(values)], f"start {STARTS[k]}, {modality}, {way}"
            continue
        assert one.events == other.events, f"start {STARTS[k]}, {way}"
        assert one.causes == other.causes, f"start {STARTS[k]}, {way}"
        assert one.draws == other.draws, f"start {STARTS[k]}, {way}"
        ends = {name: at for name, at in other.contexts.items() if at != (0, 0)}
        assert {name: at for name, at in one.contexts.items() if at != (0, 0)} == ends, f"start {STARTS[k]}, {way}"


async def agree_ahead(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> int:
    """One random program in several ways. Gives how many runs of loops were launched."""
    return await runs_agree(ahead_program(seed), ways(seed), folder, patch)


async def runs_agree(program: Program, run: Sequence[Way], folder: Path, patch: pytest.MonkeyPatch) -> int:
    """A program shows what the interpreter shows, in each of these ways. Gives how many runs of loops were launched."""
    linked = linked_program(program, folder)
    wanted = [expected(program, linked, start) for start in STARTS]
    launched = 0
    with poisoned(patch):
        for way in run:
            runner = PoisonRunner(way.looks)
            options = DeviceOptions(runner, way.unroll, way.ahead)
            assert_shown(await shown_by(spread(linked, way.ranks), options, way), wanted, way)
            launched += runner.replays
    return launched
