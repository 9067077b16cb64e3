"""Attention of blocks of rows over paged contexts, page by page: what `attend_triton` launches for rows that `attend_frames` does not take.

The scheme is that of `attend_triton`. A block of entries is a page, so one number says where it lies, and the copy engine of a
multiprocessor (TMA) fetches it whole; only the last page of a context and the rows' own keys are masked. Head sizes are powers of two.

What bounds it on an H200: five tiles of a frame's 258 rows each read every key, 4.8 TB/s from the L2 cache. Tiles of 128 rows read less
and are slower all the same (see `tests/bench/README.md`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.attend_tiles_triton import append, entries_of, own_rows, own_until, part_of, rows_of, store

NOTHING = tl.constexpr(-1.0e30)  # a maximum of no scores: finite, so that differences of two are numbers


@triton.jit
def _fold(queries, keys, values, seen, scale, top, total, mixed, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax in base 2; scores are scaled inside the exponent."""
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * scale)
    shrink = tl.exp2(top - higher)
    share = tl.exp2(scores * scale - higher[:, None])
    total = total * shrink + tl.sum(share, 1)
    mixed = tl.dot(share.to(values.dtype), values, mixed * shrink[:, None], input_precision=PRECISION)
    return higher, total, mixed


@triton.jit
def attend_rows(
    q,
    k,
    v,
    data,
    paged,  # the same as a descriptor of pages
    table,
    length,
    active,
    starts,
    out,
    part,
    weight,
    scale,  # times log2(e), above 0
    rows_each,  # rows of every request, if not RAGGED
    all_rows,
    q_row,
    q_head,
    k_row,
    k_head,
    v_row,
    v_head,
    slots,
    table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    RAGGED: tl.constexpr,
    MASKED: tl.constexpr,
    OWN: tl.constexpr,
    CAUSAL: tl.constexpr,
    APPEND: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
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
    pages = table + request * table_row
    dtype = data.dtype.element_ty
    member = tile * TILE + tl.arange(0, TILE)
    row = member // GROUP
    head = kv_head * GROUP + member % GROUP
    dim = tl.arange(0, DIM)
    within = tl.arange(0, PAGE)
    there = (row < rows)[:, None]
    queries = tl.load(q + (first + row)[:, None] * q_row + head[:, None] * q_head + dim[None, :], mask=there, other=0.0)
    queries = queries.to(dtype)

    top = tl.full([TILE], NOTHING, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM], tl.float32)
    keys = kv_head * slots
    values = (kv_head + KV_HEADS) * slots

    low, high = part_of(entries, split, SPLITS, OWN, PAGE)
    whole = low + tl.maximum(high - low, 0) // PAGE * PAGE
    for at in tl.range(low, whole, PAGE, num_stages=STAGES):
        place = tl.load(pages + at // PAGE) * PAGE
        some_keys = paged.load([keys + place, 0])
        some_values = paged.load([values + place, 0])
        top, total, mixed = _fold(
            queries, some_keys, some_values, None, scale, top, total, mixed, MASKED=False, PRECISION=PRECISION
        )
    if whole < high:
        seen = whole + within < high
        place = (tl.load(pages + whole // PAGE).to(tl.int64) * PAGE + within)[:, None] * DIM + dim[None, :]
        some_keys = tl.load(data + keys.to(tl.int64) * DIM + place, mask=seen[:, None], other=0.0)
        some_values = tl.load(data + values.to(tl.int64) * DIM + place, mask=seen[:, None], other=0.0)
        top, total, mixed = _fold(
            queries, some_keys, some_values, seen[None, :], scale, top, total, mixed, MASKED=True, PRECISION=PRECISION
        )

    if OWN:  # noqa: SIM102 (one is known when compiling)
        if split == SPLITS - 1:
            until = own_until(tile, rows, TILE, GROUP, CAUSAL)
            for at in tl.range(0, until, PAGE, num_stages=STAGES):
                other = at + within
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
                    MASKED=True,
                    PRECISION=PRECISION,
                )
            if APPEND:
                own_keys, own_values = data + keys.to(tl.int64) * DIM, data + values.to(tl.int64) * DIM
                append(
                    k, v, k_row, k_head, v_row, v_head, own_keys, own_values, pages, first, rows, entries, live, tile,
                    kv_head, dim, GROUP, DIM, PAGE, TILE,
                )  # fmt: skip

    heads = KV_HEADS * GROUP
    at = (first + row) * heads + head
    store(out, part, weight, at, all_rows * heads, split, top, total, mixed, row < rows, dim, DIM, SPLITS)


@triton.jit
def join_rows(
    part,
    weight,
    out,
    row_heads,  # rows x query heads
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The parts of BLOCK rows x heads -> their results. A part without entries counts nothing; no entries at all give zeros."""
    which = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dim = tl.arange(0, DIM)
    there = which < row_heads
    highest = tl.full([BLOCK], NOTHING, tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(highest, tl.load(weight + (split * row_heads + which) * 2, mask=there, other=NOTHING))
    whole = tl.zeros([BLOCK], tl.float32)
    mixed = tl.zeros([BLOCK, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        at = split * row_heads + which
        factor = tl.exp2(tl.load(weight + at * 2, mask=there, other=NOTHING) - highest)
        whole += tl.load(weight + at * 2 + 1, mask=there, other=0.0) * factor
        here = tl.load(part + at[:, None].to(tl.int64) * DIM + dim[None, :], mask=there[:, None], other=0.0)
        mixed += here * factor[:, None]
    mean = mixed / tl.where(whole > 0, whole, 1.0)[:, None]
    tl.store(out + which[:, None].to(tl.int64) * DIM + dim[None, :], mean.to(out.dtype.element_ty), mask=there[:, None])
