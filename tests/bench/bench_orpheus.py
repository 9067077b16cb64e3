"""Orpheus at its real size with made-up weights, through conductor and worker: closed loop of callers, as a client sees it.

    python -m tests.bench.bench_orpheus --device cuda:0 --batch 1,4,16,32 --tokens 1022 --prompt 80 --repeats 2

Every caller sends its next request when its last one has ended; lengths are fixed (`ignore_eos`). The prompt is ids, so the tokenizer is
left out. With made-up weights most drawn ids are no audio ids, so the stream's `where` is opened to all ids: the codec then decodes as
many windows as for speech (ids out of place are read as the nearest code, at the same cost). Prints a table and JSON:

  audio-s/s   seconds of audio made per second, all callers together
  rtf         real-time factor: wall time per second of audio of one caller, median
  first       milliseconds from the request to its first samples, median and worst
  step        milliseconds per decode step, from the wall time of the whole
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.garbage import settle_garbage
from mstarc_runtime.package import load_conductor
from tests.bench.replay_gaps import kernels_of, replay_gaps, told

ROOT = Path(__file__).resolve().parents[2]
FRAME_S = 2048 / 24000
NEVER = 10**9  # an end id that no vocabulary has


def tokenize(text: str, voice: str) -> np.ndarray[Any, Any]:
    """A prompt of as many ids as the text says."""
    return np.arange(1000, 1000 + int(text), dtype=np.int64)


def linked(device: str, sizes: dict[str, Any]) -> Linked:
    """The shipped package on one device, its components without checkpoints. `sizes` replace values of the language model's config."""
    with tempfile.TemporaryDirectory() as folder:
        placement = Path(folder) / "bench.toml"
        placement.write_text(f'[ranks.0]\ndevice = "{device}"\n')
        program = link_package(str(ROOT / "generated" / "orpheus"), str(placement)).linked
    nodes = []
    for node in program.nodes:
        config = {**node.config, **(sizes if node.name == "llm" else {"first_id": 0})}
        nodes.append(replace(node, config=config, checkpoint=""))
    config = {**program.config, "first": 0, "end": NEVER}
    caches = program.caches
    if sizes:
        config |= {"layers": sizes["num_hidden_layers"]}
        caches = [replace(cache, layers=sizes["num_hidden_layers"]) for cache in caches]
    externs = {"tokenize": f"{__name__}.tokenize"}
    return replace(program, nodes=nodes, config=config, caches=caches, externs=externs, checkpoints=[])


async def caller(
    engine: Engine, requests: int, prompt: int, tokens: int, delay: float = 0.0
) -> list[tuple[float, float, float]]:
    """(seconds to the first samples, seconds in all, seconds of audio) of each request, one after the other, the first after a delay."""
    found = []
    await asyncio.sleep(delay)
    for number in range(requests):
        begin = time.perf_counter()
        params = {"max_tokens": tokens, "ignore_eos": True}
        run = await engine.submit("speech", {"text": str(prompt)}, params, {"audio"}, seed=number)
        first, samples = 0.0, 0
        async for event in run.events():
            first = first or time.perf_counter() - begin
            samples += len(event.value)
        found.append((first, time.perf_counter() - begin, samples / 24000))
    return found


async def measure(engine: Engine, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """One row of the table."""
    begin = time.perf_counter()
    delays = [args.every / 1000 * n for n in range(batch)]
    each = await asyncio.gather(*[caller(engine, args.repeats, args.prompt, args.tokens, delay) for delay in delays])
    wall = time.perf_counter() - begin
    requests = [request for one in each for request in one]
    firsts = [1000 * first for first, _, _ in requests]
    audio = sum(seconds for _, _, seconds in requests)
    return {
        "batch": batch,
        "audio_s_per_s": round(audio / wall, 2),
        "rtf": round(statistics.median(total / max(seconds, 1e-9) for _, total, seconds in requests), 4),
        "first_ms": round(statistics.median(firsts), 1),
        "first_worst_ms": round(max(firsts), 1),
        "step_ms": round(1000 * wall / (args.repeats * args.tokens), 3),
        "audio_s": round(audio, 2),
        "wall_s": round(wall, 3),
    }


async def main(args: argparse.Namespace) -> list[dict[str, Any]]:
    sizes = {"num_hidden_layers": args.layers} if args.layers else {}
    program = linked(args.device, sizes)
    cluster = LocalCluster(program) if args.profile else ProcessCluster(program)
    engine = Engine(program, load_conductor(program), cluster)
    begin = time.perf_counter()
    await engine.start()
    settle_garbage()
    print(f"ready after {time.perf_counter() - begin:.1f} s", flush=True)
    rows = []
    try:
        for batch in args.batch:
            await asyncio.gather(*[caller(engine, 1, args.prompt, 64) for _ in range(batch)])  # warm
            with profiled(args.profile, args.trace):
                rows.append(await measure(engine, batch, args))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        await engine.stop()
    return rows


@contextmanager
def profiled(on: bool, trace: str) -> Iterator[None]:
    """Prints where the host's time went, which kernels took the device's, and the gaps between replays; writes the `trace` for a viewer."""
    if not on:
        yield
        return
    from torch.profiler import ProfilerActivity, profile

    host = cProfile.Profile()
    host.enable()
    begin = time.perf_counter()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        yield
        wall = time.perf_counter() - begin
    host.disable()
    pstats.Stats(host).sort_stats("cumulative").print_stats("mstarc_runtime", 45)
    averages = [event for event in found.key_averages() if event.self_device_time_total]
    busy = sum(event.self_device_time_total for event in averages) / 1e6
    print(f"device busy {busy:.3f} s of {wall:.3f} s")
    print(told(replay_gaps(kernels_of(found))))
    if trace:
        found.export_chrome_trace(trace)
    for event in sorted(averages, key=lambda event: -event.self_device_time_total)[:28]:
        mean = event.self_device_time_total / event.count
        print(f"{event.self_device_time_total / 1000:10.1f} ms {event.count:8} x {mean:8.1f} us  {event.key[:110]}")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=_numbers, default=[1, 4, 16, 32])
    parser.add_argument("--tokens", type=int, default=1022)
    parser.add_argument("--prompt", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--every", type=float, default=0.0, help="milliseconds between the first requests of two callers"
    )
    parser.add_argument(
        "--profile", action="store_true", help="run the rank in this process and say where its time goes"
    )
    parser.add_argument("--trace", default="", help="with --profile: a file for Perfetto or chrome://tracing")
    parser.add_argument("--layers", type=int, default=0, help="fewer layers, to try it on a small machine")
    found = asyncio.run(main(parser.parse_args()))
    print(f"{'batch':>5} {'audio-s/s':>9} {'rtf':>7} {'first ms':>9} {'worst':>7} {'step ms':>8}")
    for row in found:
        print(
            f"{row['batch']:5} {row['audio_s_per_s']:9} {row['rtf']:7} {row['first_ms']:9} {row['first_worst_ms']:7} {row['step_ms']:8}"
        )
