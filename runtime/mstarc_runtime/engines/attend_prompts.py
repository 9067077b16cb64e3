"""The launch of `attend_prompts_gluon`: for which rows, in how many parts, with which descriptors for the copy engine."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from mstarc_runtime.engines.attend_prompts_gluon import attend_prompt, join_parts
from mstarc_runtime.engines.attend_prompts_plan import BLOCK, SHARE_MIN, TILE, Shape

STAGES = {64: 6, 128: 6, 256: 5}  # by head_dim; 5 is what fits into the shared memory of a multiprocessor
REGISTERS = {64: (216, 72), 128: (216, 72), 256: (232, 40)}  # of a thread that computes, and of one that copies
SPLITS_MAX = 8
JOINED = 2048  # numbers of the results that one program joins


def takes(data: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: int, page_size: int, scale: float) -> bool:
    """Whether `attend_prompts` can, and should: enough rows for a tile, 16-bit, on a Hopper GPU."""
    heads, dim = q.shape[1:]
    kv_heads = data.shape[0] // 2
    return (
        rows >= BLOCK.value
        and rows * (heads // kv_heads) >= TILE.value
        and dim in STAGES
        and (page_size, scale > 0) == (BLOCK.value, True)
        and q.dtype == k.dtype == v.dtype == data.dtype
        and data.dtype in (torch.bfloat16, torch.float16)
        and data.is_contiguous()
        and all(x.stride()[1:] == (dim, 1) and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in (q, k, v))
        and torch.cuda.get_device_capability(data.device)[0] == 9
    )


def attend_prompts(
    data: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    starts: Tensor | None,
    *,
    rows: int,
    causal: bool,
    append: bool,
    scale: float,
    programs: int,
) -> Tensor:
    """As `attend_triton.attend_slots`, or `attend_packed` if there are `starts`, where `takes` says so.

    `rows` is the most that a request has, `scale` is in base 2; `programs` run at once.
    """
    all_rows, heads, dim = q.shape
    kv_heads, requests = data.shape[0] // 2, len(length)
    group = heads // kv_heads
    if starts is None:
        tiles = most = requests * triton.cdiv(rows * group, TILE.value)
    else:
        tiles = triton.cdiv(all_rows * group, TILE.value)
        most = tiles + min(requests, all_rows) - 1  # each request may begin one
    blocks = table.shape[1] + triton.cdiv(rows, BLOCK.value)
    free = min(programs // (tiles * kv_heads), 2 * programs // (most * kv_heads))  # those without a tile take time too
    splits = max(1, min(free, blocks // SHARE_MIN.value, SPLITS_MAX))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    part = level = out
    if splits > 1:
        part = torch.empty((splits, *q.shape), dtype=q.dtype, device=q.device)
        level = torch.empty((splits, all_rows, heads), dtype=torch.float32, device=q.device)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    block = [1, BLOCK.value, dim]
    pages = data.shape[1] // BLOCK.value
    own = [1, all_rows, kv_heads * dim]
    shape = Shape(
        kv_heads,
        group,
        dim,
        STAGES[dim],
        lanes=max(32, triton.next_power_of_2(requests)),
        parted=splits > 1,
        ragged=starts is not None,
        masked=active is not None,
        causal=causal and rows > 1,
    )
    attend_prompt[(most * kv_heads * splits,)](
        q,
        k,
        v,
        data,
        TensorDescriptor(data, [data.shape[0] * pages, BLOCK.value, dim], [BLOCK.value * dim, dim, 1], block, layout),
        TensorDescriptor(k, own, [all_rows * k.stride(0), k.stride(0), 1], block, layout),
        TensorDescriptor(v, own, [all_rows * v.stride(0), v.stride(0), 1], block, layout),
        table,
        length,
        length if active is None else active,
        length if starts is None else starts,
        out,
        part,
        level,
        scale,
        requests,
        rows,
        splits,
        all_rows,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        pages,
        table.stride(0),
        SHAPE=shape,
        APPEND=append,
        REGISTERS=REGISTERS[dim],
        num_warps=4,
        launch_pdl=True,
    )
    if splits > 1:
        each = JOINED // dim
        join_parts[(triton.cdiv(all_rows * heads, each),)](
            part, level, out, all_rows * heads, DIM=dim, EACH=each, SPLITS=splits, num_warps=4, launch_pdl=True
        )
    return out
