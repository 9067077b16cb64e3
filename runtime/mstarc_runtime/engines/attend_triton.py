"""Attention over paged contexts as Triton kernels: lengths and page tables are read on the device, shapes alone fix the launch.

One kernel serves decode steps (one row per request), blocks of rows (flow steps, frames) and ragged prefill; where they were measured to
be faster, `attend_rows_triton` takes blocks of rows, and on Hopper `attend_frames` those of frames, `attend_prompts` prompts. A program
takes one KV head of one request, a tile of its query rows (all query heads of the KV head, so keys are read once) and one part of its
context: the entries are split among programs so that a small batch still fills the GPU, and `_combine` joins the parts (the
"flash-decoding" scheme). Softmax runs online in f32, in base 2. The rows' own keys and values come by argument, never through
memory, so the same launch can append them to the pages without a race.

What a mask hides is never loaded: entries beyond a length may hold anything, NaN included, and pages need no zeroing.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from mstarc_runtime.engines import attend_frames, attend_prompts
from mstarc_runtime.engines.attend_rows_triton import attend_rows, join_rows
from mstarc_runtime.engines.attend_tiles_triton import append, entries_of, own_rows, own_until, part_of, rows_of, store

PROGRAMS = 132  # one for each multiprocessor of an H200, which runs one, two or four at once by their size
DECODE_TILE = 16  # the smallest tile: that of decode steps
ROWS_TILE = 64  # that of blocks of rows; `attend_rows_triton` where it is faster
JOINED = 1024  # numbers of the results that one program joins
REGISTERS = 128  # of a thread, so that four programs of rows run on a multiprocessor at once
SPLITS_MAX = 32
LOG2_E = math.log2(math.e)


@triton.jit
def _fold(queries, keys, values, seen, scale, top, total, mixed, PRECISION: tl.constexpr):
    """One step of the online softmax: the running maximum, sum and mix [TILE], [TILE], [TILE, DIM_PAD] with a block folded in."""
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION) * scale
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen nothing yet
    shrink = tl.exp2(top - base)
    share = tl.exp2(scores - base[:, None])
    total = total * shrink + tl.sum(share, 1)
    mixed = mixed * shrink[:, None] + tl.dot(share.to(values.dtype), values, input_precision=PRECISION)
    return higher, total, mixed


@triton.jit
def _attend(
    q,
    k,
    v,
    data,
    table,
    length,
    active,
    starts,
    out,
    part,
    weight,
    scale,  # times log2(e)
    rows_each,  # rows of every request, if not RAGGED
    all_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    data_head,
    table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    RAGGED: tl.constexpr,
    MASKED: tl.constexpr,
    OWN: tl.constexpr,
    CAUSAL: tl.constexpr,
    APPEND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of rows x heads of one KV head of one request, over one part: a share of its context or, the last one, its own rows.

    If there is one part only, it is both.
    """
    tile = tl.program_id(0)
    request = tl.program_id(1) // KV_HEADS
    kv_head = tl.program_id(1) % KV_HEADS
    split = tl.program_id(2)
    first, rows = rows_of(starts, request, rows_each, RAGGED)
    if tile * TILE >= rows * GROUP:
        return
    live, entries = entries_of(length, active, request, MASKED)
    dtype = data.dtype.element_ty

    member = tile * TILE + tl.arange(0, TILE)
    row = member // GROUP
    head = kv_head * GROUP + member % GROUP
    dim = tl.arange(0, DIM_PAD)
    there = (row < rows)[:, None] & (dim < DIM)[None, :]
    queries = tl.load(q + (first + row)[:, None] * q_row + head[:, None] * q_head + dim[None, :], mask=there, other=0.0)
    queries = queries.to(dtype)

    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM_PAD], tl.float32)
    keys = data + kv_head.to(tl.int64) * data_head
    values = data + (kv_head + KV_HEADS).to(tl.int64) * data_head
    pages = table + request * table_row

    low, high = part_of(entries, split, SPLITS, OWN, BLOCK)
    for at in range(low, high, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        seen = entry < high
        page = tl.load(pages + entry // PAGE, mask=seen, other=0).to(tl.int64)
        place = (page * PAGE + entry % PAGE)[:, None] * DIM + dim[None, :]
        loaded = seen[:, None] & (dim < DIM)[None, :]
        some_keys = tl.load(keys + place, mask=loaded, other=0.0)
        some_values = tl.load(values + place, mask=loaded, other=0.0)
        top, total, mixed = _fold(
            queries, some_keys, some_values, seen[None, :], scale, top, total, mixed, PRECISION=PRECISION
        )

    if OWN:  # noqa: SIM102 (one is known when compiling)
        if split == SPLITS - 1:
            until = own_until(tile, rows, TILE, GROUP, CAUSAL)
            for at in range(0, until, BLOCK):
                other = at + tl.arange(0, BLOCK)
                some_keys, some_values = own_rows(
                    k, v, k_row, k_head, v_row, v_head, first, other, other < rows, kv_head, dim, DIM
                )
                seen = (other < rows)[None, :]
                if CAUSAL:
                    seen = seen & (other[None, :] <= row[:, None])
                top, total, mixed = _fold(
                    queries,
                    some_keys.to(dtype),
                    some_values.to(dtype),
                    seen,
                    scale,
                    top,
                    total,
                    mixed,
                    PRECISION=PRECISION,
                )
            if APPEND:
                append(
                    k, v, k_row, k_head, v_row, v_head, keys, values, pages, first, rows, entries, live, tile, kv_head,
                    dim, GROUP, DIM, PAGE, TILE,
                )  # fmt: skip

    heads = KV_HEADS * GROUP
    at = (first + row) * heads + head
    store(out, part, weight, at, all_rows * heads, split, top, total, mixed, row < rows, dim, DIM, SPLITS)


@triton.jit
def _combine(
    part,
    weight,
    out,
    row_heads,  # rows x query heads
    DIM: tl.constexpr,
    DIM_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
):
    """The parts of one row and head -> its result. A part without entries counts nothing; no entries at all give zeros."""
    which = tl.program_id(0)
    split = tl.arange(0, SPLITS_PAD)
    dim = tl.arange(0, DIM_PAD)
    at = split * row_heads + which
    top = tl.load(weight + at * 2, mask=split < SPLITS, other=float("-inf"))
    total = tl.load(weight + at * 2 + 1, mask=split < SPLITS, other=0.0)
    highest = tl.max(top, 0)
    factor = tl.where(total > 0, tl.exp2(top - highest), 0.0)
    loaded = (total > 0)[:, None] & (dim < DIM)[None, :]
    mixed = tl.load(part + at[:, None].to(tl.int64) * DIM + dim[None, :], mask=loaded, other=0.0)
    whole = tl.sum(total * factor, 0)
    mean = tl.sum(mixed * factor[:, None], 0) / tl.where(whole > 0, whole, 1.0)
    tl.store(out + which * DIM + dim, mean.to(out.dtype.element_ty), mask=dim < DIM)


def attend_slots(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    *,
    rows_per_slot: int,
    page_size: int,
    causal: bool,
    frozen: bool,
    scale: float,
) -> Tensor:
    """Attention of B slots with `rows_per_slot` = E rows each; returns [B·E, heads, head_dim] in the dtype of q.

    data [2 · kv_heads, slots, head_dim] is one layer of a pool; q [B·E, heads, head_dim], k and v [B·E, kv_heads, head_dim] with the
    last dim dense; table i32 [B, P], length i32 [B], active bool [B]. Row i of a slot sees the entries [0, length) and own rows
    up to i (`causal`) or all own rows. Unless `frozen`, own rows become the entries length..length+E-1 of active slots. k and v None:
    the context alone is seen (cross-attention). A slot that is not active sees only its own rows and writes nothing.
    """
    return _launch(
        data,
        q,
        k,
        v,
        table,
        length,
        active,
        None,
        rows_per_slot,
        page_size,
        causal,
        not frozen and k is not None,
        scale,
    )


def attend_packed(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    starts: Tensor,
    *,
    most_rows: int,
    page_size: int,
    causal: bool,
    frozen: bool,
    scale: float,
) -> Tensor:
    """As `attend_slots` for requests with unequal numbers of rows: request b has the rows starts[b]..starts[b+1]-1 (i32 [B + 1]).

    `most_rows` is the largest number of rows of a request, known to the host; it sizes the launch.
    """
    return _launch(
        data, q, k, v, table, length, None, starts, most_rows, page_size, causal, not frozen and k is not None, scale
    )


def _launch(
    data: Tensor,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    starts: Tensor | None,
    rows: int,
    page_size: int,
    causal: bool,
    append: bool,
    scale: float,
) -> Tensor:
    all_rows, heads, dim = q.shape
    kv_heads = data.shape[0] // 2
    group, requests = heads // kv_heads, len(length)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not all_rows:
        return out
    if (
        k is not None
        and v is not None
        and starts is None
        and not causal
        and attend_frames.takes(data, q, k, v, rows, page_size, scale)
    ):
        return attend_frames.attend_frames(
            data, q, k, v, table, length, active, rows=rows, append=append, scale=scale * LOG2_E, programs=PROGRAMS
        )
    if k is not None and v is not None and attend_prompts.takes(data, q, k, v, rows, page_size, scale):
        return attend_prompts.attend_prompts(
            data, q, k, v, table, length, active, starts,
            rows=rows, causal=causal, append=append, scale=scale * LOG2_E, programs=PROGRAMS,
        )  # fmt: skip
    dim_pad = max(16, triton.next_power_of_2(dim))
    tile, block, warps, stages = _blocking(rows * group, dim_pad, data.dtype)
    by_pages = data.is_contiguous() and scale > 0 and _by_pages(tile, dim, page_size, data.dtype)
    if by_pages:
        tile, block, warps, stages = ROWS_TILE, page_size, 4, 3
    tiles = triton.cdiv(rows * group, tile)
    at_once = PROGRAMS * (4 if tile == DECODE_TILE or by_pages else 1 if dim_pad > 128 else 2)
    blocks = triton.cdiv(table.shape[1] * page_size, block)
    splits = _splits(tiles * requests * kv_heads, blocks, at_once)
    if by_pages and blocks > 2 * SPLITS_MAX:
        splits = max(2, splits)  # the last programs of a long context have little left to wait for
    splits += splits > 1 and k is not None
    part = weight = out
    if splits > 1:
        part = torch.empty((splits, all_rows, heads, dim), dtype=torch.float32, device=q.device)
        weight = torch.empty((splits, all_rows, heads, 2), dtype=torch.float32, device=q.device)
    own_k, own_v = (q, q) if k is None or v is None else (k, v)
    given = {
        "q": q,
        "k": own_k,
        "v": own_v,
        "data": data,
        "table": table,
        "length": length,
        "active": length if active is None else active,
        "starts": length if starts is None else starts,
        "out": out,
        "part": part,
        "weight": weight,
        "scale": scale * LOG2_E,
        "rows_each": rows,
        "all_rows": all_rows,
        "q_row": q.stride(0),
        "q_head": q.stride(1),
        "k_row": own_k.stride(0),
        "k_head": own_k.stride(1),
        "v_row": own_v.stride(0),
        "v_head": own_v.stride(1),
        "table_row": table.stride(0),
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "DIM": dim,
        "PAGE": page_size,
        "TILE": tile,
        "SPLITS": splits,
        "RAGGED": starts is not None,
        "MASKED": active is not None,
        "OWN": k is not None,
        "CAUSAL": causal and rows > 1,
        "APPEND": append,
        "PRECISION": "ieee" if data.dtype == torch.float32 else "tf32",
        "num_warps": warps,
    }
    grid = (tiles, requests * kv_heads, splits)
    if by_pages:
        attend_rows[grid](
            **given,
            paged=TensorDescriptor.from_tensor(data.view(-1, dim), [page_size, dim]),
            slots=data.shape[1],
            STAGES=stages,
            maxnreg=REGISTERS,
        )
    else:
        _attend[grid](**given, data_head=data.stride(0), DIM_PAD=dim_pad, BLOCK=block, num_stages=stages)
    if splits > 1:
        _join(part, weight, out, by_pages)
    return out


def _join(part: Tensor, weight: Tensor, out: Tensor, by_pages: bool) -> None:
    """The parts f32 [splits, rows, heads, head_dim] with their weights f32 [splits, rows, heads, 2] -> `out` [rows, heads, head_dim]."""
    splits, dim = part.shape[0], out.shape[2]
    row_heads = out.shape[0] * out.shape[1]
    if by_pages:
        several = max(1, JOINED // dim)
        join_rows[(triton.cdiv(row_heads, several),)](
            part, weight, out, row_heads, DIM=dim, BLOCK=several, SPLITS=splits, num_warps=4
        )
        return
    dim_pad = _padded(dim)
    _combine[(row_heads,)](
        part,
        weight,
        out,
        row_heads,
        DIM=dim,
        DIM_PAD=dim_pad,
        SPLITS=splits,
        SPLITS_PAD=triton.next_power_of_2(splits),
        num_warps=2 if dim_pad <= 128 else 4,
    )


def _padded(dim: int) -> int:
    """The size of a head as a tile has it."""
    return max(16, triton.next_power_of_2(dim))


def _blocking(members: int, dim_pad: int, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Query rows x heads of a tile, entries of a block, warps and pipeline stages.

    They fit registers and shared memory of sm_90; 16-bit ones are the fastest of `tests.bench.attend_sweep` on an H200.
    """
    wide = dim_pad >= 128
    tile = max(DECODE_TILE, triton.next_power_of_2(members))
    if dtype == torch.float32:
        return min(32, tile), 32, 8 if wide else 4, 1
    if tile < 64:
        return tile, 64, 2 if tile == DECODE_TILE and dim_pad <= 128 else 4, 3 if dim_pad <= 128 else 2
    if dim_pad > 128:
        return 64, 64, 8 if members <= 512 else 4, 2
    return (64, 64, 8, 3) if wide else (64, 128, 4, 2)


def _by_pages(tile: int, dim: int, page_size: int, dtype: torch.dtype) -> bool:
    """Whether `attend_rows` takes it: where it was measured to be faster."""
    return tile == ROWS_TILE and dim == 64 and page_size == 64 and dtype != torch.float32


def _splits(programs: int, blocks: int, at_once: int) -> int:
    """Shares of a context, so that there are as many programs as the GPU runs at once; no more than it can have blocks."""
    return max(1, min(SPLITS_MAX, blocks, at_once // programs))
