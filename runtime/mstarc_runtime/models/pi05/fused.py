"""The language model and the action expert of pi0.5 on a GPU: one Triton kernel between two matrix products.

The same weights and sums as `nets`, with 16-bit rounding in other places.
"""

from __future__ import annotations

from torch import Tensor

from mstarc_runtime.engines.component import Run
from mstarc_runtime.models import fused_triton as fused
from mstarc_runtime.models.pi05.nets import ExpertNet, LanguageLayer, LanguageNet, Layer

Turn = tuple[Tensor, Tensor]  # cosines and signed sines, each [ΣT, 1, head_dim]


def read(net: LanguageNet, run: Run, x: Tensor, turn: Turn) -> None:
    """See `LanguageNet.read`; x [ΣT, width] is overwritten."""
    *layers, last = net.layers
    y: Tensor | None = None
    for number, layer in enumerate(layers):
        assert isinstance(layer, LanguageLayer)
        y = _mix(layer, run, number, fused.add_rms_norm(x, y, layer.norm1, net.eps, x.dtype), turn)
        y = _feed(layer, fused.add_rms_norm(x, y, layer.norm2, net.eps, x.dtype))
    assert isinstance(last, LanguageLayer)
    last.store(run, len(layers), fused.add_rms_norm(x, y, last.norm1, net.eps, x.dtype), turn)


def velocity(net: ExpertNet, run: Run, x: Tensor, waves: Tensor, turn: Turn) -> Tensor:
    """See `ExpertNet.velocity`."""
    parts = net.modulation(net.condition(waves)).view(len(x), -1, 3, waves.shape[-1])
    rows = net.action_in(x.float()).to(net.dtype)
    y: Tensor | None = None
    for number, layer in enumerate(net.layers):
        assert isinstance(layer, Layer)
        normed = _modulated(rows, y, parts, 2 * number, net.eps)
        y = _mix(layer, run, number, normed.flatten(0, 1), turn)
        normed = _modulated(rows, y, parts, 2 * number + 1, net.eps)
        y = _feed(layer, normed.flatten(0, 1))
    velocities: Tensor = net.action_out(_modulated(rows, y, parts, parts.shape[1] - 1, net.eps).float())
    return velocities


def _modulated(rows: Tensor, y: Tensor | None, parts: Tensor, number: int, eps: float) -> Tensor:
    """Add what the sublayer before gave, by its gate; then norm number `number`."""
    scale, shift, _ = parts[:, number].unbind(1)
    return fused.modulated_norm(rows, y, parts[:, max(number - 1, 0), 2], scale, shift, eps)


def _mix(layer: Layer, run: Run, number: int, x: Tensor, turn: Turn) -> Tensor:
    """Attention of normed rows [ΣT, width] -> the same shape."""
    qkv = layer.qkv(x).unflatten(-1, (-1, layer.head_dim))
    turned, half = layer.heads + layer.kv_heads, layer.head_dim // 2
    fused.rotate(qkv, turned, turn[0][:, 0, :half], turn[1][:, 0, half:])
    mixed = run.attend(number, qkv[:, : layer.heads], qkv[:, layer.heads : turned], qkv[:, turned:])
    summed: Tensor = layer.out(mixed.flatten(1))
    return summed


def _feed(layer: Layer, x: Tensor) -> Tensor:
    fed: Tensor = layer.down(fused.gelu_mul(layer.gate_up(x)))
    return fed
