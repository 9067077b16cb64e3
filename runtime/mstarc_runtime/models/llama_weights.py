"""Weights of a Llama checkpoint, prepared for the CPU: from a GGUF file or a HF safetensors folder, with a cache of the result.

Prepared tensors are f32, matrices as [in, out] (a product with one row runs about a quarter faster than with [out, in]), with
query, key and value in one matrix and gate and up in one. Head dimensions are in HF's order (first half, second half).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Iterable
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
from mstarc_runtime.models.shards import shards

_LAYOUT = 1  # of the prepared tensors: part of the cache file's name
_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_log = logging.getLogger(__name__)

Prepared = dict[str, Tensor]


def load(checkpoint: Checkpoint) -> tuple[LlamaConfig, Prepared]:
    """Facts and prepared tensors on the CPU; those of a GGUF file come from the cache if it has them. Raises LoadError."""
    path = checkpoint.path
    if path is None:
        raise LoadError("a Llama without a checkpoint needs its sizes in the node's config")
    if path.is_dir():
        facts = llama_config.from_folder(path)
        return facts, _from_folder(path, facts)
    cached = _cache_file(checkpoint)
    if cached is not None and cached.exists():
        found = _read_cache(cached)
        if found is not None:
            return found
    file = GgufFile(path)
    facts = llama_config.from_gguf(file)
    prepared = _from_gguf(file, facts)
    if cached is not None:
        _write_cache(cached, facts, prepared)
    return facts, prepared


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


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name. Raises LoadError."""
    found = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(name)
    if found is None:
        raise LoadError(f"Llama: dtype `{name}` is none of float32, bfloat16, float16")
    return found


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


# --------------------------------------------------------------------------------------------------------------- preparing


def _prepare(facts: LlamaConfig, read: Callable[[str, tuple[int, ...]], Tensor]) -> Prepared:
    """Prepared tensors; `read` gives a tensor by HF name (without `model.`) and the shape it must have."""
    hidden, inner, dim = facts.hidden_size, facts.intermediate_size, facts.head_dim
    wide, narrow = facts.num_attention_heads * dim, facts.num_key_value_heads * dim
    embed = read("embed_tokens.weight", (facts.vocab_size, hidden))
    head = embed if facts.tie_word_embeddings else read("lm_head.weight", (facts.vocab_size, hidden))
    made: Prepared = {"embed": embed, "head": head.T.contiguous(), "norm": read("norm.weight", (hidden,))}
    for layer in range(facts.num_hidden_layers):
        at = f"layers.{layer}."
        sides = [(f"self_attn.{side}_proj", rows) for side, rows in (("q", wide), ("k", narrow), ("v", narrow))]
        qkv = [read(f"{at}{name}.weight", (rows, hidden)) for name, rows in sides]
        pair = [read(f"{at}mlp.{side}_proj.weight", (inner, hidden)) for side in ("gate", "up")]
        made[f"{layer}.norm1"] = read(f"{at}input_layernorm.weight", (hidden,))
        made[f"{layer}.norm2"] = read(f"{at}post_attention_layernorm.weight", (hidden,))
        made[f"{layer}.qkv"] = torch.cat(qkv).T.contiguous()
        made[f"{layer}.out"] = read(f"{at}self_attn.o_proj.weight", (hidden, wide)).T.contiguous()
        made[f"{layer}.gate_up"] = torch.cat(pair).T.contiguous()
        made[f"{layer}.down"] = read(f"{at}mlp.down_proj.weight", (hidden, inner)).T.contiguous()
    return made


def _names(facts: LlamaConfig) -> list[str]:
    """HF names of all tensors, without `model.`."""
    names = ["embed_tokens.weight", "norm.weight", *([] if facts.tie_word_embeddings else ["lm_head.weight"])]
    return names + [f"layers.{n}.{part}.weight" for n in range(facts.num_hidden_layers) for part in _GGUF_NAMES]


def _compare(where: str, expected: Iterable[str], found: Iterable[str]) -> None:
    """Raise LoadError that names the missing and the unexpected tensors."""
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        parts = [
            f"tensors {what}: {', '.join(f'`{name}`' for name in names[:5])}{' …' if len(names) > 5 else ''} ({len(names)})"
            for what, names in (("missing", missing), ("unexpected", extra))
            if names
        ]
        raise LoadError(f"{where}: {'; '.join(parts)}")


def _checked(where: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise LoadError(f"{where}: tensor `{name}` has shape {list(tensor.shape)}, expected {list(shape)}")
    if not tensor.is_floating_point():
        raise LoadError(f"{where}: tensor `{name}` is {tensor.dtype}, expected a floating-point type")
    return tensor.float()


# -------------------------------------------------------------------------------------------------------------------- GGUF


def _from_gguf(file: GgufFile, facts: LlamaConfig) -> Prepared:
    names = {name: _gguf_name(name) for name in _names(facts)}
    _compare(file.path.name, names.values(), file.tensors)

    def read(name: str, shape: tuple[int, ...]) -> Tensor:
        stored = names[name]
        tensor = _checked(file.path.name, stored, torch.from_numpy(file.tensor(stored).copy()), shape)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            return _split_halves(tensor, facts.head_dim)
        return tensor

    return _prepare(facts, read)


def _gguf_name(name: str) -> str:
    fixed = {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in fixed:
        return fixed[name]
    _, layer, part = name.removesuffix(".weight").split(".", 2)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _split_halves(rows: Tensor, head_dim: int) -> Tensor:
    """GGUF keeps the two members of a RoPE pair in neighbouring rows of a head; HF keeps them half a head apart."""
    paired = rows.view(-1, head_dim // 2, 2, rows.shape[1])
    return paired.transpose(1, 2).reshape(rows.shape)


# ------------------------------------------------------------------------------------------------------------- safetensors


def _from_folder(folder: Path, facts: LlamaConfig) -> Prepared:
    found: dict[str, Tensor] = {}
    for path in shards(folder):
        try:
            with safe_open(str(path), framework="pt") as opened:
                file: Any = opened  # its methods carry no types
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    if not name.endswith("rotary_emb.inv_freq"):  # derived; old checkpoints store it
                        found[name.removeprefix("model.")] = file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path} cannot be read: {error}") from error
    head, embed = found.get("lm_head.weight"), found.get("embed_tokens.weight")
    if facts.tie_word_embeddings and head is not None and embed is not None:
        if not torch.equal(head, embed):
            raise LoadError(
                f"{folder}: `lm_head.weight` differs from the embeddings, but config.json says they are tied"
            )
        del found["lm_head.weight"]
    _compare(str(folder), _names(facts), found)
    return _prepare(facts, lambda name, shape: _checked(str(folder), name, found[name], shape))


# ------------------------------------------------------------------------------------------------------------------- cache


def _cache_file(checkpoint: Checkpoint) -> Path | None:
    if checkpoint.cache_dir is None or not checkpoint.digest:
        return None
    return checkpoint.cache_dir / f"llama-f32-v{_LAYOUT}-{checkpoint.digest[:32]}.safetensors"


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
