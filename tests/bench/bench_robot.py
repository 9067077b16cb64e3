"""pi0.5 and V-JEPA 2-AC at their real sizes with made-up weights, through conductor and worker: callers in a closed loop.

    python -m tests.bench.bench_robot --device cuda:0 --batch 1,8 --repeats 5

pi0.5: three frames of u8, as the cameras' extern gives those of the tower's size, and 200 prompt ids in, 50 actions out, ten flow
steps. V-JEPA 2-AC: eight frames of f32 pixels in (the first one is encoded), latents of H imagined frames out, H = 4 and 30. Decoding,
resizing and tokenizing are left out. Prints the median milliseconds from the request to its last value, per request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.levels import Levels
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.vjepa2.components import Critic, FrameEncoder, Predictor
from mstarc_runtime.models.vjepa2.config import NORM_EPS, AcConfig, EncoderConfig, Stack
from mstarc_runtime.models.vjepa2.nets import AcPredictorNet, EncoderNet
from mstarc_runtime.package import load_conductor
from mstarc_runtime.program import Part

ROOT = Path(__file__).resolve().parents[2]
PREDICTOR = AcConfig(Stack(1024, 24, 16, 4096, True, NORM_EPS), embed_dim=1408, grid=16, action_dim=7)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 3, 224, 224), np.uint8)
ENCODER = EncoderConfig(Stack(1408, 40, 22, 6144, True, NORM_EPS), 256, 16, 2, 3)


def made_up(net: Any, device: str) -> Any:
    """A net of the meta device with weights: matrices normal with deviation 0.02, norms 1, biases 0; bf16."""
    net = net.to_empty(device=device).to(torch.bfloat16).requires_grad_(False).eval()
    for name, tensor in net.state_dict().items():
        if tensor.dim() > 1:
            tensor.normal_(0.0, 0.02)
        else:
            tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return net


class MadeUpEncoder(FrameEncoder):
    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> MadeUpEncoder:
        with torch.device("meta"):
            net = EncoderNet(ENCODER)
        return cls(made_up(net, device), ENCODER)


class MadeUpPredictor(Predictor):
    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> MadeUpPredictor:
        with torch.device("meta"):
            net = AcPredictorNet(PREDICTOR)
        return cls(made_up(net, device), PREDICTOR)


class NoCritic(Critic):
    """Not called by rollouts."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> NoCritic:
        return object.__new__(cls)


def prompt(task: str, state: Any = None) -> Any:
    return np.arange(1000, 1200, dtype=np.int64)


def cameras(images: list[Any]) -> Any:
    return Levels(PIXELS[: len(images)], 2 / 255, -1)


def clip(video: Any) -> Any:
    return np.ascontiguousarray(video, dtype=np.float32)


def poses(states: Any, actions: Any) -> Any:
    return np.repeat(np.asarray(states, np.float32)[:1], len(actions), 0)


courses = poses  # bound, and not called by rollouts


def linked(model: str, device: str, parts: Mapping[str, type], externs: list[str]) -> Linked:
    """The shipped package on one device, its components without checkpoints; `parts` take the place of components."""
    with tempfile.TemporaryDirectory() as folder:
        placement = Path(folder) / "bench.toml"
        placement.write_text(f'[ranks.0]\ndevice = "{device}"\n')
        program = link_package(str(ROOT / "generated" / model), str(placement)).linked
    nodes = []
    for node in program.nodes:
        part = parts.get(node.name)
        name = node.component if part is None else f"tests.bench.bench_robot.{part.__name__}"
        nodes.append(replace(node, checkpoint="", component=name, config={**node.config, "dtype": "bfloat16"}))
    mine = {name: f"tests.bench.bench_robot.{name}" for name in externs}
    return replace(program, nodes=nodes, checkpoints=[], externs={**program.externs, **mine})


async def run_once(engine: Engine, request: str, inputs: dict[str, Any], params: dict[str, Any], seed: int) -> float:
    """Milliseconds of one request, until its last value."""
    begin = last = time.perf_counter()
    run = await engine.submit(request, inputs, params, seed=seed)
    async for _ in run.events():
        last = time.perf_counter()
    return 1000 * (last - begin)


async def measure(
    program: Linked, cases: list[tuple[str, str, dict[str, Any], dict[str, Any]]], batches: list[int], repeats: int
) -> list[dict[str, Any]]:
    """Rows for each case (name, request, inputs, params) and batch."""
    engine = Engine(program, load_conductor(program), ProcessCluster(program))
    begin = time.perf_counter()
    await engine.start()
    print(f"{program.model}: ready after {time.perf_counter() - begin:.1f} s", flush=True)
    rows = []
    try:
        for name, request, inputs, params in cases:
            for batch in batches:
                took: list[float] = []
                for turn in range(repeats + 2):
                    each = await asyncio.gather(*[run_once(engine, request, inputs, params, n) for n in range(batch)])
                    took += each if turn >= 2 else []
                row = {
                    "case": name, "batch": batch, "median_ms": round(statistics.median(took), 2),
                    "worst_ms": round(max(took), 2),
                }  # fmt: skip
                rows.append(row)
                print(json.dumps(row), flush=True)
    finally:
        await engine.stop()
    return rows


async def main(args: argparse.Namespace) -> None:
    images = [Part("image", data=b"") for _ in range(3)]
    act: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
        ("pi05", "act", {"images": images, "task": "t", "state": np.zeros(32, np.float32)}, {})
    ]
    if "pi05" in args.models:
        await measure(linked("pi05", args.device, {}, ["prompt", "cameras"]), act, args.batch, args.repeats)
    if "vjepa2_ac" in args.models:
        parts: dict[str, type] = {"encoder": MadeUpEncoder, "predictor": MadeUpPredictor, "critic": NoCritic}
        video = np.random.default_rng(0).standard_normal((8, 3, 256, 256)).astype(np.float32)
        given = {"video": video, "states": np.zeros((1, 7), np.float32), "actions": np.zeros((30, 7), np.float32)}
        cases = [(f"vjepa2_ac H={h}", "rollout", given, {"horizon": h}) for h in (4, 30)]
        await measure(
            linked("vjepa2_ac", args.device, parts, ["clip", "poses", "courses"]), cases, args.batch, args.repeats
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", default="pi05,vjepa2_ac")
    asyncio.run(main(parser.parse_args()))
