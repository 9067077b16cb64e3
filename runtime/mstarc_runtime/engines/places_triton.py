"""Where packed rows belong, of requests whose numbers of rows are known on the device only: positions, and rows that become entries.

What `attend_torch` does in a dozen launches is one each here. starts i32 [B + 1], length i32 [B], table i32 [B, P] as of
`attend_torch.attend_packed`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


@triton.jit
def _request(starts, row, REQUESTS: tl.constexpr, PAD: tl.constexpr):
    """The request of a row, or of each of several; REQUESTS for nobody's."""
    each = tl.arange(0, PAD)
    ends = tl.load(starts + 1 + each, mask=each < REQUESTS, other=0x7FFFFFFF)
    return tl.sum((ends[None, :] <= row[:, None]).to(tl.int32), 1)


@triton.jit
def _positions(
    position, starts, out, rows, REQUESTS: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr, SEQ: tl.constexpr
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    request = tl.minimum(_request(starts, row, REQUESTS, PAD), REQUESTS - 1)
    found = tl.load(position + request)
    if SEQ:
        found += row - tl.load(starts + request)
    tl.store(out + row, found.to(tl.int64), mask=row < rows)


@triton.jit
def _append(
    data, k, v, table, length, starts, data_head, k_row, k_head, v_row, v_head, table_row,
    REQUESTS: tl.constexpr, PAD: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    request = tl.sum(_request(starts, row + tl.zeros([1], tl.int32), REQUESTS, PAD), 0)
    if request == REQUESTS:
        return
    entry = tl.load(length + request) + row - tl.load(starts + request)
    page = tl.load(table + request * table_row + entry // PAGE).to(tl.int64)
    place = data + head.to(tl.int64) * data_head + (page * PAGE + entry % PAGE) * DIM
    dim = tl.arange(0, DIM_PAD)
    key = tl.load(k + row.to(tl.int64) * k_row + head * k_head + dim, mask=dim < DIM)
    value = tl.load(v + row.to(tl.int64) * v_row + head * v_head + dim, mask=dim < DIM)
    tl.store(place + dim, key.to(data.dtype.element_ty), mask=dim < DIM)
    tl.store(place + HEADS * data_head + dim, value.to(data.dtype.element_ty), mask=dim < DIM)


def positions_of(position: Tensor, starts: Tensor, rows: int, seq: bool) -> Tensor:
    """Positions of packed rows, i64 [rows], of requests that begin at `position` i32 [B]: one after the other if `seq`, else the same."""
    count = len(position)
    out = torch.empty(rows, dtype=torch.int64, device=starts.device)
    options = {"REQUESTS": count, "PAD": triton.next_power_of_2(count), "BLOCK": BLOCK, "SEQ": seq}
    _positions[(triton.cdiv(rows, BLOCK),)](position, starts, out, rows, **options)
    return out


def append_packed(
    data: Tensor, k: Tensor, v: Tensor, table: Tensor, length: Tensor, starts: Tensor, *, page_size: int
) -> None:
    """See `attend_torch.append_packed`; rows that are nobody's write nothing. Dims of k and v [rows, heads, dim] are dense."""
    (rows, heads, dim), count = k.shape, len(length)
    _append[(rows, heads)](
        data, k, v, table, length, starts, data.stride(0), k.stride(0), k.stride(1), v.stride(0), v.stride(1), table.stride(0),
        REQUESTS=count, PAD=triton.next_power_of_2(count), HEADS=heads, DIM=dim, DIM_PAD=triton.next_power_of_2(dim), PAGE=page_size,
        num_warps=1,
    )  # fmt: skip
