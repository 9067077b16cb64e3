"""The decode step of `FusedLlama` on slots: five kernels a layer, in which norms, rotation, append, gate and sums are parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mstarc_runtime.models import step_triton as kernels
from mstarc_runtime.models.llama import Layer
from mstarc_runtime.models.llama_config import LlamaConfig
from mstarc_runtime.models.step_triton import Blocking

PROGRAMS = 264  # two on each multiprocessor of an H200
_TILE, _BLOCK = 64, 128


class StepRun(Protocol):
    """What the step needs of `engines.slots.SlotsRun`."""

    positions: Tensor

    def attend_step(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, arrived: Tensor) -> Tensor: ...


class LlamaStep:
    """Token ids of up to `step_triton.MAX_ROWS` slots -> logits."""

    def __init__(
        self,
        facts: LlamaConfig,
        layers: Sequence[Layer],
        embed: Tensor,
        head: Tensor,
        norm: Tensor,
        frequencies: Tensor,
    ) -> None:
        """Matrices [in, out] that lie in memory as [out, in]; `head` may have more outputs than the vocabulary. See `fits`."""
        self._facts, self._layers = facts, layers
        self._embed, self._head, self._norm, self._frequencies = embed, head, norm, frequencies

    @staticmethod
    def fits(facts: LlamaConfig, layers: Sequence[Layer], embed: Tensor, head: Tensor) -> bool:
        """Whether sizes are multiples of the kernels' tiles, and matrices lie as they read them.

        Not for f16, in which rows before their norm may not fit.
        """
        heads, dim = facts.num_attention_heads, facts.head_dim
        outs = (facts.hidden_size, (heads + 2 * facts.num_key_value_heads) * dim, 2 * facts.intermediate_size)
        ins = (facts.hidden_size, heads * dim, facts.intermediate_size)
        sizes = all(size % _TILE == 0 for size in (*outs, head.shape[1])) and all(size % _BLOCK == 0 for size in ins)
        matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        dense = all(matrix.T.is_contiguous() for matrix in (*matrices, head)) and embed.is_contiguous()
        return sizes and dense and dim >= 16 and dim & (dim - 1) == 0 and head.dtype in (torch.bfloat16, torch.float32)

    def __call__(self, run: StepRun, token: Tensor) -> Tensor:
        """One token of each slot, i64 [B] -> logits f32 [B, vocab]."""
        facts, layers, rows = self._facts, self._layers, len(token)
        eps, dim = facts.rms_norm_eps, facts.head_dim
        tiles = facts.hidden_size // _TILE
        arrived = torch.zeros(max(tiles, rows * facts.num_key_value_heads), dtype=torch.int32, device=token.device)
        stream, cos, sin = kernels.begin(token, self._embed, layers[0].norm1, run.positions, self._frequencies, tiles)
        norms = [layer.norm1 for layer in layers[1:]] + [self._norm]
        for n, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            qkv = kernels.parts_product(stream, layer.qkv.T, eps, blocking(layer.qkv.T))
            mixed = run.attend_step(n, qkv.view(*qkv.shape[:2], -1, dim), cos, sin, arrived)
            mixed, out = mixed.view(rows, -1).to(stream.scaled.dtype), layer.out.T
            stream = kernels.add_product(stream, mixed, out, layer.norm2, arrived, blocking(out))
            inner = kernels.gated_product(stream, layer.gate_up.T, eps, blocking(layer.gate_up.T, parts=1))
            stream = kernels.add_product(stream, inner, layer.down.T, norm, arrived, blocking(layer.down.T))
        logits = kernels.parts_product(stream, self._head.T, eps, blocking(self._head.T, parts=1))
        return logits[0, :, : facts.vocab_size]


def blocking(weight: Tensor, parts: int = 0) -> Blocking:
    """The cut of a product of weight [outs, ins]; `parts` 0: as many as give `PROGRAMS`."""
    outs, ins = weight.shape
    blocks = ins // _BLOCK
    parts = parts or max(1, min(blocks, PROGRAMS // (outs // _TILE)))
    if weight.element_size() > 2:
        return Blocking(_TILE, _BLOCK, parts, stages=2, lead=0)
    if outs // _TILE * parts > 4 * PROGRAMS:  # programs that begin overlap with others that end anyway
        return Blocking(_TILE, _BLOCK, parts, lead=0)
    return Blocking(_TILE, _BLOCK, parts, lead=2 * _BLOCK if blocks >= 2 * parts else _BLOCK)
