"""The launch of `attend_frames_gluon`: for which frames, in how many shares, with which descriptors for the copy engine."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from mstarc_runtime.engines.attend_frames_gluon import BLOCK, DIM, SPARE, attend_frame
from mstarc_runtime.engines.attend_rows_triton import join_rows

ROWS_MIN, ROWS_MAX = 257, 264
OVERHEAD = 4  # blocks in whose time a program begins and ends
SPLITS_MAX = 8
JOINED = 16  # rows x heads that one program joins


def takes(data: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: int, page_size: int, scale: float) -> bool:
    """Whether `attend_frames` can: frames of as many rows as a program takes, 16-bit, on a Hopper GPU."""
    heads, dim = q.shape[1:]
    return (
        ROWS_MIN <= rows <= ROWS_MAX
        and (dim, page_size, scale > 0) == (DIM.value, BLOCK.value, True)
        and data.shape[0] == 2 * heads
        and q.dtype == k.dtype == v.dtype == data.dtype
        and data.dtype in (torch.bfloat16, torch.float16)
        and data.is_contiguous()
        and all(x.stride()[1:] == (dim, 1) and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in (q, k, v))
        and torch.cuda.get_device_capability(data.device)[0] == 9
    )


def attend_frames(
    data: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    *,
    rows: int,
    append: bool,
    scale: float,
    programs: int,
) -> Tensor:
    """As `attend_triton.attend_slots` with full attention, where `takes` says so. `scale` is in base 2; `programs` run at once."""
    all_rows, heads, dim = q.shape
    requests, width = len(length), heads * dim
    splits = _splits(requests * heads, triton.cdiv(rows, BLOCK.value) + table.shape[1], programs)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    part = weight = out
    if splits > 1:
        part = torch.empty((splits, all_rows, heads, dim), dtype=torch.float32, device=q.device)
        weight = torch.empty((splits, all_rows, heads, 2), dtype=torch.float32, device=q.device)
    flat = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    deep = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    block = [1, BLOCK.value, dim]
    pages = data.shape[1] // BLOCK.value
    frames = [requests, rows, width]
    attend_frame[(requests * heads, splits)](
        data,
        TensorDescriptor(q, [all_rows, width], [q.stride(0), 1], block[1:], flat),
        TensorDescriptor(q, [all_rows, width], [q.stride(0), 1], [SPARE.value, dim], flat),
        TensorDescriptor(data, [2 * heads * pages, BLOCK.value, dim], [BLOCK.value * dim, dim, 1], block, deep),
        TensorDescriptor(k, frames, [rows * k.stride(0), k.stride(0), 1], block, deep),
        TensorDescriptor(v, frames, [rows * v.stride(0), v.stride(0), 1], block, deep),
        table,
        length,
        length if active is None else active,
        out,
        part,
        weight,
        scale,
        rows,
        all_rows,
        pages,
        table.stride(0),
        HEADS=heads,
        SPLITS=splits,
        MASKED=active is not None,
        APPEND=append,
        num_warps=4,
    )
    if splits > 1:
        join_rows[(triton.cdiv(all_rows * heads, JOINED),)](
            part, weight, out, all_rows * heads, DIM=dim, BLOCK=JOINED, SPLITS=splits, num_warps=4
        )
    return out


def _splits(frames: int, blocks: int, programs: int) -> int:
    """Shares of the blocks of a head, so that the last of the programs ends soonest. Joining costs about what two blocks do."""
    return min(
        range(1, SPLITS_MAX + 1),
        key=lambda n: triton.cdiv(frames * n, programs) * (triton.cdiv(blocks, n) + OVERHEAD) + 2 * (n > 1),
    )
