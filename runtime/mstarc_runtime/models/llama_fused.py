"""`Llama` on a GPU: 16-bit matrices, a residual stream in f32, and one Triton kernel between two matrix products.

Per layer: norm, qkv product, rotation in place, attention with append, output product, sum and norm, gate and up product, gated
SiLU, down product. A decode step reads every weight once, so matrices are kept [out, in], as few-row products read them fastest;
on slots it has kernels of its own (`LlamaStep`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.slots import SlotsRun
from mstarc_runtime.models import fused_triton as fused
from mstarc_runtime.models.llama import Llama
from mstarc_runtime.models.llama_config import LlamaConfig
from mstarc_runtime.models.llama_step import LlamaStep
from mstarc_runtime.models.step_products import MAX_ROWS

HEAD_ROWS = 64  # the head's rows are padded to a multiple of it: cuBLAS has its fast kernels for such products only


class FusedLlama(Llama):
    """The same ops and the same weights by name; logits are f32."""

    def __init__(self, facts: LlamaConfig, weights: Mapping[str, Tensor], device: str) -> None:
        """See `Llama`."""
        super().__init__(facts, weights, device)
        vocab = facts.vocab_size
        if vocab % HEAD_ROWS:
            padded = self._head.new_zeros(vocab + -vocab % HEAD_ROWS, facts.hidden_size)
            padded[:vocab] = self._head.T
            self._head = padded.T
            if facts.tie_word_embeddings:
                self._embed = padded[:vocab]
        step = LlamaStep(facts, self._layers, self._embed, self._head, self._norm, self._frequencies)
        self._step = step if LlamaStep.fits(facts, self._layers, self._embed, self._head) else None

    def read(self, run: Run, ids: Tensor) -> Tensor:
        """See `Llama.read`."""
        last = run.last
        x, y = self._through(run, ids)
        return self._product(fused.add_rms_norm(x[last], y[last], self._norm, self.facts.rms_norm_eps))

    def step(self, run: Run, token: Tensor) -> Tensor:
        """See `Llama.step`."""
        if self._step is not None and isinstance(run, SlotsRun) and len(token) <= MAX_ROWS:
            return self._step(run, token)
        x, y = self._through(run, token)
        return self._product(fused.add_rms_norm(x, y, self._norm, self.facts.rms_norm_eps))

    def hidden(self, run: Run, ids: Tensor) -> Tensor:
        """See `Llama.hidden`; f32."""
        x, y = self._through(run, ids)
        return x.add_(y)

    def logits(self, x: Tensor) -> Tensor:
        """See `Llama.logits`; x f32."""
        return self._product(fused.add_rms_norm(x, None, self._norm, self.facts.rms_norm_eps))

    def _through(self, run: Run, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Packed ids [ΣT] -> the residual stream f32 [ΣT, hidden] and what the last layer adds to it."""
        facts = self.facts
        heads, dim, eps = facts.num_attention_heads, facts.head_dim, facts.rms_norm_eps
        rotated = heads + facts.num_key_value_heads
        angle = run.positions[:, None].float() * self._frequencies
        cos, sin = angle.cos(), angle.sin()
        x = F.embedding(ids, self._embed).float()
        y: Tensor | None = None
        normed = fused.add_rms_norm(x, None, self._layers[0].norm1, eps)
        for n, layer in enumerate(self._layers):
            if y is not None:
                normed = fused.add_rms_norm(x, y, layer.norm1, eps)
            qkv = (normed @ layer.qkv).view(len(x), -1, dim)
            fused.rotate(qkv, rotated, cos, sin)
            mixed = run.attend(n, qkv[:, :heads], qkv[:, heads:rotated], qkv[:, rotated:])
            normed = fused.add_rms_norm(x, mixed.reshape(len(x), -1) @ layer.out, layer.norm2, eps)
            y = fused.silu_mul(normed @ layer.gate_up) @ layer.down
        assert y is not None
        return x, y

    def _product(self, normed: Tensor) -> Tensor:
        """The head: f32 logits, straight from the accumulators of a 16-bit product."""
        same = normed.dtype == torch.float32
        logits = normed @ self._head if same else torch.mm(normed, self._head, out_dtype=torch.float32)
        return logits[:, : self.facts.vocab_size]
