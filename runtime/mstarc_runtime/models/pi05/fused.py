"""The nets of pi0.5 on a GPU: one Triton kernel between two matrix products.

The same weights and sums as `nets`, with 16-bit rounding in other places.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.slots import SlotsRun
from mstarc_runtime.models import fused_triton as fused
from mstarc_runtime.models.pi05 import flow_triton as kernels
from mstarc_runtime.models.pi05.flow_step import FlowStep
from mstarc_runtime.models.pi05.image_attend import attend
from mstarc_runtime.models.pi05.nets import ExpertNet, LanguageLayer, LanguageNet, Layer, VisionBlock, VisionNet
from mstarc_runtime.models.pi05.patches_triton import patches
from mstarc_runtime.models.pi05.times_triton import Times
from mstarc_runtime.models.product_cuda import ROWS_LEAST, gated_gelu, linear, runs_on

Turn = tuple[Tensor, Tensor]  # cosines and sines, each [ΣT, head_dim / 2]


def hidden(net: VisionNet, images: Tensor) -> Tensor:
    """See `VisionNet.hidden`."""
    patch, position = net.patch, net.position
    x = patches(images, patch.weight, patch.bias, position, net.norm.weight.dtype)
    y: Tensor | None = None
    for block in net.blocks:
        assert isinstance(block, VisionBlock)
        norm1, norm2 = block.norm1, block.norm2
        qkv = linear(fused.add_layer_norm(x, y, norm1.weight, norm1.bias, norm1.eps), block.qkv.weight, block.qkv.bias)
        y = linear(attend(qkv, len(images), block.heads), block.out.weight, block.out.bias)
        grown = fused.add_layer_norm(x, y, norm2.weight, norm2.bias, norm2.eps)
        y = linear(linear(grown, block.fc1.weight, block.fc1.bias, gelu=True), block.fc2.weight, block.fc2.bias)
    return fused.add_layer_norm(x, y, net.norm.weight, net.norm.bias, net.norm.eps).view(len(images), *position.shape)


def read(net: LanguageNet, run: Run, x: Tensor, frequencies: Tensor) -> None:
    """See `LanguageNet.read`; x [ΣT, width] is overwritten."""
    *layers, last = net.layers
    turn = kernels.angles(run.positions, frequencies)
    y: Tensor | None = None
    for number, layer in enumerate(layers):
        assert isinstance(layer, LanguageLayer)
        y = _mix(layer, run, number, fused.add_rms_norm(x, y, layer.norm1, net.eps, x.dtype), turn)
        y = _feed(layer, fused.add_rms_norm(x, y, layer.norm2, net.eps, x.dtype))
    assert isinstance(last, LanguageLayer)
    _store(last, run, len(layers), fused.add_rms_norm(x, y, last.norm1, net.eps, x.dtype), turn)


class Flow:
    """The action expert's step, with what it keeps between steps. Few rows on slots have kernels of their own (`FlowStep`)."""

    def __init__(self, net: ExpertNet, frequencies: Tensor, speeds: Tensor) -> None:
        self._net, self._frequencies = net, frequencies
        self._step = FlowStep(net, frequencies, speeds) if FlowStep.fits(net) else None
        self._times = self._step.times if self._step else Times(net.time_in, net.time_out, net.modulation, speeds)
        self._action_in = net.action_in.weight.T.contiguous()

    def velocity(self, run: Run, actions: Tensor, t: Tensor) -> Tensor:
        """Noisy actions [B, horizon, action_dim] at times [B] -> velocities of the same shape, f32."""
        if self._step is not None and self._step.takes(run, *actions.shape[:2]):
            return self._step(cast(SlotsRun, run), actions, t)
        net, parts, slot = self._net, self._times.parts, self._times.slots(t.float())
        cos, sin = kernels.angles(run.positions, self._frequencies)
        x, entered = kernels.opened(
            actions.float().contiguous(), self._action_in, net.action_in.bias, parts, slot, net.eps, net.dtype
        )
        y: Tensor | None = None
        for number, layer in enumerate(net.layers):
            assert isinstance(layer, Layer)
            heads, turned = layer.heads, layer.heads + layer.kv_heads
            if y is not None:
                entered = kernels.normed(x, y, parts, slot, 2 * number, net.eps)
            qkv = kernels.turned(entered, layer.qkv.weight, turned, cos, sin)
            mixed = run.attend(number, qkv[:, :heads], qkv[:, heads:turned], qkv[:, turned:])
            y = kernels.partial(mixed.flatten(1), layer.out.weight)
            entered = kernels.normed(x, y, parts, slot, 2 * number + 1, net.eps)
            y = kernels.partial(kernels.gated(entered, layer.gate_up.weight), layer.down.weight)
        assert y is not None
        last = 2 * len(net.layers)
        found = kernels.closed(x, y, parts, slot, last, net.eps, net.action_out.weight, net.action_out.bias)
        return found.view(actions.shape)


def _mix(layer: Layer, run: Run, number: int, x: Tensor, turn: Turn) -> Tensor:
    """Attention of normed rows [ΣT, width] -> the same shape."""
    qkv = layer.qkv(x).unflatten(-1, (-1, layer.head_dim))
    turned = layer.heads + layer.kv_heads
    fused.rotate(qkv, turned, *turn)
    mixed = run.attend(number, qkv[:, : layer.heads], qkv[:, layer.heads : turned], qkv[:, turned:])
    summed: Tensor = layer.out(mixed.flatten(1))
    return summed


def _store(layer: Layer, run: Run, number: int, x: Tensor, turn: Turn) -> None:
    """See `Layer.store`."""
    kv = F.linear(x, layer.qkv.weight[layer.heads * layer.head_dim :]).view(len(x), -1, layer.head_dim)
    fused.rotate(kv, layer.kv_heads, *turn)
    run.write(number, kv[:, : layer.kv_heads], kv[:, layer.kv_heads :])


def _feed(layer: Layer, x: Tensor) -> Tensor:
    gate_up = layer.gate_up.weight
    own = len(x) >= ROWS_LEAST and runs_on(gate_up)
    fed: Tensor = layer.down(gated_gelu(x, gate_up) if own else fused.gelu_mul(layer.gate_up(x)))
    return fed
