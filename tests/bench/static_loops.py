"""The static loops of pi0.5 (flow steps of `velocity`) and V-JEPA 2-AC (rollout of `predictor.step`) through op graphs, engine only.

    python -m tests.bench.static_loops [--batch 1,8] [--json FILE]

Real sizes, made-up weights in bf16. `loop` is wall time of the whole loop as a walk's coroutine runs it (one engine call and one
replay a step, the host in between); `replay` is the device's time of one step alone, median of events; `read` is one prefill of
pi0.5's prefix. Batches beyond one are requests in lockstep.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.op_graphs import FixedOp, OpGraph
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.pi05.policy import Policy
from mstarc_runtime.models.vjepa2.components import Predictor
from mstarc_runtime.models.vjepa2.config import NORM_EPS, AcConfig, Stack
from mstarc_runtime.models.vjepa2.nets import AcPredictorNet
from mstarc_runtime.worker.device_runner import GraphRunner
from tests.bench.orpheus_step import split, timed

ROOT = Path(__file__).resolve().parents[2]
CUDA = torch.device("cuda")
FLOW, ROLLOUT = 10, 30
READ = OpSpec("llm.read", ("packed",), (), attend="full")
VELOCITY = OpSpec("llm.velocity", ("plain", "scalar"), attend="full", frozen=True)
FRAME = OpSpec("predictor.step", ("plain", "plain", "plain"), attend="full", positions="same")


def wall(loop: Callable[[], Any], repeats: int = 7) -> float:
    """Median milliseconds until the device has finished the loop."""
    took = []
    for _ in range(repeats + 2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        loop()
        torch.cuda.synchronize()
        took.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(took[2:])


def pi05(batches: Sequence[int]) -> list[dict[str, Any]]:
    config = dict(YAML(typ="safe").load(ROOT / "specs" / "pi05.yaml")["config"]["llm"])
    policy = Policy.load(Checkpoint(), {**config, "dtype": "bfloat16"}, "cuda")
    facts = policy.config
    horizon, width = int(config["chunk_size"]), int(config["max_action_dim"])
    pool = PagedPool(
        Geometry(facts.layers, facts.heads, facts.kv_heads, facts.head_dim),
        max(batches) * 20,
        page_size=PAGE_SIZE_GPU,
        dtype=torch.bfloat16,
        device=CUDA,
    )
    engine = TransformerEngine(pool)
    op = FixedOp(VELOCITY, ((torch.float32, (horizon, width)), (torch.float32, ())), horizon)
    begin = time.perf_counter()
    graph = OpGraph(policy.velocity, op, pool, 32, GraphRunner(CUDA), buckets=sorted(set(batches)))
    captured = time.perf_counter() - begin
    rows = []
    for batch in batches:
        contexts = [Context(pool) for _ in range(batch)]
        prefix = torch.randn(968, config["hidden_size"], device=CUDA, dtype=torch.bfloat16)

        def read(contexts: list[Context] = contexts, prefix: Any = prefix) -> None:
            for context in contexts:
                context.drop()
                engine.call(policy.read, READ, [Call((prefix,), (context,), 968)])

        def flow(contexts: list[Context] = contexts, used: OpGraph | None = graph) -> None:
            x = torch.randn(len(contexts), horizon, width, device=CUDA)
            for step in range(FLOW):
                t = torch.tensor(1 - step / FLOW, device=CUDA)
                calls = [Call((x[b], t), (context,), horizon) for b, context in enumerate(contexts)]
                (v,) = engine.call(policy.velocity, VELOCITY, calls, used)
                assert isinstance(v, torch.Tensor)
                x = x - v / FLOW

        read_ms = wall(read)
        row = {
            "loop": "pi05.flow", "batch": batch, "steps": FLOW, "context": 968, "capture_s": round(captured, 2),
            "read_ms": round(read_ms, 2), "loop_ms": round(wall(flow), 2),
            "eager_ms": round(wall(lambda flow=flow: flow(used=None)), 2),  # type: ignore[misc]
            "replay_ms": round(timed(graph._replays[batch], 20), 3),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        row["split_ms"] = split(graph._replays[batch])
        rows.append(row)
        for context in contexts:
            context.drop()
    return rows


def predictor() -> Predictor:
    """The published predictor's sizes; matrices normal with deviation 0.02, norms 1, biases 0."""
    facts = AcConfig(Stack(1024, 24, 16, 4096, True, NORM_EPS), embed_dim=1408, grid=16, action_dim=7)
    with torch.device("meta"):
        net = AcPredictorNet(facts)
    net = net.to_empty(device=CUDA).to(torch.bfloat16).requires_grad_(False).eval()
    for name, tensor in net.state_dict().items():
        if tensor.dim() > 1:
            tensor.normal_(0.0, 0.02)
        else:
            tensor.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return Predictor(net, facts)


def rollout(batches: Sequence[int]) -> list[dict[str, Any]]:
    component = predictor()
    facts = component.config
    n, dim, actions = facts.tokens_per_frame, facts.embed_dim, facts.action_dim
    stack = facts.stack
    pages = -(-32 * facts.rows // PAGE_SIZE_GPU)
    pool = PagedPool(
        Geometry(stack.depth, stack.heads, stack.heads, stack.head_dim),
        max(batches) * pages,
        page_size=PAGE_SIZE_GPU,
        dtype=torch.bfloat16,
        device=CUDA,
    )
    engine = TransformerEngine(pool)
    shapes = ((torch.float32, (n, dim)), (torch.float32, (actions,)), (torch.float32, (actions,)))
    begin = time.perf_counter()
    graph = OpGraph(
        component.step,
        FixedOp(FRAME, shapes, facts.rows, 1),
        pool,
        pages,
        GraphRunner(CUDA),
        buckets=sorted(set(batches)),
    )
    captured = time.perf_counter() - begin
    rows = []
    for batch in batches:
        contexts = [Context(pool) for _ in range(batch)]
        first = torch.randn(batch, n, dim, device=CUDA)
        given = torch.randn(2, ROLLOUT, actions, device=CUDA)

        def dream(
            contexts: list[Context] = contexts, first: Any = first, given: Any = given, used: OpGraph | None = graph
        ) -> None:
            for context in contexts:
                context.drop()
            z = first
            for step in range(ROLLOUT):
                calls = [
                    Call((z[b], given[0, step], given[1, step]), (context,), facts.rows, advance=1)
                    for b, context in enumerate(contexts)
                ]
                (z,) = engine.call(component.step, FRAME, calls, used)

        row: dict[str, Any] = {
            "loop": "vjepa2_ac.dream", "batch": batch, "steps": ROLLOUT, "capture_s": round(captured, 2),
            "loop_ms": round(wall(dream), 2),
            "eager_ms": round(wall(lambda dream=dream: dream(used=None), 3), 2),  # type: ignore[misc]
        }  # fmt: skip
        for frames in (1, 15, 30):
            graph._slots.length.fill_(frames * facts.rows)
            replay = graph._replays[batch]

            def again(frames: int = frames) -> None:
                graph._slots.length.fill_(frames * facts.rows)

            row[f"replay_ms_at_{frames}"] = round(timed(replay, 10, again), 3)
        print(json.dumps(row), flush=True)
        graph._slots.length.fill_(15 * facts.rows)
        row["split_ms"] = split(graph._replays[batch], 1)
        rows.append(row)
        for context in contexts:
            context.drop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = pi05(args.batch) + rollout(args.batch)
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "dtype": "bfloat16"}
    if args.json:
        args.json.write_text(json.dumps({**about, "loops": rows}, indent=1))
    print(json.dumps(about))
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items() if key != "split_ms"))


if __name__ == "__main__":
    main()
