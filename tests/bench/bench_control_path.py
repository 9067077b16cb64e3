"""Host time per request and step of a decode-like region with no-op ops: the rank alone, no transport, numpy arrays.

    python -m tests.bench.bench_control_path

A step is: stop test, one batched op (x + 1 on int64), carry. `emit` and `send` are measured apart. Prints a table and JSON.
"""

from __future__ import annotations

import json
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

from mstarc_runtime.abi.messages import Message, Open, Start
from mstarc_runtime.package import load_worker
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.rank import Rank
from tests.runtime import toy

STEPS = 2000
REPEATS = 3
WORKER = """
    from mstarc_runtime.program import WorkerProgram


    class Toy(WorkerProgram):
        def bare(self, walk, start, limit):
            yield walk.loop("bare", self.bare_bare, "max", walk.params.steps, (start,), (limit,))

        def bare_bare(self, b, n, limit):
            (n, limit) = b.stop(n == limit, carried=(n,), live=(n, limit))
            return (b.call("counter.next", n),)

        def emitting(self, walk, start, limit):
            yield walk.loop("emitting", self.emitting_emitting, "max", walk.params.steps, (start,), (limit,))

        def emitting_emitting(self, b, n, limit):
            (n, limit) = b.stop(n == limit, carried=(n,), live=(n, limit))
            b.emit("tensor", n)
            return (b.call("counter.next", n),)
"""


class Sink:
    """A port that drops everything."""

    def __init__(self) -> None:
        self.messages = 0

    def send(self, peer: int, message: Message) -> None:
        self.messages += 1


def measure(folder: Path, walk: str, requests: int) -> dict[str, Any]:
    """Best of REPEATS: microseconds per request and step, and messages per step."""
    linked = toy.linked(folder)
    (folder / "worker.py").write_text(textwrap.dedent(WORKER))
    best, messages = float("inf"), 0.0
    for _ in range(REPEATS):
        port = Sink()
        rank = Rank(linked, 0, load_worker(linked), port, OpTable(linked, 0))
        for i in range(requests):
            rank.handle(Open(i, {"steps": STEPS}, {}, 0, []))
            rank.handle(Start(i, i, walk, [0, -1], 0, []))
        toy.LOG.clear()
        begin = time.perf_counter()
        while not rank.scheduler.idle():
            rank.turn()
        best = min(best, time.perf_counter() - begin)
        messages = port.messages / STEPS
    return {"walk": walk, "requests": requests, "us": best / STEPS / requests * 1e6, "messages_per_step": messages}


def main() -> None:
    """Measure and print."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for walk in ("bare", "emitting"):
            for requests in (1, 8, 32, 64):
                rows.append(measure(Path(folder), walk, requests))
    print(f"{'walk':10} {'batch':>5} {'us per request and step':>24} {'messages per step':>18}")
    for row in rows:
        print(f"{row['walk']:10} {row['requests']:5} {row['us']:24.2f} {row['messages_per_step']:18.2f}")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
