"""The decode step of Orpheus at its real size with made-up weights, engine only: no worker, no codec, no host between steps.

    python -m tests.bench.orpheus_step --batch 1,4,16,32 --context 1024 [--json FILE] [--layers 28] [--gemms]

Every request has a context of that length filled with noise. Times are medians over replays by device events, after a warm-up: eager
launches, one step in a CUDA graph, seven steps in a graph; with argmax, and with the sampler at Orpheus's settings. `GB/s` counts the
bytes that a step must read (weights once, keys and values of every context) over the time of the 7-step graph. The split is by kernel
name from torch's profiler over replays of one step; kernels that start early count their waits, so its sum is more than a step takes.
`--gemms` times the step's products alone: cuBLAS with weights [out, in] and [in, out], and the step's own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.slots import Slots, call_slots
from mstarc_runtime.engines.transformer import OpSpec
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.llama_fused import HEAD_ROWS
from mstarc_runtime.models.llama_step import parts as parts_of
from mstarc_runtime.models.step_gluon import PRODUCTS
from mstarc_runtime.models.step_products import Stream
from mstarc_runtime.sampling.device import SamplerPlan, SamplerRows, Site
from mstarc_runtime.sampling.sampler import Settings

ROOT = Path(__file__).resolve().parents[2]
STEP = OpSpec("llm.step", ("scalar",))
UNROLL = 7
SETTINGS = {"temperature": 0.6, "top_p": 0.8, "repetition_penalty": 1.3}
KINDS = {
    "attention": ("attend", "combine", "join_rows"),
    "products": ("_product", "gemm", "nvjet", "cutlass", "gemv", "splitk", "cublas"),
    "sampler": ("draw_adjust", "draw_bins", "draw_gather", "draw_cut", "draw_remember", "_uniforms"),
}


def load(layers: int) -> Llama:
    config = dict(YAML(typ="safe").load(ROOT / "specs" / "orpheus.yaml")["config"]["llm"])
    if layers:
        config["num_hidden_layers"] = layers
    model = Llama.load(Checkpoint(), config, "cuda")
    torch.cuda.synchronize()
    return model


class Decode:
    """A batch of requests on slots, and its step as device work."""

    def __init__(self, model: Llama, pool: PagedPool, batch: int, context: int, sampled: bool) -> None:
        self.model, self.batch, self.start = model, batch, context
        self.contexts = [Context(pool) for _ in range(batch)]
        self.slots = Slots(pool, batch, 2 * pool.pages_for(context))
        for slot, target in enumerate(self.contexts):
            target.reserve(2 * context - 64)
            self.slots.put(slot, target)
        self.token = torch.full((batch,), 1000, device="cuda")
        self.seed = torch.arange(batch, device="cuda")
        self.rows: SamplerRows | None = None
        if sampled:
            self.rows = SamplerRows(SamplerPlan.of(SETTINGS), batch, model.facts.vocab_size, torch.device("cuda"))
            for row in range(batch):
                self.rows.put([row], [Settings(**SETTINGS)], [0], [[torch.arange(1000, 1080, device="cuda")]])
            self.site = Site(12345, batch, torch.device("cuda"))
        self.reset()

    def reset(self) -> None:
        self.slots.length.fill_(self.start)
        self.slots.position.fill_(self.start)

    def step(self) -> None:
        (logits,) = call_slots(self.model.step, STEP, [self.slots], [self.token], self.slots.active, takes=1)
        if self.rows is None:
            self.token.copy_(logits.argmax(-1))
        else:
            number = self.site.number(self.seed, self.batch, self.slots.active)
            self.token.copy_(self.rows.draw(logits, number, self.slots.active)[0])

    def steps(self, count: int) -> Callable[[], None]:
        """So many steps as a graph."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                self.step()
        return graph.replay

    def drop(self) -> None:
        for context in self.contexts:
            context.drop()


def timed(work: Callable[[], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> float:
    """Median milliseconds of the work, by device events."""
    took = []
    for number in range(repeats + 2):
        before()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if number >= 2:
            took.append(begin.elapsed_time(end))
    return statistics.median(took)


def split(replay: Callable[[], Any], repeats: int = 4) -> dict[str, float]:
    """Milliseconds of device time per replay, by kind of kernel; and the longest kernels of the rest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(repeats):
            replay()
        torch.cuda.synchronize()
    shares = dict.fromkeys([*KINDS, "rest"], 0.0)
    for event in sorted(found.key_averages(), key=lambda event: -event.self_device_time_total):
        name = event.key.lower()
        kind = next((kind for kind, marks in KINDS.items() if any(mark in name for mark in marks)), "rest")
        shares[kind] += event.self_device_time_total / 1e3 / repeats
        if event.self_device_time_total / 1e3 / repeats > 0.02:
            each = event.self_device_time_total / event.count
            print(f"    {kind:9} {event.count / repeats:6.0f} x {each:7.1f} us  {event.key[:90]}")
    return {kind: round(value, 4) for kind, value in shares.items()}


def measure(model: Llama, pool: PagedPool, batch: int, context: int, repeats: int) -> dict[str, Any]:
    facts = model.facts
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors(model))
    entry = 2 * facts.num_hidden_layers * facts.num_key_value_heads * facts.head_dim * 2
    moved = weights + batch * context * entry
    row: dict[str, Any] = {"batch": batch, "context": context}
    for sampled in (False, True):
        run = Decode(model, pool, batch, context, sampled)
        with torch.inference_mode():
            for _ in range(2):
                run.step()
            name = "sampler" if sampled else "argmax"
            row[f"{name}_eager_ms"] = round(timed(run.step, repeats, run.reset), 3)
            one = run.steps(1)
            row[f"{name}_graph1_ms"] = round(timed(one, repeats, run.reset), 3)
            many = run.steps(UNROLL)
            row[f"{name}_graph{UNROLL}_ms"] = round(timed(many, repeats, run.reset) / UNROLL, 3)
            print(f"  batch {batch}, {name}:")
            row[f"{name}_split_ms"] = split(one)
        run.drop()
    step = row[f"argmax_graph{UNROLL}_ms"]
    row["floor_ms"] = round(moved / 4.3e9, 3)
    row["GB_s"] = round(moved / step / 1e6)
    row["audio_s_per_s_without_codec"] = round(batch * 2048 / 24000 / 7 / (row[f"sampler_graph{UNROLL}_ms"] / 1e3), 1)
    return row


def tensors(model: Llama) -> list[Tensor]:
    """Weights that a step reads: the tied head once, of the embeddings only rows."""
    return [getattr(layer, part) for layer in model._layers for part in type(layer).__slots__] + [model._head]


# ----------------------------------------------------------------------------------------------------------------- products


def gemms(batches: Sequence[int], facts: Any) -> list[dict[str, Any]]:
    """Each product of a step over weights that no cache holds: GB/s of weights read."""
    inner, hidden, dim = facts.intermediate_size, facts.hidden_size, facts.head_dim
    shapes = {
        "qkv": ((facts.num_attention_heads + 2 * facts.num_key_value_heads) * dim, hidden),
        "out": (hidden, facts.num_attention_heads * dim),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "head": (facts.vocab_size, hidden),
        "padded head": (facts.vocab_size + -facts.vocab_size % HEAD_ROWS, hidden),
    }
    rows = []
    for name, (outs, ins) in shapes.items():
        copies = max(2, min(28, int(6e8 / (outs * ins * 2))))
        stored = [torch.randn(outs, ins, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(copies)]
        turned = [weight.T.contiguous() for weight in stored]
        for batch in batches:
            x = torch.randn(batch, ins, device="cuda", dtype=torch.bfloat16)
            cublas = {
                label: rate(work, x, weights, stored[0])
                for label, (work, weights) in products("head" in name, stored, turned).items()
            }
            squares = torch.full((batch, 1), float(ins), device="cuda")
            work = partial(own_product, squares=squares, parts=1 if "head" in name else 0)
            own = None if outs % HEAD_ROWS else rate(work, x, stored, stored[0])
            rows.append({"product": name, "batch": batch, "cublas": cublas, "own": own})
            print(f"  {name:8} batch {batch:3}  cublas {cublas}  own {own}", flush=True)
    return rows


Product = Callable[[Tensor, Tensor], Tensor]


def products(head: bool, stored: list[Tensor], turned: list[Tensor]) -> dict[str, tuple[Product, list[Tensor]]]:
    """cuBLAS by layout of the weights; the head's with f32 results."""
    if head:
        return {"out_in": (lambda x, w: torch.mm(x, w.T, out_dtype=torch.float32), stored)}
    return {"out_in": (lambda x, w: x @ w.T, stored), "in_out": (lambda x, w: x @ w, turned)}


def own_product(x: Tensor, weight: Tensor, squares: Tensor, parts: int) -> Tensor:
    """The step's product [parts, rows, out] of rows x with those sums of squares."""
    return PRODUCTS.parts_product(Stream(x, x, squares), weight, 0.0, parts or parts_of(weight))


def rate(work: Product, x: Tensor, weights: list[Tensor], first: Tensor) -> int:
    """GB/s of weights read by one product after the other; that with `weights[0]`, which is `first` [out, in], is checked in f32."""
    result, expected = work(x, weights[0]).float(), x.float() @ first.float().T
    result = result.sum(0) if result.dim() == 3 else result
    if not (result - expected).norm() < 0.02 * expected.norm():
        raise SystemExit("a product is wrong")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each in weights:
            work(x, each)
    return round(len(weights) * first.numel() * 2 / timed(graph.replay, 8) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 4, 16, 32])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--gemms", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    begin = time.perf_counter()
    model = load(args.layers)
    facts = model.facts
    print(f"weights made in {time.perf_counter() - begin:.1f} s, {torch.cuda.memory_allocated() / 1e9:.2f} GB")
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    pages = max(args.batch) * (2 * args.context // PAGE_SIZE_GPU + 1)
    pool = PagedPool(geometry, pages, page_size=PAGE_SIZE_GPU, dtype=torch.bfloat16, device="cuda")
    pool.data.normal_()
    rows = []
    for batch in args.batch:
        rows.append(measure(model, pool, batch, args.context, args.repeats))
        print(json.dumps(rows[-1]), flush=True)
    products = gemms(args.batch, facts) if args.gemms else []
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "dtype": "bfloat16",
        "repeats": args.repeats,
    }
    if args.json:
        args.json.write_text(json.dumps({**about, "steps": rows, "products": products}, indent=1))
    print(json.dumps(about))
    columns = [key for key in rows[0] if not key.endswith("split_ms")]
    print("  ".join(columns))
    for row in rows:
        print("  ".join(str(row[key]).rjust(len(key)) for key in columns))


if __name__ == "__main__":
    main()
