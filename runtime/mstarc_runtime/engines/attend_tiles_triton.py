"""The kernels of `attend_triton`, in device functions that `attend_rows_triton` uses too: a program's rows, its part of a context,
and its results.

A tile is TILE rows x query heads of one KV head of one request; `dim` [DIM or more] are the places in a head. k and v: the rows' own keys
and values, by argument.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(starts, request, rows_each, RAGGED: tl.constexpr):
    """A request's first row among all, and how many it has."""
    if RAGGED:
        first = tl.load(starts + request)
        return first, tl.load(starts + request + 1) - first
    else:  # noqa: RET505 (one is known when compiling)
        return request * rows_each, rows_each


@triton.jit
def entries_of(length, active, request, MASKED: tl.constexpr):
    """Whether a request is active, and the entries of its context that are seen."""
    entries = tl.load(length + request)
    if MASKED:
        live = tl.load(active + request) != 0
        return live, tl.where(live, entries, 0)
    else:  # noqa: RET505 (one is known when compiling)
        return True, entries


@triton.jit
def part_of(entries, split, SPLITS: tl.constexpr, OWN: tl.constexpr, BLOCK: tl.constexpr):
    """The entries of a part, low to high without high, in whole blocks; the own rows are a part by themselves."""
    shares = SPLITS - 1 if OWN and SPLITS > 1 else SPLITS
    share = tl.cdiv(tl.cdiv(entries, shares), BLOCK) * BLOCK
    low = split * share
    return low, tl.minimum(low + share, entries)


@triton.jit
def own_until(tile, rows, TILE: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr):
    """How many of a request's rows are seen by a tile."""
    until = rows
    if CAUSAL:
        until = tl.minimum(rows, (tile * TILE + TILE - 1) // GROUP + 1)
    return until


@triton.jit
def own_rows(k, v, k_row, k_head, v_row, v_head, first, other, kept, kv_head, dim, DIM: tl.constexpr):
    """Keys and values [N, DIM] of a request's rows `other` [N] that are `kept`."""
    loaded = kept[:, None] & (dim < DIM)[None, :]
    source = (first + other)[:, None]
    keys = tl.load(k + source * k_row + kv_head * k_head + dim[None, :], mask=loaded, other=0.0)
    values = tl.load(v + source * v_row + kv_head * v_head + dim[None, :], mask=loaded, other=0.0)
    return keys, values


@triton.jit
def append(
    k, v, k_row, k_head, v_row, v_head, keys, values, pages, first, rows, entries, live, tile, kv_head, dim,
    GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The rows that begin in a tile become entries of a live request, behind those that it has. keys, values: the heads of the pool."""
    mine = tile * TILE // GROUP + tl.arange(0, TILE)
    kept = (mine < rows) & (mine <= (tile * TILE + TILE - 1) // GROUP) & live
    entry = entries + mine
    page = tl.load(pages + entry // PAGE, mask=kept, other=0).to(tl.int64)
    place = (page * PAGE + entry % PAGE)[:, None] * DIM + dim[None, :]
    stored = kept[:, None] & (dim < DIM)[None, :]
    some_keys, some_values = own_rows(k, v, k_row, k_head, v_row, v_head, first, mine, kept, kv_head, dim, DIM)
    tl.store(keys + place, some_keys.to(keys.dtype.element_ty), mask=stored)
    tl.store(values + place, some_values.to(values.dtype.element_ty), mask=stored)


@triton.jit
def store(
    out, part, weight, at, row_heads, split, top, total, mixed, there, dim, DIM: tl.constexpr, SPLITS: tl.constexpr
):
    """The results of the rows x heads `at` [TILE] that are `there`: their means, or those of one part with their weights."""
    stored = there[:, None] & (dim < DIM)[None, :]
    if SPLITS == 1:
        mean = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + at[:, None] * DIM + dim[None, :], mean.to(out.dtype.element_ty), mask=stored)
    else:
        at += split * row_heads
        tl.store(part + at[:, None].to(tl.int64) * DIM + dim[None, :], mixed, mask=stored)
        tl.store(weight + at * 2, top, mask=there)
        tl.store(weight + at * 2 + 1, total, mask=there)


@triton.jit
def fold(queries, keys, values, seen, scale, top, total, mixed, PRECISION: tl.constexpr):
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
def attend_tile(
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
        top, total, mixed = fold(
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
                top, total, mixed = fold(
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
def combine(
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
