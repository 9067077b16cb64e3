"""Attention of prompts: the kernel that a Hopper GPU takes beside the one for all others, at the shapes of Orpheus and pi0.5.

    python -m tests.bench.prompt_attention [--models] [--json FILE]

A line gives the microseconds of one call with its joining and appending, the median over a graph of calls on several layers, and what
that is in TFLOP/s. `of 32`: as a captured op launches it, for 32 requests of which one is there, and rows up to the next bucket.
With `--models`, milliseconds of the device for a whole captured `read`: pi0.5's prefix, prompts of Orpheus; made-up weights in bf16.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from ruamel.yaml import YAML

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines import attend_prompts
from mstarc_runtime.engines.attend_triton import attend_packed
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.ragged_graphs import RaggedGraph, RaggedOp
from mstarc_runtime.engines.transformer import Call, OpSpec
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.worker.device_runner import GraphRunner
from tests.bench.orpheus_step import timed

ROOT = Path(__file__).resolve().parents[2]
LAYERS, PAGE = 12, 64
REQUESTS, PAGES = 32, 64  # of a captured op


@dataclass(frozen=True)
class Shape:
    name: str
    batch: int
    rows: int
    entries: int
    heads: int
    kv_heads: int
    dim: int
    causal: bool
    bucket: int = 0  # rows of a captured op, with 32 requests


def orpheus(name: str, batch: int, rows: int, entries: int = 0, bucket: int = 0) -> Shape:
    return Shape(name, batch, rows, entries, 24, 8, 128, True, bucket)


SHAPES = [
    Shape("pi0.5 968", 1, 968, 0, 8, 1, 256, False),
    Shape("pi0.5 968 of 32", 1, 968, 0, 8, 1, 256, False, 1024),
    Shape("pi0.5 8 x 968", 8, 968, 0, 8, 1, 256, False),
    orpheus("80", 1, 80),
    orpheus("80 of 32", 1, 80, bucket=128),
    orpheus("128", 1, 128),
    orpheus("8 x 128", 8, 128),
    orpheus("1024", 1, 1024),
    orpheus("1024 of 32", 1, 1024, bucket=1024),
    orpheus("8 x 1024", 8, 1024),
    orpheus("128 after 4096", 1, 128, 4096),
]


def micros(shape: Shape) -> float:
    """Of one call."""
    pages = -(-(shape.entries + shape.rows) // PAGE)
    data = torch.randn(
        LAYERS, 2 * shape.kv_heads, shape.batch * pages * PAGE, shape.dim, device="cuda", dtype=torch.bfloat16
    )
    requests = REQUESTS if shape.bucket else shape.batch
    table = torch.randperm(shape.batch * pages, device="cuda", dtype=torch.int32).view(shape.batch, pages)
    table = torch.cat([table, table[:1].expand(requests - shape.batch, -1)])
    if shape.bucket:
        table = torch.nn.functional.pad(table, (0, PAGES - pages))
    length = torch.full((requests,), shape.entries, device="cuda", dtype=torch.int32)
    rows = max(shape.batch * shape.rows, shape.bucket)
    starts = torch.arange(requests + 1, device="cuda", dtype=torch.int32).clamp(max=shape.batch) * shape.rows
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    q, k, v = torch.randn(rows, sum(heads), shape.dim, device="cuda", dtype=torch.bfloat16).split(heads, dim=1)

    def calls() -> None:
        for layer in range(LAYERS):
            attend_packed(
                data[layer], q, k, v, table, length, starts, most_rows=shape.bucket or shape.rows, page_size=PAGE,
                causal=shape.causal, frozen=False, scale=shape.dim**-0.5,
            )  # fmt: skip

    calls()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    return 1e3 * timed(graph.replay, 10) / LAYERS


def read_ms(method: Callable[..., Any], op: RaggedOp, geometry: Geometry, given: torch.Tensor, bucket: int) -> float:
    """Of one replay of a captured read of `given` by one request."""
    device = torch.device("cuda")
    pool = PagedPool(geometry, 64, page_size=PAGE_SIZE_GPU, dtype=torch.bfloat16, device=device)
    graph = RaggedGraph(method, op, pool, 64, GraphRunner(device), (bucket,))
    context = Context(pool)
    context.reserve(len(given))
    graph.run([Call((given,), (context,), len(given))])
    return timed(graph._replays[bucket], 20)


def pi05_ms() -> dict[str, float]:
    config = dict(YAML(typ="safe").load(ROOT / "specs" / "pi05.yaml")["config"]["llm"])
    policy = Policy.load(Checkpoint(), {**config, "dtype": "bfloat16"}, "cuda")
    facts = policy.config
    geometry = Geometry(facts.layers, facts.heads, facts.kv_heads, facts.head_dim)
    width = int(config["hidden_size"])
    op = RaggedOp(OpSpec("llm.read", ("packed",), (), attend="full"), ((torch.float32, (width,)),), 0)
    return {"pi0.5 968": read_ms(policy.read, op, geometry, torch.randn(968, width, device="cuda"), 1024)}


def orpheus_ms() -> dict[str, float]:
    config = dict(YAML(typ="safe").load(ROOT / "specs" / "orpheus.yaml")["config"]["llm"])
    model = Llama.load(Checkpoint(), config, "cuda")
    facts = model.facts
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    op = RaggedOp(OpSpec("llm.read", ("packed",)), ((torch.int64, ()),), 0)
    return {
        f"orpheus {rows}": read_ms(model.read, op, geometry, torch.arange(1000, 1000 + rows, device="cuda"), bucket)
        for rows, bucket in ((80, 128), (240, 256), (1024, 1024), (2048, 2048))
    }


def models() -> list[dict[str, Any]]:
    lines = []
    for measure in (pi05_ms, orpheus_ms):
        found = measure()
        with mock.patch.object(attend_prompts, "takes", lambda *_: False):
            other = measure()
        for name, taken in found.items():
            lines.append({"read": name, "ms": round(taken, 3), "without_ms": round(other[name], 3)})
            print(f"{name:>16}  {taken:7.3f} ms  without it {other[name]:7.3f}", flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with torch.inference_mode():
        for shape in SHAPES:
            seen = shape.entries + (shape.rows + 1) / 2 if shape.causal else shape.entries + shape.rows
            flops = 4 * shape.batch * shape.rows * shape.heads * shape.dim * seen
            found = micros(shape)
            with mock.patch.object(attend_prompts, "takes", lambda *_: False):
                other = micros(shape)
            lines.append({"shape": shape.name, "us": round(found, 2), "without_us": round(other, 2)})
            print(
                f"{shape.name:>16}  {found:7.2f} us ({flops / found * 1e-6:4.0f} TFLOP/s)  without it {other:7.2f}",
                flush=True,
            )
        if args.models:
            lines += models()
    if args.json:
        args.json.write_text(json.dumps(lines))


if __name__ == "__main__":
    main()
