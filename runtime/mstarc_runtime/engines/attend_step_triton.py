"""Attention of a decode step, one row per context, from an unrotated product to the mix: one Triton kernel.

A program takes one KV head of one request and one part of its context, as in `attend_triton`. It loads its first entries before it waits
for the product (`early_triton`), sums the product's parts, turns queries and the own key, and attends; the last part sees the own row
and appends it to the pages. The program of a head that is done last joins the shares, in their order; or who reads them does (`Shares`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstarc_runtime.engines.attend_tiles_triton import fold
from mstarc_runtime.engines.attend_triton import LOG2_E, PROGRAMS
from mstarc_runtime.engines.early_triton import early

BLOCK = 64  # entries
AT_ONCE = 2 * PROGRAMS
SPLITS_MAX = 16


@triton.jit
def _summed(qkv, place, there, part_stride, PARTS: tl.constexpr):
    """Values at `place`, summed over the parts of the product."""
    total = tl.load(qkv + place, mask=there, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(qkv + part * part_stride + place, mask=there, other=0.0)
    return total


@triton.jit
def _turned(qkv, place, dim, there, c, s, part_stride, PARTS: tl.constexpr, DIM: tl.constexpr):
    """Heads that begin at `place` (dim is added), summed and rotated: pairs are half a head apart."""
    own = _summed(qkv, place + dim, there, part_stride, PARTS)
    other = _summed(qkv, place + (dim + DIM // 2) % DIM, there, part_stride, PARTS)
    return own * c + other * tl.where(dim < DIM // 2, -s, s)


@triton.jit
def _entries(data, pages, at, high, dim, PAGE: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr):
    """Where the entries at..at+BLOCK-1 lie in a head of the pool [BLOCK, DIM], and which of them are below `high` [BLOCK]."""
    entry = at + tl.arange(0, BLOCK)
    seen = entry < high
    page = tl.load(pages + entry // PAGE, mask=seen, other=0).to(tl.int64)
    return (page * PAGE + entry % PAGE)[:, None] * DIM + dim[None, :], seen


@triton.jit(do_not_specialize=["rows"])
def _attend_step(
    qkv, cos, sin, data, table, length, active, out, part, tops, totals, arrived,
    scale,  # times log2(e)
    rows, data_head, table_row,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr, SPLITS_PAD: tl.constexpr, PARTS: tl.constexpr,
    JOINED: tl.constexpr, PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        gdc_launch_dependents()
    pair = tl.program_id(0)
    split = tl.program_id(1)
    request = pair // KV_HEADS
    kv_head = pair % KV_HEADS
    dim = tl.arange(0, DIM)
    keys = data + kv_head.to(tl.int64) * data_head
    values = data + (kv_head + KV_HEADS).to(tl.int64) * data_head
    pages = table + request * table_row
    live = tl.load(active + request) != 0
    entries = tl.where(live, tl.load(length + request), 0)
    share = tl.cdiv(tl.cdiv(entries, SPLITS), BLOCK) * BLOCK
    low = split * share
    high = tl.minimum(low + share, entries)
    place, seen = _entries(data, pages, low, high, dim, PAGE, BLOCK, DIM)
    some_keys = tl.load(keys + place, mask=seen[:, None], other=0.0)
    some_values = tl.load(values + place, mask=seen[:, None], other=0.0)
    last_page = tl.load(pages + entries // PAGE).to(tl.int64)
    if EARLY:
        gdc_wait()

    stride = rows * ((GROUP + 2) * KV_HEADS * DIM)
    first = request * ((GROUP + 2) * KV_HEADS * DIM)
    c = tl.load(cos + request * (DIM // 2) + dim % (DIM // 2))
    s = tl.load(sin + request * (DIM // 2) + dim % (DIM // 2))
    member = tl.arange(0, TILE)
    kept = member < GROUP
    head = first + (kv_head * GROUP + member)[:, None] * DIM
    queries = _turned(qkv, head, dim[None, :], kept[:, None], c[None, :], s[None, :], stride, PARTS, DIM)
    own = first + (KV_HEADS * GROUP + kv_head) * DIM
    key = _turned(qkv, own, dim, dim < DIM, c, s, stride, PARTS, DIM).to(data.dtype.element_ty)
    value = _summed(qkv, own + KV_HEADS * DIM + dim, dim < DIM, stride, PARTS).to(data.dtype.element_ty)
    queries = queries.to(data.dtype.element_ty)

    is_last = split == SPLITS - 1  # of the parts: it sees the own row, and appends it
    spot = (last_page * PAGE + entries % PAGE) * DIM + dim
    tl.store(keys + spot, key, mask=(dim < DIM) & is_last & live)
    tl.store(values + spot, value, mask=(dim < DIM) & is_last & live)
    score = tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
    top = tl.where(is_last, score, float("-inf"))
    total = tl.where(is_last, 1.0, 0.0) + tl.zeros([TILE], tl.float32)
    mixed = tl.where(is_last, value.to(tl.float32), 0.0)[None, :] + tl.zeros([TILE, DIM], tl.float32)
    top, total, mixed = fold(
        queries, some_keys, some_values, seen[None, :], scale, top, total, mixed, PRECISION=PRECISION
    )
    if low + BLOCK < high:  # a pipeline takes a microsecond to begin, even with nothing to do
        for at in range(low + BLOCK, high, BLOCK):
            place, seen = _entries(data, pages, at, high, dim, PAGE, BLOCK, DIM)
            more_keys = tl.load(keys + place, mask=seen[:, None], other=0.0)
            more_values = tl.load(values + place, mask=seen[:, None], other=0.0)
            top, total, mixed = fold(
                queries, more_keys, more_values, seen[None, :], scale, top, total, mixed, PRECISION=PRECISION
            )

    row = (pair * GROUP + member).to(tl.int64)  # of all requests' heads
    if SPLITS == 1:
        tl.store(
            out + row[:, None] * DIM + dim[None, :],
            (mixed / total[:, None]).to(out.dtype.element_ty),
            mask=kept[:, None],
        )
    else:
        mine = row * SPLITS + split
        tl.store(part + mine[:, None] * DIM + dim[None, :], mixed, mask=kept[:, None])
        tl.store(tops + mine, top, mask=kept)
        tl.store(totals + mine, total, mask=kept)
        if JOINED:
            tl.debug_barrier()
            if tl.atomic_add(arrived + pair, 1, sem="acq_rel") == SPLITS - 1:
                tl.store(arrived + pair, 0)
                _join(out, part, tops, totals, pair, GROUP, GROUP_PAD, DIM, SPLITS, SPLITS_PAD)


@triton.jit
def _join(
    out, part, tops, totals, pair,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, SPLITS_PAD: tl.constexpr,
):  # fmt: skip
    """The mix of a group of heads from its shares."""
    which, group, dim = tl.arange(0, SPLITS_PAD), tl.arange(0, GROUP_PAD), tl.arange(0, DIM)
    kept = group < GROUP
    there = kept[:, None] & (which < SPLITS)[None, :]
    row = (pair * GROUP + group).to(tl.int64)
    their = row[:, None] * SPLITS + which[None, :]
    top = tl.load(tops + their, mask=there, other=0.0, cache_modifier=".cg")
    total = tl.load(totals + their, mask=there, other=0.0, cache_modifier=".cg")
    place = their[:, :, None] * DIM + dim[None, None, :]
    parts = tl.load(part + place, mask=there[:, :, None], other=0.0, cache_modifier=".cg")
    top = tl.where(total > 0, top, float("-inf"))
    factor = tl.exp2(top - tl.where(kept, tl.max(top, 1), 0.0)[:, None])
    whole = tl.where(kept, tl.sum(total * factor, 1), 1.0)
    mean = tl.sum(parts * factor[:, :, None], 1) / whole[:, None]
    tl.store(out + row[:, None] * DIM + dim[None, :], mean.to(out.dtype.element_ty), mask=kept[:, None])


@dataclass(frozen=True, slots=True)
class Shares:
    """What each head of B rows has mixed of each share of its context; a head's mix is Σ mixed · 2^top / Σ total · 2^top.

    mixed f32 [B, heads, splits, head_dim]; tops and totals f32 [B, heads, splits]. A share without an entry has total 0 and top -inf.
    """

    mixed: Tensor
    tops: Tensor
    totals: Tensor


def attend_step(
    data: Tensor,
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    table: Tensor,
    length: Tensor,
    active: Tensor,
    arrived: Tensor | None,
    *,
    page_size: int,
    scale: float,
) -> Tensor | Shares:
    """One row of each of B slots attends causally and joins its context: [B, heads, head_dim] in the dtype of `data`.

    data, table, length, active as in `attend_triton.attend_slots`. qkv f32 [parts, B, heads + 2 · kv_heads, head_dim] is a sum over dim 0:
    queries and keys before rotation, values; cos and sin f32 [B, head_dim / 2]. head_dim is a power of two, 16 or more. arrived: zeros,
    i32 [B · kv_heads or more], left as zeros; without it, several shares are not joined.
    """
    parts, rows, width, dim = qkv.shape
    kv_heads = data.shape[0] // 2
    heads = width - 2 * kv_heads
    splits = _splits(rows * kv_heads, triton.cdiv(table.shape[1] * page_size, BLOCK))
    joined = arrived is not None or splits == 1
    out = torch.empty((rows, heads, dim) if joined else 0, dtype=data.dtype, device=data.device)
    apart = splits if splits > 1 else 0
    shares = Shares(
        qkv.new_empty(rows, heads, apart, dim), qkv.new_empty(rows, heads, apart), qkv.new_empty(rows, heads, apart)
    )
    _attend_step[(rows * kv_heads, splits)](
        qkv, cos, sin, data, table, length, active,
        out, shares.mixed, shares.tops, shares.totals, length if arrived is None else arrived,
        scale * LOG2_E, rows, data.stride(0), table.stride(0),
        KV_HEADS=kv_heads,
        GROUP=heads // kv_heads,
        GROUP_PAD=triton.next_power_of_2(heads // kv_heads),
        DIM=dim,
        PAGE=page_size,
        TILE=max(16, triton.next_power_of_2(heads // kv_heads)),
        BLOCK=BLOCK,
        SPLITS=splits,
        SPLITS_PAD=triton.next_power_of_2(splits),
        PARTS=parts,
        JOINED=joined,
        PRECISION="ieee" if data.dtype == torch.float32 else "tf32",
        num_warps=8,
        num_stages=3,
        **early(data.device),
    )  # fmt: skip
    return out if joined else shares


def _splits(programs: int, blocks: int) -> int:
    """Shares of a context, so that there are as many programs as the GPU runs at once; no more than it can have blocks."""
    return max(1, min(SPLITS_MAX, blocks, AT_ONCE // programs))
