"""The shipped packages on the reference checkpoints: linked with the checkpoint's sizes, on ranks in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.package import load_conductor

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens"


def linked(model: str, checkpoints: Mapping[str, Path], externs: Mapping[str, str] | None = None) -> Linked:
    """The shipped package of a model, one thread a rank. externs: dotted names in place of the binding's."""
    paths = {name: str(path) for name, path in checkpoints.items()}
    found = link_package(str(ROOT / "generated" / model), None, paths).linked
    ranks = [msgspec.structs.replace(rank, threads=1) for rank in found.ranks]
    return msgspec.structs.replace(found, ranks=ranks, externs={**found.externs, **(externs or {})})


@asynccontextmanager
async def running(program: Linked) -> AsyncIterator[Engine]:
    """A started engine; afterwards nothing may be held."""
    cluster = LocalCluster(program)
    engine = Engine(program, load_conductor(program), cluster)
    await engine.start()
    try:
        yield engine
        await settled(engine, cluster)
    finally:
        await engine.stop()


async def settled(engine: Engine, cluster: LocalCluster) -> None:
    """Wait until no rank and no table of the conductor holds anything. Fails after five seconds."""
    async with asyncio.timeout(5):
        while any(engine.gauges().values()) or any(rank.ops.gauges().get("pages") for rank in cluster.ranks.values()):
            await asyncio.sleep(0.01)


async def ask(
    engine: Engine, request: str, inputs: Mapping[str, Any], params: Mapping[str, Any] | None = None, seed: int = 0
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """What one request emits, by modality, in order."""
    found: dict[str, list[Any]] = {}
    async with asyncio.timeout(60):
        run = await engine.submit(request, inputs, params or {}, seed=seed)
        async for event in run.events():
            found.setdefault(event.modality, []).append(np.asarray(event.value))
    return found


def near(got: Any, wanted: Any, relative: float = 1e-4) -> None:
    """Equal within `relative` of the largest value, as the reference data states its tolerance."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, (got.shape, got.dtype, wanted.shape, wanted.dtype)
    assert np.abs(got - wanted).max() <= relative * np.abs(wanted).max()
