"""The decode step of `FusedLlama` on slots: five kernels a layer, in which norms, rotation, append, gate and sums are parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mstarc_runtime.engines.attend_step_triton import Shares
from mstarc_runtime.models import step_gluon, step_triton
from mstarc_runtime.models.llama import Layer
from mstarc_runtime.models.llama_config import LlamaConfig
from mstarc_runtime.models.step_products import IN, MAX_ROWS, OUT

PROGRAMS = 264  # two on each multiprocessor of an H200


class StepRun(Protocol):
    """What the step needs of `engines.slots.SlotsRun`."""

    positions: Tensor

    def attend_step(
        self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, arrived: Tensor | None
    ) -> Tensor | Shares: ...


class LlamaStep:
    """Token ids of up to `MAX_ROWS` slots -> logits."""

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
        matrices = [head] + [matrix for layer in layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        on_hopper = all(step_gluon.runs_on(matrix.T) for matrix in matrices)
        self._products = step_gluon.PRODUCTS if on_hopper else step_triton.PRODUCTS
        self._tiles = facts.hidden_size // OUT
        most = max(self._tiles, MAX_ROWS * facts.num_key_value_heads)
        self._arrived = torch.zeros(most, dtype=torch.int32, device=embed.device)  # the kernels leave it so

    @staticmethod
    def fits(facts: LlamaConfig, layers: Sequence[Layer], embed: Tensor, head: Tensor) -> bool:
        """Whether sizes are multiples of the kernels' tiles, and matrices lie as they read them.

        Not for f16, in which rows before their norm may not fit.
        """
        heads, dim = facts.num_attention_heads, facts.head_dim
        outs = (facts.hidden_size, (heads + 2 * facts.num_key_value_heads) * dim, 2 * facts.intermediate_size)
        ins = (facts.hidden_size, heads * dim, facts.intermediate_size)
        sizes = all(size % OUT == 0 for size in (*outs, head.shape[1])) and all(size % IN == 0 for size in ins)
        matrices = [matrix for layer in layers for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        dense = all(matrix.T.is_contiguous() for matrix in (*matrices, head)) and embed.is_contiguous()
        return sizes and dense and dim >= 16 and dim & (dim - 1) == 0 and head.dtype in (torch.bfloat16, torch.float32)

    def __call__(self, run: StepRun, token: Tensor) -> Tensor:
        """One token of each slot, i64 [B] -> logits f32 [B, vocab]."""
        facts, layers, rows, products = self._facts, self._layers, len(token), self._products
        eps, dim, arrived = facts.rms_norm_eps, facts.head_dim, self._arrived
        apart = products.takes_shares(rows, facts.num_attention_heads, dim, parts(layers[0].out.T))
        stream, cos, sin = step_triton.begin(
            token, self._embed, layers[0].norm1, run.positions, self._frequencies, self._tiles
        )
        norms = [layer.norm1 for layer in layers[1:]] + [self._norm]
        for n, (layer, norm) in enumerate(zip(layers, norms, strict=True)):
            qkv = products.parts_product(stream, layer.qkv.T, eps, parts(layer.qkv.T))
            mixed = run.attend_step(n, qkv.view(*qkv.shape[:2], -1, dim), cos, sin, None if apart else arrived)
            if isinstance(mixed, Tensor):
                mixed = mixed.view(rows, -1).to(stream.scaled.dtype)
            out, down = layer.out.T, layer.down.T
            stream = products.add_product(stream, mixed, out, layer.norm2, arrived, parts(out))
            inner = products.gated_product(stream, layer.gate_up.T, eps)
            stream = products.add_product(stream, inner, down, norm, arrived, parts(down))
        logits: Tensor = products.parts_product(stream, self._head.T, eps, 1)
        return logits[0, :, : facts.vocab_size]


def parts(weight: Tensor) -> int:
    """How many parts of its inputs a product of weight [outs, ins] is cut into: as many as give `PROGRAMS`."""
    outs, ins = weight.shape
    return max(1, min(ins // IN, PROGRAMS // (outs // OUT)))
