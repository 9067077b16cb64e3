"""The component `Llama`: `read(ids: i64[T]) -> logits: f32[vocab]` and `step(token: i64) -> logits: f32[vocab]` over paged KV.

Weights are a GGUF file or a HF safetensors folder, or random ones if the node is bound to no checkpoint and its config gives the
sizes (names as in HF's config.json, and `seed`). The net follows the published Llama: RMS norm before attention and before the
gated SiLU feed-forward, rotary positions on queries and keys, residual sums in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models import llama_config, llama_weights
from mstarc_runtime.models.llama_config import LlamaConfig
from mstarc_runtime.weights import Fit, dtype_named


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; matrices are [in, out]."""

    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


class Llama:
    """A Llama in f32 on a CPU (a GPU runs `FusedLlama`). Methods must run under `torch.inference_mode`, as the engine does."""

    def __init__(self, facts: LlamaConfig, weights: Mapping[str, Tensor], device: str = "cpu") -> None:
        """`weights` as `llama_weights.shapes(facts)` names them."""
        wanted = llama_weights.shapes(facts)
        for name, shape in wanted.items():
            if name not in weights or tuple(weights[name].shape) != shape:
                found = list(weights[name].shape) if name in weights else "missing"
                raise LoadError(f"Llama tensor `{name}` is {found}, expected {list(shape)}")
        moved = {name: weights[name].to(device) for name in wanted}
        self.facts = facts
        self._embed, self._head, self._norm = moved["embed"], moved["head"], moved["norm"]
        parts = Layer.__slots__
        self._layers = [Layer(*(moved[f"{n}.{part}"] for part in parts)) for n in range(facts.num_hidden_layers)]
        self._frequencies = facts.inverse_frequencies().to(device)

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node for the linker, under the names of HF's config.json. Raises LoadError."""
        if checkpoint.path is None:
            return llama_config.from_mapping(config, "the node's config").values()
        return llama_weights.config_of(checkpoint).values()

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return llama_weights.prepared_fit(checkpoint)[1]

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Llama:
        """On a GPU: a `FusedLlama` in the config's `dtype` (bfloat16). Raises LoadError naming the tensor or file that is wrong."""
        if torch.device(device).type == "cuda":
            return _load_fused(checkpoint, config, device)
        if checkpoint.path is None:
            facts = llama_config.from_mapping(config, "the node's config")
            return cls(facts, llama_weights.random(facts, int(config.get("seed", 0))), device)
        return cls(*llama_weights.load(checkpoint), device)

    # ----------------------------------------------------------------------------------------------------------------- ops

    def read(self, run: Run, ids: Tensor) -> Tensor:
        """Packed ids [ΣT] -> logits of each request's last row [B, vocab]."""
        return self.logits(self.hidden(run, ids)[run.last])

    def step(self, run: Run, token: Tensor) -> Tensor:
        """One token of each request [B] -> logits [B, vocab]."""
        return self.logits(self.hidden(run, token))

    # ----------------------------------------------------------------------------------------------------------------- net

    def hidden(self, run: Run, ids: Tensor) -> Tensor:
        """Packed ids [ΣT] -> the residual stream after the last layer [ΣT, hidden], before the final norm."""
        facts = self.facts
        heads, dim = facts.num_attention_heads, facts.head_dim
        rotated = heads + facts.num_key_value_heads
        cos, sin = self._rotation(run.positions)
        x = F.embedding(ids, self._embed)
        for n, layer in enumerate(self._layers):
            qkv = (self._scaled(x, layer.norm1) @ layer.qkv).view(len(x), -1, dim)
            qk = _rotate(qkv[:, :rotated], cos, sin)
            mixed = run.attend(n, qk[:, :heads], qk[:, heads:], qkv[:, rotated:])
            x = torch.addmm(x, mixed.reshape(len(x), -1), layer.out)
            gate, up = (self._scaled(x, layer.norm2) @ layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Rows of the residual stream [n, hidden] -> logits [n, vocab]."""
        return self._scaled(x, self._norm) @ self._head

    def _scaled(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm: x / sqrt(mean(x²) + eps) · weight."""
        return F.rms_norm(x, weight.shape, weight, self.facts.rms_norm_eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of rotary positions [ΣT], each [ΣT, 1, head_dim]."""
        angle = positions[:, None, None].float() * self._frequencies
        sin = angle.sin()
        cos = angle.cos()
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def _load_fused(checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Llama:
    from mstarc_runtime.models.llama_fused import FusedLlama  # needs triton, which is there where CUDA is

    dtype = dtype_named(config.get("dtype", "bfloat16"), "Llama")
    if checkpoint.path is None:
        facts = llama_config.from_mapping(config, "the node's config")
        return FusedLlama(facts, llama_weights.fabricate(facts, int(config.get("seed", 0)), dtype, device), device)
    facts, weights = llama_weights.load(checkpoint)
    return FusedLlama(facts, llama_weights.for_gpu(facts, weights, dtype, device), device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: pairs are half a head apart; `sin` is negative in the first half."""
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return torch.addcmul(x * cos, swapped, sin)
