"""What the kernels of `attend_triton` and `attend_rows_triton` have in common: a program's rows, its part of a context, and its results.

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
