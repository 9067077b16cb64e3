"""From the text of a spec to events: on the engine with real components in this process, and on the reference interpreter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mstarc.codegen.package import compile_model, write_package
from mstarc.diagnostics.core import Collector
from mstarc.interp import interpret
from mstarc.ir.core import Program
from mstarc.plan.link import link
from mstarc.plan.placement import Placement
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.rank import Regions
from tests.interp.component_machine import ComponentMachine

PAGES = 1000  # of a pool: more than these requests need, less than its share of the memory


@dataclass(frozen=True)
class Asked:
    """One request of a test. `wants` None = what the request always gives."""

    inputs: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    wants: frozenset[str] | None = None


@dataclass(frozen=True)
class Got:
    """What came of it: values by modality, in order, how its loops ended, and what contexts and loops counted."""

    events: dict[str, list[Any]]
    causes: dict[str, str]


def compiled(folder: Path, walk: str, binding: str) -> tuple[Program, Linked]:
    """The bound program and the linked package of a spec's text, on one rank."""
    spec = folder / "x.walk"
    spec.write_text(walk, encoding="utf-8")
    spec.with_suffix(".yaml").write_text(binding, encoding="utf-8")
    found = compile_model(spec, folder / "package")
    assert found.fault is None, found.fault
    assert found.plan is not None, [(d.rule.code, d.message) for d in found.model.checked.findings]
    write_package(found.files, folder / "package")
    report = Collector()
    linked = link(found.plan, Placement(), folder / "package", report)
    assert linked is not None, [d.message for d in report.findings()]
    program = found.model.bound or found.model.program
    assert program is not None
    caches = [msgspec.structs.replace(cache, pages=PAGES) for cache in linked.caches]
    return program, msgspec.structs.replace(linked, caches=caches)


async def served(
    linked: Linked, asked: Sequence[Asked], shuffle: int | None = None, regions: Regions = "auto"
) -> list[Got]:
    """All requests at once. Afterwards nothing may be held."""
    cluster = LocalCluster(linked, shuffle, regions)
    engine = Engine(linked, load_conductor(linked), cluster)
    name = engine.program.ENTRIES[0].name
    await engine.start()
    try:
        runs = [
            await engine.submit(name, dict(one.inputs), dict(one.params), one.wants or (), seed=one.seed)
            for one in asked
        ]
        found = []
        for run in runs:
            events: dict[str, list[Any]] = {}
            async with asyncio.timeout(20):
                async for event in run.events():
                    events.setdefault(event.modality, []).append(event.value)
            found.append(Got(events, dict(run.outcome.causes)))
        async with asyncio.timeout(5):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        return found
    finally:
        await engine.stop()


def interpreted(program: Program, linked: Linked, one: Asked) -> Got:
    """The same request on the interpreter, with the same components."""
    out = interpret(
        program,
        ComponentMachine.of_linked(linked),
        dict(one.inputs),
        params=dict(one.params),
        seed=one.seed,
        wants=one.wants,
    )
    events: dict[str, list[Any]] = {}
    for event in out.events:
        events.setdefault(event.modality, []).append(event.value)
    return Got(events, dict(out.causes))


async def agree(folder: Path, walk: str, binding: str, asked: Sequence[Asked], atol: float = 0.0) -> list[Got]:
    """What the requests give, together and in two orders of turns; all equal to the interpreter's one by one."""
    program, linked = compiled(folder, walk, binding)
    due = [interpreted(program, linked, one) for one in asked]
    for shuffle in (None, 5):
        found = await served(linked, asked, shuffle)
        for got, want in zip(found, due, strict=True):
            same(got, want, atol)
    return due


def same(got: Got, want: Got, atol: float) -> None:
    """Assert that both hold the same values."""
    assert got.causes == want.causes
    assert {name: len(values) for name, values in got.events.items()} == {
        name: len(values) for name, values in want.events.items()
    }
    for name, values in want.events.items():
        for a, b in zip(got.events[name], values, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=atol)
