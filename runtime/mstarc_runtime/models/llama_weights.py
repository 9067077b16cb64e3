"""Weights of a Llama checkpoint, prepared for the CPU: from a GGUF file or a HF safetensors folder, with a cache of the result.

Prepared tensors are f32, matrices as [in, out] (a product with one row runs about a quarter faster than with [out, in]), with
query, key and value in one matrix and gate and up in one. Head dimensions are in HF's order (first half, second half).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models import llama_config
from mstarc_runtime.models.gguf_file import GgufFile
from mstarc_runtime.models.llama_config import LlamaConfig
from mstarc_runtime.weights import Fit, Weight, mapped, stored, weight

TIE = {"tie": "embed", "to": "head"}
_LAYOUT = 1  # of the prepared tensors: part of the cache file's name
_log = logging.getLogger(__name__)

Prepared = dict[str, Tensor]


def load(checkpoint: Checkpoint) -> tuple[LlamaConfig, Prepared]:
    """Facts and prepared tensors on the CPU; those of a GGUF file come from the cache if it has them. Raises LoadError."""
    cached = _cache_file(checkpoint)
    if cached is not None and cached.exists():
        found = _read_cache(cached)
        if found is not None:
            return found
    facts, fit = prepared_fit(checkpoint)
    prepared = {name: _as_multiplied(name, tensor) for name, tensor in fit.each(dtype=torch.float32)}
    if cached is not None:
        _write_cache(cached, facts, prepared)
    return facts, prepared


def prepared_fit(checkpoint: Checkpoint) -> tuple[LlamaConfig, Fit]:
    """Facts, and what `load` prepares: matrices as a checkpoint has them, [out, in]. A tied head is one tensor with the embeddings.

    Raises LoadError.
    """
    path = checkpoint.path
    if path is None:
        raise LoadError("a Llama without a checkpoint needs its sizes in the node's config")
    if path.is_dir():
        facts, tensors = llama_config.from_folder(path), stored(path)
    else:
        file = GgufFile(path)
        facts = llama_config.from_gguf(file)
        tensors = _gguf_tensors(file, facts)
    weights = mapped(tensors, (*checkpoint.rules, *([TIE] if facts.tie_word_embeddings else [])))
    wanted = {name: shape if name == "embed" else shape[::-1] for name, shape in shapes(facts).items()}
    wide, narrow = facts.num_attention_heads * facts.head_dim, facts.num_key_value_heads * facts.head_dim
    return facts, Fit("Llama", weights, wanted, {"*.qkv": (wide, narrow, narrow)})


def _as_multiplied(name: str, tensor: Tensor) -> Tensor:
    return tensor if tensor.dim() == 1 or name == "embed" else tensor.T.contiguous()


def config_of(checkpoint: Checkpoint) -> LlamaConfig:
    """The facts alone, without reading tensors. Raises LoadError."""
    if checkpoint.path is None:
        raise LoadError("a Llama without a checkpoint needs its sizes in the node's config")
    if checkpoint.path.is_dir():
        return llama_config.from_folder(checkpoint.path)
    return llama_config.from_gguf(GgufFile(checkpoint.path))


def shapes(facts: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the prepared tensors."""
    hidden, inner, dim = facts.hidden_size, facts.intermediate_size, facts.head_dim
    heads, kv_heads = facts.num_attention_heads, facts.num_key_value_heads
    wanted: dict[str, tuple[int, ...]] = {
        "embed": (facts.vocab_size, hidden),
        "head": (hidden, facts.vocab_size),
        "norm": (hidden,),
    }
    for layer in range(facts.num_hidden_layers):
        wanted[f"{layer}.norm1"] = (hidden,)
        wanted[f"{layer}.norm2"] = (hidden,)
        wanted[f"{layer}.qkv"] = (hidden, (heads + 2 * kv_heads) * dim)
        wanted[f"{layer}.out"] = (heads * dim, hidden)
        wanted[f"{layer}.gate_up"] = (hidden, 2 * inner)
        wanted[f"{layer}.down"] = (inner, hidden)
    return wanted


def random(facts: LlamaConfig, seed: int) -> Prepared:
    """Random weights, for tests and demos without a checkpoint: normal with deviation 0.02, norms 1, the head tied."""
    generator = torch.Generator().manual_seed(seed)
    made: Prepared = {}
    for name, shape in shapes(facts).items():
        made[name] = torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
    if facts.tie_word_embeddings:
        made["head"] = made["embed"].T.contiguous()
    return made


# --------------------------------------------------------------------------------------------------------------------- GPU


def for_gpu(facts: LlamaConfig, weights: Prepared, dtype: torch.dtype, device: str) -> Prepared:
    """Prepared tensors on a GPU: matrices in memory as [out, in] (as views of [in, out]), a tied head as a view of the embeddings."""
    made: Prepared = {}
    for name, tensor in weights.items():
        if name == "head" and facts.tie_word_embeddings:
            continue
        moved = tensor.to(device, dtype)
        made[name] = moved if moved.dim() == 1 or name == "embed" else moved.T.contiguous().T
    return _tied(facts, made)


def fabricate(facts: LlamaConfig, seed: int, dtype: torch.dtype, device: str) -> Prepared:
    """Random weights as `random` says, but made on the GPU (other numbers), laid out as `for_gpu` does. For benchmarks at real sizes."""
    generator = torch.Generator(device).manual_seed(seed)
    made: Prepared = {}
    for name, shape in shapes(facts).items():
        if name == "head" and facts.tie_word_embeddings:
            continue
        stored = torch.empty(shape if name == "embed" else shape[::-1], dtype=dtype, device=device)
        stored = stored.fill_(1.0) if len(shape) == 1 else stored.normal_(0.0, 0.02, generator=generator)
        made[name] = stored if name == "embed" or len(shape) == 1 else stored.T
    return _tied(facts, made)


def _tied(facts: LlamaConfig, made: Prepared) -> Prepared:
    return {**made, "head": made["embed"].T} if facts.tie_word_embeddings else made


# -------------------------------------------------------------------------------------------------------------------- GGUF


def _gguf_tensors(file: GgufFile, facts: LlamaConfig) -> dict[str, Weight]:
    """The tensors of a file under its own names, unread, but for query and key rows in HF's order."""

    def one(name: str) -> Tensor:
        tensor = torch.from_numpy(file.tensor(name).copy())
        return _split_halves(tensor, facts.head_dim) if name.endswith(("attn_q.weight", "attn_k.weight")) else tensor

    return {
        name: weight(name, info.shape, "float32", file.path.name, partial(one, name))
        for name, info in file.tensors.items()
    }


def _split_halves(rows: Tensor, head_dim: int) -> Tensor:
    """GGUF keeps the two members of a RoPE pair in neighbouring rows of a head; HF keeps them half a head apart."""
    paired = rows.view(-1, head_dim // 2, 2, rows.shape[1])
    return paired.transpose(1, 2).reshape(rows.shape)


# ------------------------------------------------------------------------------------------------------------------- cache


def _cache_file(checkpoint: Checkpoint) -> Path | None:
    """Where the prepared tensors of a GGUF file are kept; other files are read as fast without."""
    path = checkpoint.path
    if path is None or path.is_dir() or checkpoint.cache_dir is None or not checkpoint.digest:
        return None
    key = hashlib.sha256(json.dumps([checkpoint.digest, checkpoint.rules]).encode()).hexdigest()
    return checkpoint.cache_dir / f"llama-f32-v{_LAYOUT}-{key[:32]}.safetensors"


def _read_cache(path: Path) -> tuple[LlamaConfig, Prepared] | None:
    """What an earlier load left, memory-mapped; None if it is damaged or from another layout."""
    try:
        with safe_open(str(path), framework="pt") as opened:
            file: Any = opened
            facts = llama_config.from_values(json.loads((file.metadata() or {})["facts"]))
            prepared = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, LoadError) as error:
        _log.warning("%s is not usable (%s); the weights are dequantised again", path, error)
        return None
    if {name: tuple(tensor.shape) for name, tensor in prepared.items()} != shapes(facts):
        _log.warning("%s does not hold the tensors it should; the weights are dequantised again", path)
        return None
    return facts, prepared


def _write_cache(path: Path, facts: LlamaConfig, prepared: Prepared) -> None:
    """Write beside and rename, so that no reader sees half a file. A full or read-only disk costs the cache, not the start."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(prepared, temporary, metadata={"facts": json.dumps(facts.values())})
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        _log.warning("%s cannot be written (%s); the next start dequantises again", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink()
