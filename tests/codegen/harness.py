"""From IR text to a running engine: generates a package in a folder, links it, and serves it on ranks inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mstarc.binding_file import Binding, Component
from mstarc.codegen.render import render
from mstarc.diagnostics.core import Collector
from mstarc.interp import HashMachine, Outcome, interpret
from mstarc.ir.core import Program
from mstarc.plan.build import build_plan
from mstarc.plan.link import link
from mstarc.plan.model import Plan, SpecPlan, to_text
from mstarc.plan.placement import Placement
from mstarc.source import SourceFile
from mstarc_runtime.abi.linked import Linked, RankLink
from mstarc_runtime.conductor import local
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.package import load_conductor
from tests.codegen.hash_ops import HashOps


def plan_of(program: Program, bound: Mapping[str, str] | None = None) -> Plan:
    """A plan whose nodes are bound to these classes, or to nothing that exists."""
    components = {node.name: Component((bound or {}).get(node.name, f"nowhere.{node.name}")) for node in program.nodes}
    externs = {extern.name: f"nowhere.{extern.name}" for extern in program.externs}
    binding = Binding(components=components, externs=externs)
    return build_plan(program, binding, SpecPlan(path="x.walk", binding="x.yaml", digest="0"), SourceFile("x.walk", ""))


def linked_of(program: Program, folder: Path, ranks: int = 1, bound: Mapping[str, str] | None = None) -> Linked:
    """Generated files in the folder, linked; with more ranks, walk k runs on rank k % ranks. `bound`: classes of nodes."""
    for name, text in render(program, "x.walk").items():
        (folder / name).write_text(text, encoding="utf-8")
    plan = plan_of(program, bound)  # random programs bound no context; the hash machine has no pool to run out of
    contexts = [msgspec.structs.replace(context, max=context.max or "100000") for context in plan.contexts]
    plan = msgspec.structs.replace(plan, contexts=contexts)
    (folder / "plan.json").write_text(to_text(plan), encoding="utf-8")
    report = Collector()
    linked = link(plan, Placement(), folder, report)
    assert linked is not None, [d.message for d in report.findings()]
    return linked if ranks == 1 else spread(linked, ranks)


def spread(linked: Linked, ranks: int) -> Linked:
    """The same program with its walks dealt to ranks (every walk here has contexts and samplers of its own)."""
    of = {walk.name: k % ranks for k, walk in enumerate(linked.walks)}
    walks = [msgspec.structs.replace(walk, rank=of[walk.name]) for walk in linked.walks]
    streams = []
    for stream in linked.streams:
        source = next((of[w.name] for w in linked.walks if stream.name in w.sends), 0)
        sink = next((of[w.name] for w in linked.walks if stream.name in w.takes), source)
        way = "slot" if source == sink else "shm"
        streams.append(msgspec.structs.replace(stream, source=source, sink=sink, transport=way))
    return msgspec.structs.replace(linked, walks=walks, streams=streams, ranks=[RankLink(rank=k) for k in range(ranks)])


@asynccontextmanager
async def serving(
    program: Program, linked: Linked, monkeypatch: pytest.MonkeyPatch, shuffle: int | None
) -> AsyncIterator[tuple[Engine, list[HashOps]]]:
    """An engine with hash ops. On leaving, everything must have come back to zero."""
    tables: list[HashOps] = []

    def table(of: Linked, rank: int, *more: Any) -> HashOps:
        tables.append(HashOps(program, of))
        return tables[-1]

    monkeypatch.setattr(local, "OpTable", table)
    cluster = local.LocalCluster(linked, shuffle)
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    try:
        yield engine, tables
        async with asyncio.timeout(10):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
    finally:
        await engine.stop()


async def events_of(run: RequestRun, within_s: float = 10) -> dict[str, list[tuple[Any, Mapping[str, Any]]]]:
    """Per modality the values and attributes, in order."""
    found: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
    async with asyncio.timeout(within_s):
        async for event in run.events():
            found.setdefault(event.modality, []).append((plain(event.value), dict(event.attributes)))
    return found


def plain(value: Any) -> Any:
    """Numbers and lists, whatever held them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def emissions(outcome: Outcome) -> dict[str, list[Any]]:
    """What the interpreter emitted, as `events_of` gives it."""
    found: dict[str, list[Any]] = {}
    for event in outcome.events:
        attributes = {name: plain(value) for name, value in event.attrs.items()}
        found.setdefault(event.modality, []).append((plain(event.value), attributes))
    return found


async def agrees(program: Program, inputs: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Generated code gives what the interpreter gives, on one rank and on two in another order; what that is."""
    entry = program.requests[0].name
    wanted = interpret(program, HashMachine(program), inputs, seed=5)
    one = linked_of(program, folder)
    for linked, shuffle in ((one, None), (spread(one, 2), 11)):
        async with serving(program, linked, monkeypatch, shuffle) as (engine, _):
            run = await engine.submit(entry, inputs, {}, seed=5)
            got = await events_of(run)
            assert got == emissions(wanted), f"{len(linked.ranks)} ranks: {got} instead of {emissions(wanted)}"
            assert run.outcome.causes == dict(wanted.causes)
    return wanted
