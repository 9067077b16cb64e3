"""How the attention kernel should be blocked: its time at the shapes of decode steps, frames and flow steps, by choice of constants.

    python -m tests.bench.attend_sweep [--json FILE]

A line gives the tile, entries of a block, warps, pipeline stages, parts of the context, and the microseconds of one call: the
median over a graph of calls on 24 layers, so that no cache holds the keys. `floor` is what reading keys and values takes at 4.3 TB/s.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mstarc_runtime.engines import attend_triton
from mstarc_runtime.engines.attend_triton import attend_slots
from tests.bench.orpheus_step import timed

LAYERS, PAGE = 24, 64


@dataclass(frozen=True)
class Shape:
    name: str
    batch: int
    rows: int
    heads: int
    kv_heads: int
    dim: int
    entries: int
    frozen: bool
    choices: tuple[tuple[int, int, int, int], ...]  # tile, block, warps, stages


DECODE = ((16, 64, 4, 3), (16, 64, 4, 2), (16, 64, 2, 3), (16, 128, 4, 2), (16, 32, 2, 4), (16, 64, 4, 4))
FRAME = ((64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (64, 128, 4, 2), (128, 128, 8, 2))
FLOW = ((64, 64, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2), (64, 32, 8, 3))
SHAPES = [
    Shape("orpheus 1", 1, 1, 24, 8, 128, 1024, False, DECODE),
    Shape("orpheus 16", 16, 1, 24, 8, 128, 1024, False, DECODE),
    Shape("orpheus 32", 32, 1, 24, 8, 128, 1024, False, DECODE),
    Shape("frame 1", 1, 258, 16, 16, 64, 15 * 258, False, FRAME),
    Shape("flow 1", 1, 50, 8, 1, 256, 968, True, FLOW),
]
PROGRAMS = (264, 528, 1056)


def sweep(shape: Shape) -> list[dict[str, Any]]:
    pages = -(-(shape.entries + shape.rows) // PAGE)
    data = torch.randn(
        LAYERS, 2 * shape.kv_heads, shape.batch * pages * PAGE, shape.dim, device="cuda", dtype=torch.bfloat16
    )
    table = torch.randperm(shape.batch * pages, device="cuda", dtype=torch.int32).view(shape.batch, pages)
    length = torch.full((shape.batch,), shape.entries, device="cuda", dtype=torch.int32)
    active = torch.ones(shape.batch, device="cuda", dtype=torch.bool)
    heads = (shape.heads, shape.kv_heads, shape.kv_heads)
    qkv = torch.randn(shape.batch * shape.rows, sum(heads), shape.dim, device="cuda", dtype=torch.bfloat16)
    q, k, v = qkv.split(heads, dim=1)

    def calls() -> None:
        for layer in range(LAYERS):
            attend_slots(
                data[layer], q, k, v, table, length, active, rows_per_slot=shape.rows, page_size=PAGE, causal=False,
                frozen=shape.frozen, scale=0.1,
            )  # fmt: skip

    read = 2 * shape.kv_heads * shape.batch * shape.entries * shape.dim * 2
    rows, seen = [], set()
    for choice in shape.choices:
        for programs in PROGRAMS:
            tile, block = choice[:2]
            tiles = -(-shape.rows * shape.heads // shape.kv_heads // tile)
            parts = max(1, min(32, -(-pages * PAGE // block), programs // (tiles * shape.batch * shape.kv_heads)))
            if (choice, parts) in seen:
                continue
            seen.add((choice, parts))
            with (
                mock.patch.object(attend_triton, "_blocking", lambda *_, choice=choice: choice),
                mock.patch.object(attend_triton, "_splits", lambda *_, parts=parts: parts),
            ):
                try:
                    calls()
                except Exception as error:  # a choice that needs more shared memory than there is
                    print(f"  {shape.name} {choice}: {type(error).__name__}")
                    continue
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    calls()
            micro = 1e3 * timed(graph.replay, 10) / LAYERS
            rows.append({"shape": shape.name, "choice": choice, "parts": parts, "us": round(micro, 2)})
    rows.sort(key=lambda row: row["us"])
    print(f"{shape.name}: floor {read / 4.3e6:.1f} us")
    for row in rows[:6]:
        print(f"  {row['us']:7.2f} us  tile, block, warps, stages {row['choice']}  parts {row['parts']}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with torch.inference_mode():
        rows = [row for shape in SHAPES for row in sweep(shape)]
    if args.json:
        args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
