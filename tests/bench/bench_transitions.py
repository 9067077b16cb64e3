"""From one walk to the next through conductor and worker process: started ahead as the compiler has it, and one by one.

    python -m tests.bench.bench_transitions

A request calls WALKS walks in a row; each calls one no-op op, which emits the worker's clock. `gap`: median microseconds between the
ops of one walk and the next on the worker; `request`: median milliseconds from submit to the last value; `messages`: of one request,
both ways. "One by one" is the same package with every `request.start` of the generated conductor replaced by `request.walk`. Prints a
table and JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mstarc.cli.packages import link_package
from mstarc.codegen.package import compile_model, write_package
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import Message, Stats
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.package import load_conductor

ROOT = Path(__file__).resolve().parents[2]
WALKS = 16
REPEATS = 60
CALLERS = (1, 8, 32)
SPEC = f"""
model rows
node clock : stateless {{ op read(x: i64) -> y: i64 }}
walk tick(x: i64) {{ emit clock.read(x) as tensor }}
request r(x: i64) -> tensor {{
    {" ".join(["tick(x)"] * WALKS)}
}}
"""


class Clock:
    """read(x) = nanoseconds of the monotonic clock."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Clock:
        return cls()

    def read(self, x: Any) -> Any:
        return np.int64(time.perf_counter_ns())


class Counting(ProcessCluster):
    """Counts messages, signs of life apart."""

    messages = 0

    async def start(self, on_message: Callable[[int, Message], None], on_lost: Callable[[int, str], None]) -> None:
        def counted(rank: int, message: Message) -> None:
            self.messages += not isinstance(message, Stats)
            on_message(rank, message)

        await super().start(counted, on_lost)

    def send(self, rank: int, message: Message) -> None:
        self.messages += 1
        super().send(rank, message)


def package(folder: Path, ahead: bool) -> Linked:
    """The compiled spec, linked on one rank."""
    spec = folder / "rows.walk"
    spec.write_text(SPEC)
    spec.with_suffix(".yaml").write_text("components: {clock: tests.bench.bench_transitions.Clock}\n")
    found = compile_model(spec, folder / "package")
    files = dict(found.files)
    assert files["conductor.py"].count("request.start(") == WALKS - 1
    write_package(files, folder / "package")
    linked = link_package(str(folder / "package"), None).linked
    if not ahead:
        path = folder / "package" / "conductor.py"
        path.write_text(path.read_text().replace("request.start(", "request.walk("))
    return linked


async def request(engine: Engine) -> tuple[list[float], float]:
    """(gaps in us, total in ms) of one request."""
    begin = time.perf_counter()
    run = await engine.submit("r", {"x": 1})
    ticks = [int(event.value) async for event in run.events()]
    total = time.perf_counter() - begin
    await run.freed.wait()
    return [(b - a) / 1e3 for a, b in pairwise(ticks)], total * 1e3


async def measure(linked: Linked, callers: int) -> dict[str, Any]:
    """Callers in a closed loop."""
    cluster = Counting(linked, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'runtime'}"})
    engine = Engine(linked, load_conductor(linked), cluster)
    await engine.start()
    gaps: list[float] = []
    totals: list[float] = []

    async def caller() -> None:
        for _ in range(REPEATS):
            found, total = await request(engine)
            gaps.extend(found)
            totals.append(total)

    try:
        await request(engine)
        cluster.messages = 0
        await asyncio.gather(*(caller() for _ in range(callers)))
        messages = cluster.messages / len(totals)
    finally:
        await engine.stop()
    return {
        "callers": callers, "gap_us": statistics.median(gaps), "request_ms": statistics.median(totals), "messages": messages,
    }  # fmt: skip


def main() -> None:
    """Measure and print."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for ahead in (True, False):
            linked = package(Path(folder), ahead)
            rows += [{"ahead": ahead} | asyncio.run(measure(linked, callers)) for callers in CALLERS]
    print(f"{'started':12} {'callers':>7} {'gap us':>8} {'request ms':>11} {'messages':>9}")
    for row in rows:
        how = "ahead" if row["ahead"] else "one by one"
        print(f"{how:12} {row['callers']:7} {row['gap_us']:8.1f} {row['request_ms']:11.2f} {row['messages']:9.1f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
