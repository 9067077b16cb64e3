"""SIGKILL of a worker that goes from walk to walk by itself: the request fails once, and the next life knows nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import RequestFailed
from tests.codegen.written import compiled
from tests.e2e.harness import processes

SPEC = """
model row
param steps : int in 1..1000000 = 3
node n : stateless { op next(x: i64) -> y: i64 { batch stack } }
walk count(x: i64) { loop l max steps carry x { emit x as tensor  x = n.next(x) } }
request r(x: i64) -> tensor { count(x)  count(x + 1000000)  count(x + 2000000) }
"""


def kill_worker() -> None:
    children = psutil.Process().children(recursive=True)
    (worker,) = [child for child in children if "mstarc_runtime.worker" in " ".join(child.cmdline())]
    os.kill(worker.pid, signal.SIGKILL)


async def settled(engine: Engine) -> None:
    async with asyncio.timeout(30):
        while not engine.ready or any(engine.gauges().values()):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("steps", "last"), [(100000, 20), (10000, 1000020)])
async def test_a_kill_before_and_after_the_first_has_ended(steps: int, last: int, tmp_path: Path) -> None:
    _, linked = compiled(tmp_path, SPEC, "components: {n: tests.codegen.gap_components.Sums}\n")
    async with processes(linked) as engine:
        run = await engine.submit("r", {"x": 0}, {"steps": steps})
        seen: list[Any] = []

        async def watch() -> None:
            async for event in run.events():
                seen.append(event.value)
                if event.value == last:
                    kill_worker()

        with pytest.raises(RequestFailed, match="worker 0 was lost") as error:
            await asyncio.wait_for(watch(), 30)
        assert error.value.status == 503
        assert seen == [*range(steps), *range(1000000, 1000000 + steps)][: len(seen)]  # in order, nothing twice
        assert engine.gauges()["walks"] == 0
        await settled(engine)
        again = await engine.submit("r", {"x": 5}, {"steps": 2})
        async with asyncio.timeout(10):
            assert [event.value async for event in again.events()] == [5, 6, 1000005, 1000006, 2000005, 2000006]
        await settled(engine)
        assert (engine.counters["failed"], engine.counters["stopped"], engine.counters["restarts"]) == (1, 1, 1)
