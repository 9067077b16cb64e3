"""The launch of `flow_step_gluon`: for which nets and requests, with which descriptors for the copy engine."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from mstarc_runtime.engines.attend_triton import LOG2_E
from mstarc_runtime.models.pi05.barrier_triton import programs
from mstarc_runtime.models.pi05.flow_attend_gluon import BLOCK
from mstarc_runtime.models.pi05.flow_ring_gluon import ROWS, SWIZZLED
from mstarc_runtime.models.pi05.flow_step_gluon import PARTS, TILE, flow_step
from mstarc_runtime.models.pi05.flow_step_triton import Expert, Held, Timed


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of all layers below each other, for the copy engine."""

    qkv: TensorDescriptor
    out: TensorDescriptor
    gate_up: TensorDescriptor
    down: TensorDescriptor


def below(linears: list[nn.Linear], block: int) -> TensorDescriptor:
    """Matrices of one size moved to lie below each other; the copy engine takes `block` rows."""
    whole = torch.cat([linear.weight for linear in linears])
    for linear, part in zip(linears, whole.chunk(len(linears)), strict=True):
        linear.weight.data = part
    return TensorDescriptor.from_tensor(whole, [block, 64], SWIZZLED.value)


def fits(device: torch.device, dtype: torch.dtype, width: int, ffn: int, heads: int, dim: int) -> bool:
    """Whether it is for such nets on such a device: sizes fill the ring's slots."""
    return (
        dtype == torch.bfloat16
        and device.type == "cuda"
        and torch.cuda.get_device_capability(device)[0] == 9
        and dim in (128, 256)
        and width % 256 == 0
        and triton.next_power_of_2(width) == width
        and all(size % (256 * PARTS.value) == 0 for size in (ffn, heads * dim))
    )


def takes(data: Tensor, page_size: int, batch: int, horizon: int) -> bool:
    """Whether it can run: one request, pages of whole blocks."""
    return batch == 1 and horizon <= ROWS.value and page_size % BLOCK.value == 0 and data.is_contiguous()


def step(
    actions: Tensor, expert: Expert, matrices: Matrices, timed: Timed, held: Held, heads: int, cos: Tensor, sin: Tensor,
) -> Tensor:  # fmt: skip
    """As `flow_step_triton.step`."""
    _, rows, count = actions.shape
    width, layers = expert.action_in.shape[1], len(expert.qkv)
    _, twice, slots, dim = held.data.shape
    kv_heads, device = twice // 2, actions.device
    most = triton.cdiv(held.table.shape[1] * held.page_size + rows, BLOCK.value)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def folded_rows(columns: int) -> Tensor:
        return made(ROWS.value, columns, dtype=expert.dtype)

    counter = torch.zeros(1, dtype=torch.int32, device=device)
    velocities = made(1, rows, count)
    flow_step[(programs(device),)](
        actions, expert.action_in, expert.action_in_bias, expert.action_out, expert.action_out_bias, velocities, timed.maps, timed.slot,
        timed.qkv_bias, timed.gate_bias, cos, sin, matrices.qkv, matrices.out, matrices.gate_up, matrices.down,
        TensorDescriptor.from_tensor(held.data.view(-1, dim), [BLOCK.value, 64], SWIZZLED.value), held.table, held.length, held.active,
        made(rows, width), folded_rows(width), made(rows, width // TILE.value), folded_rows(heads * dim), folded_rows(twice * dim),
        folded_rows(heads * dim), folded_rows(expert.ffn), made(PARTS.value * ROWS.value, width), folded_rows(heads * most * dim),
        made(heads * most, 2, ROWS.value), counter, dim**-0.5 * LOG2_E, expert.eps, rows,
        layers, slots, timed.maps.stride(0), timed.qkv_bias.stride(0), timed.gate_bias.stride(0), ACTIONS=count, WIDTH=width,
        FFN=expert.ffn, HEADS=heads, GROUP=heads // kv_heads, KV_HEADS=kv_heads, DIM=dim, PAGE=held.page_size,
        PROGRAMS=programs(device), num_warps=4, launch_cooperative_grid=True,
    )  # fmt: skip
    return velocities
