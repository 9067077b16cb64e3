"""Where the time of a pi0.5 request goes, through conductor and worker: when each step begins, by the clock that both processes share.

    python -m tests.bench.request_line --device cuda:0 --requests 60
    python -m tests.bench.request_line --device cpu

Three frames as `bench_robot` gives them, one caller. On a GPU only what such a request needs is captured, so that it is ready soon; every
other request begins with an event that the host waits for, from which it is known when the device begins and ends (`device`). On the CPU
the parts have the right shapes and compute nothing, so what is left is the host's share. Prints medians in ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.models.pi05.vision import Vision
from mstarc_runtime.package import load_conductor
from mstarc_runtime.program import Part
from mstarc_runtime.transport.port import Port
from mstarc_runtime.transport.wire import Codec
from tests.bench.bench_robot import linked

HERE = "tests.bench.request_line"
FILE = "REQUEST_LINE"  # names, in the environment of the worker, where it notes its steps
WARM = 6  # requests that do not count
NOTES: list[tuple[str, float, float]] = []  # step, begin, end: seconds


def note(owner: Any, method: str, name: Callable[[Any], str] | str) -> None:
    """From now on each call of the method is noted; `name` may ask the arguments."""
    called = getattr(owner, method)

    def timed(*args: Any, **named: Any) -> Any:
        begin = time.monotonic()
        try:
            return called(*args, **named)
        finally:
            NOTES.append((name if isinstance(name, str) else name(args), begin, time.monotonic()))

    setattr(owner, method, timed)


def note_messages() -> None:
    """What both processes do with messages."""
    note(Port, "send", lambda args: f"send {type(args[2]).__name__}")
    note(Codec, "decode", "decode")


def note_worker(path: str) -> None:
    """In the worker: its steps, and little to capture."""
    from mstarc_runtime.engines import ragged_graphs
    from mstarc_runtime.worker import rank as ranks
    from mstarc_runtime.worker.device_regions import DeviceLoop
    from mstarc_runtime.worker.ops import OpTable

    ranks.MAX_ROWS = 1
    ragged_graphs.BUCKETS = (1024,)  # type: ignore[assignment]
    Vision.usual_shapes = lambda self, op: [((3, 3, self.config.image_size, self.config.image_size),)]  # type: ignore[method-assign]
    note_messages()
    note(ranks.Rank, "handle", lambda args: f"handle {type(args[1]).__name__}")
    note(OpTable, "call_rows", lambda args: f"call {args[1]}")
    note(DeviceLoop, "_launch", "launch flow")
    note(DeviceLoop, "_settle", "settle flow")
    device = Device() if torch.cuda.is_available() else None
    handle = ranks.Rank.handle

    def handled(self: Any, message: Any) -> None:
        what = type(message).__name__
        if what == "Open" and device is not None:
            device.opened()
        handle(self, message)
        if what == "Finish":
            if device is not None:
                device.closed()
            with open(path, "a") as file:
                file.writelines(f"{begin!r} {end!r} {name}\n" for name, begin, end in NOTES)
            NOTES.clear()

    ranks.Rank.handle = handled  # type: ignore[method-assign]
    if device is not None:
        device.watch(OpTable, "call_rows", after=False)
        device.watch(DeviceLoop, "_launch", after=True)


class Device:
    """Events around the device's work of every other request."""

    def __init__(self) -> None:
        self.turn = 0
        self.begun = 0.0
        self.events: list[torch.cuda.Event] = []

    def opened(self) -> None:
        self.turn += 1
        if self.turn % 2:
            self.events = [_event()]
            self.events[0].synchronize()
            self.begun = time.monotonic()

    def watch(self, owner: Any, method: str, after: bool) -> None:
        """Note where the device is before or after a call of the method."""
        called = getattr(owner, method)

        def watched(*args: Any, **named: Any) -> Any:
            if self.turn % 2 and not after:
                self.events.append(_event())
            found = called(*args, **named)
            if self.turn % 2 and after:
                self.events.append(_event())
            return found

        setattr(owner, method, watched)

    def closed(self) -> None:
        if self.turn % 2 and len(self.events) > 2:
            torch.cuda.synchronize()
            begin, end = (
                self.begun + self.events[0].elapsed_time(event) / 1e3 for event in (self.events[1], self.events[-1])
            )
            NOTES.extend([("device", begin, end)])


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


if FILE in os.environ and any("mstarc_runtime.worker" in word for word in sys.orig_argv):
    note_worker(os.environ[FILE])


class Nothing:
    """Parts of pi0.5 on a CPU."""

    @classmethod
    def load(cls, *_: Any) -> Nothing:
        return cls()

    def encode(self, images: Any) -> Any:
        return torch.zeros(256 * len(images), 2048)

    def prefix(self, seen: Any, ids: Any) -> Any:
        return seen[:1]

    def read(self, run: Any, rows: Any) -> None:
        zeros = torch.zeros(len(rows), 1, 256)
        for layer in range(18):
            run.write(layer, zeros, zeros)

    def velocity(self, run: Any, x: Any, t: Any) -> Any:
        return x


class Marked(Vision):
    """pi0.5's encoder; a worker that loads it imports this module, which notes its steps."""


async def request(engine: Engine, seed: int) -> None:
    """One request; what its caller sees is noted."""
    inputs = {"images": [Part("image", data=b"") for _ in range(3)], "task": "t", "state": np.zeros(32, np.float32)}
    begin = time.monotonic()
    run = await engine.submit("act", inputs, {}, seed=seed)
    async for _ in run.events():
        NOTES.append(("the caller has it", time.monotonic(), time.monotonic()))
    NOTES.append(("request", begin, time.monotonic()))


def table(notes: list[tuple[str, float, float]]) -> None:
    """Steps by when they begin, medians over the requests; the n-th of a name in a request is a step of its own."""
    steps: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    requests = sorted((begin, end) for name, begin, end in notes if name == "request")
    for begin, end in requests[WARM:-1]:
        seen: Counter[str] = Counter()
        for name, at, until in sorted(notes, key=lambda each: each[1]):
            if begin <= at <= end and name not in ("request", "send Stats"):
                seen[name] += 1
                steps[name, seen[name]].append((1e3 * (at - begin), 1e3 * (until - at)))
    print(f"{'ms':>8} {'took':>7}  step")
    for (name, n), found in sorted(steps.items(), key=lambda step: statistics.median(at for at, _ in step[1])):
        if len(found) > (len(requests) - WARM) / 4:
            at, took = (statistics.median(column) for column in zip(*found, strict=True))
            print(f"{at:8.3f} {took:7.3f}  {name}{f' ({n})' if n > 1 else ''}")


async def main(args: argparse.Namespace) -> None:
    parts = ("vit", "llm", "words") if args.device == "cpu" else ("vit",)
    component = f"{HERE}.{'Nothing' if args.device == 'cpu' else 'Marked'}"
    program = linked("pi05", args.device, {}, ["prompt", "cameras"])
    nodes = [replace(node, component=component) if node.name in parts else node for node in program.nodes]
    program = replace(program, nodes=nodes)
    note_messages()
    note(Engine, "checked", "check")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "worker"
        engine = Engine(program, load_conductor(program), ProcessCluster(program, env={FILE: str(file)}))
        await engine.start()
        try:
            for n in range(args.requests):
                await request(engine, n)
        finally:
            await engine.stop()
        worker = [line.split(" ", 2) for line in file.read_text().splitlines()]
    whole = sorted(1e3 * (end - begin) for name, begin, end in NOTES if name == "request")[: -WARM or None]
    print(f"request until its end: median {statistics.median(whole):.2f} ms, best {whole[0]:.2f}")
    table([*NOTES, *((f"  worker: {name}", float(begin), float(end)) for begin, end, name in worker)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--requests", type=int, default=60)
    asyncio.run(main(parser.parse_args()))
