"""The step of the action expert on slots, for few rows: one kernel."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from mstarc_runtime.engines.component import Run
from mstarc_runtime.engines.slots import SlotsRun
from mstarc_runtime.models.pi05 import flow_ring
from mstarc_runtime.models.pi05 import flow_step_triton as kernel
from mstarc_runtime.models.pi05.flow_step_triton import Expert, Held, Timed
from mstarc_runtime.models.pi05.flow_triton import angles
from mstarc_runtime.models.pi05.nets import ExpertNet, Layer
from mstarc_runtime.models.pi05.times_triton import Shifts, Times


class FlowStep:
    """Noisy actions of a few slots at their times -> velocities."""

    def __init__(self, net: ExpertNet, frequencies: Tensor, speeds: Tensor) -> None:
        """See `fits`. Where a ring of weights is possible, the net's matrices are moved; otherwise they stay where they are."""
        layers = [cast(Layer, layer) for layer in net.layers]
        self._matrices = _below(layers, net)
        self._net, self._frequencies, self._first = net, frequencies, layers[0]
        self._shifts = (
            Shifts.of([layer.qkv.weight for layer in layers]), Shifts.of([layer.gate_up.weight for layer in layers])
        )  # fmt: skip
        self.times = Times(net.time_in, net.time_out, net.modulation, speeds, self._shifts)
        self._cuts = kernel.cuts_of(net.dtype)
        self._expert = Expert(
            kernel.places([layer.qkv.weight for layer in layers]), kernel.places([layer.out.weight for layer in layers]),
            kernel.places([layer.gate_up.weight for layer in layers]), kernel.places([layer.down.weight for layer in layers]),
            net.action_in.weight.T.contiguous(), net.action_in.bias, net.action_out.weight, net.action_out.bias,
            layers[0].down.in_features, net.dtype, net.eps,
        )  # fmt: skip

    @staticmethod
    def fits(net: ExpertNet) -> bool:
        """Whether sizes are multiples of the kernel's tiles. Not for f16, in which rows before their norm may not fit."""
        if net.dtype not in (torch.float32, torch.bfloat16):
            return False
        first, cuts = cast(Layer, net.layers[0]), kernel.cuts_of(net.dtype)
        width, half = first.out.out_features, first.head_dim // 2
        inner = (first.out.in_features, first.down.in_features)
        return (
            width % max(cuts.block, cuts.added) == 0
            and all(size % (cuts.block * cuts.parts) == 0 and size % cuts.gated == 0 for size in inner)
            and half >= cuts.turned // 2
            and half & (half - 1) == 0
            and first.head_dim * net.dtype.itemsize <= kernel.KEY_BYTES
        )

    def takes(self, run: Run, batch: int, horizon: int) -> bool:
        """Whether it can run: on slots, with few enough rows and short enough contexts."""
        if not isinstance(run, SlotsRun):
            return False
        slots = run.frozen()
        return kernel.fits(run.positions.device, batch, horizon, slots.table.shape[1] * slots.pool.page_size)

    def in_ring(self, run: SlotsRun, batch: int, horizon: int) -> bool:
        """Whether it runs with weights in a ring."""
        slots = run.frozen()
        return self._matrices is not None and flow_ring.takes(slots.pool.data, slots.pool.page_size, batch, horizon)

    def __call__(self, run: SlotsRun, actions: Tensor, t: Tensor) -> Tensor:
        """Noisy actions [B, horizon, action_dim] at times [B] -> velocities of the same shape, f32."""
        slot = self.times.slots(t.float())
        timed = Timed(slot, self.times.parts, self._shifts[0].values, self._shifts[1].values)
        slots = run.frozen()
        held = Held(slots.pool.data, slots.table, slots.length, run.active, slots.pool.page_size)
        cos, sin = angles(run.positions, self._frequencies)
        if self._matrices is not None and self.in_ring(run, *actions.shape[:2]):
            return flow_ring.step(
                actions.float().contiguous(), self._expert, self._matrices, timed, held, self._first.heads, cos, sin
            )
        return kernel.step(
            actions.float().contiguous(), self._expert, timed, held, self._first.heads, cos, sin, self._cuts
        )


def _below(layers: list[Layer], net: ExpertNet) -> flow_ring.Matrices | None:
    """The matrices of all layers for the ring, where it fits."""
    first = layers[0]
    width, ffn = first.out.out_features, first.down.in_features
    if not flow_ring.fits(first.out.weight.device, net.dtype, width, ffn, first.heads, first.head_dim):
        return None
    return flow_ring.Matrices(
        flow_ring.below([layer.qkv for layer in layers], 16), flow_ring.below([layer.out for layer in layers], 32),
        flow_ring.below([layer.gate_up for layer in layers], 32), flow_ring.below([layer.down for layer in layers], 32),
    )  # fmt: skip
