"""V-JEPA 2-AC over HTTP at its real size with made-up weights: eight frames in, latents out in msgpack, callers in a closed loop.

    python -m tests.bench.bench_rollout_http --device cuda:0 --batch 1,8 --repeats 5

Server and worker are as `mstarc run` starts them; each caller is a process of its own (`rollout_caller`). All callers send at once and
again when all have their answer. `whole`: the latents come in one document at the end; `live`: frame by frame as they are made. Prints
median and worst milliseconds until the last latent is a numpy array with the caller, and the median until the first is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from typing import Any

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.serving.server import listen, serve
from mstarc_runtime.serving.service import Options
from tests.bench.bench_robot import MadeUpEncoder, MadeUpPredictor, NoCritic, linked

WARM = 2


async def call(caller: Process) -> list[float]:
    """One request of a caller: milliseconds until the last and the first latent."""
    assert caller.stdin is not None and caller.stdout is not None
    caller.stdin.write(b"\n")
    line = await caller.stdout.readline()
    return [float(word) for word in line.split()]


async def measure(port: int, batch: int, horizon: int, live: bool, repeats: int) -> dict[str, Any]:
    words = [str(port), str(horizon), str(int(live))]
    start = [
        asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.rollout_caller", *words, stdin=PIPE, stdout=PIPE
        )
        for _ in range(batch)
    ]
    callers = await asyncio.gather(*start)
    took = []
    try:
        for caller in callers:
            assert caller.stdout is not None
            await caller.stdout.readline()
        for turn in range(WARM + repeats):
            each = await asyncio.gather(*[call(caller) for caller in callers])
            took += each if turn >= WARM else []
    finally:
        for caller in callers:
            caller.terminate()
            await caller.wait()
    last, first = zip(*took, strict=True)
    return {
        "H": horizon,
        "callers": batch,
        "latents": "live" if live else "whole",
        "median_ms": round(statistics.median(last), 1),
        "worst_ms": round(max(last), 1),
        "first_ms": round(statistics.median(first), 1),
    }


async def main(args: argparse.Namespace) -> None:
    parts: dict[str, type] = {"encoder": MadeUpEncoder, "predictor": MadeUpPredictor, "critic": NoCritic}
    program = linked("vjepa2_ac", args.device, parts, ["clip", "poses", "courses"])
    engine = Engine(program, load_conductor(program), ProcessCluster(program))
    listener, stop = listen("127.0.0.1", 0), asyncio.Event()
    port = listener.getsockname()[1]
    begin = time.perf_counter()
    serving = asyncio.create_task(serve(engine, listener, Options(), stop, asyncio.Event()))
    while not engine.ready and not serving.done():
        await asyncio.sleep(0.05)
    print(f"ready after {time.perf_counter() - begin:.1f} s", flush=True)
    try:
        for horizon in args.horizon:
            for live in (False, True):
                for batch in args.batch:
                    print(json.dumps(await measure(port, batch, horizon, live, args.repeats)), flush=True)
    finally:
        stop.set()
        await serving


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--horizon", type=numbers, default=[4, 30])
    parser.add_argument("--repeats", type=int, default=5)
    asyncio.run(main(parser.parse_args()))
