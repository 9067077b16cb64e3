"""Attention of a flow step over a paged context that is only read, as device functions of `flow_step_triton`: parts, then their joining.

A task takes one KV head of one request, a tile of its rows x heads and one part of its context; the last part are the rows' own keys. Its
first entries are loaded before it waits for the queries: they do not change in a step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.attend_step_triton import _entries
from mstarc_runtime.engines.attend_triton import _fold
from mstarc_runtime.models.pi05.barrier_triton import wait

TILE = 64  # rows x heads of a task
BLOCK = 64  # entries of a part that are loaded early, and the most rows of a request
LATER = 16  # of a block of the others: few, for the sake of registers


@triton.jit(noinline=True)
def attended(
    task, qkv, data, table, length, active, part, weight, scale, rows, data_head, table_row, counter, target,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    LATER: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """scale: times log2(e). rows: of each request. SPLITS: parts, the own rows one of them. TILES: of each request and KV head."""
    group, split = task // SPLITS, task % SPLITS
    tile, pair = group % TILES, group // TILES
    request, kv_head = pair // KV_HEADS, pair % KV_HEADS
    heads: tl.constexpr = GROUP * KV_HEADS
    width: tl.constexpr = (GROUP + 2) * KV_HEADS * DIM
    dim = tl.arange(0, DIM)
    keys = data + data_head.to(tl.int64) * kv_head
    values = data + data_head.to(tl.int64) * (kv_head + KV_HEADS)
    pages = table + request * table_row
    entries = tl.where(tl.load(active + request) != 0, tl.load(length + request), 0)
    share = tl.cdiv(tl.cdiv(entries, SPLITS - 1), BLOCK) * BLOCK
    low = split * share
    high = tl.minimum(low + share, entries)
    place, seen = _entries(data, pages, low, high, dim, PAGE, BLOCK, DIM)
    some_keys = tl.load(keys + place, mask=seen[:, None], other=0.0)
    some_values = tl.load(values + place, mask=seen[:, None], other=0.0)
    wait(counter, target, NATIVE)

    member = tile * TILE + tl.arange(0, TILE)
    there = (member < rows * GROUP)[:, None]
    head = (request * rows + member // GROUP) * width + (kv_head * GROUP + member % GROUP) * DIM
    queries = tl.load(qkv + head[:, None] + dim[None, :], mask=there, other=0.0)
    other = tl.arange(0, BLOCK)
    is_own = (split == SPLITS - 1) & (other < rows)  # the last part has nothing of the context
    own = qkv + ((request * rows + other) * width + (heads + kv_head) * DIM)[:, None] + dim[None, :]
    some_keys += tl.load(own, mask=is_own[:, None], other=0.0)
    some_values += tl.load(own + KV_HEADS * DIM, mask=is_own[:, None], other=0.0)
    seen = seen | is_own
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, DIM], tl.float32)
    top, total, mixed = _fold(
        queries, some_keys, some_values, seen[None, :], scale, top, total, mixed, PRECISION=PRECISION
    )
    for at in tl.range(low + BLOCK, high, LATER, num_stages=1):
        more, also = _entries(data, pages, at, high, dim, PAGE, LATER, DIM)
        more_keys = tl.load(keys + more, mask=also[:, None], other=0.0)
        more_values = tl.load(values + more, mask=also[:, None], other=0.0)
        top, total, mixed = _fold(
            queries, more_keys, more_values, also[None, :], scale, top, total, mixed, PRECISION=PRECISION
        )
    mine = task * TILE + tl.arange(0, TILE)
    mean = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(part + mine[:, None] * DIM + dim[None, :], mean.to(part.dtype.element_ty))
    tl.store(weight + mine * 2, top)
    tl.store(weight + mine * 2 + 1, total)


@triton.jit(noinline=True)
def joined(
    task, part, weight, out, rows,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, TILES: tl.constexpr,
    SOME: tl.constexpr,
):  # fmt: skip
    """The parts of SOME rows x heads of a tile -> their results."""
    group, first = task // (TILE // SOME), task % (TILE // SOME) * SOME
    tile, pair = group % TILES, group // TILES
    mine, dim = first + tl.arange(0, SOME), tl.arange(0, DIM)
    highest = tl.full([SOME], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(
            highest, tl.load(weight + ((group * SPLITS + split) * TILE + mine) * 2, cache_modifier=".cg")
        )
    whole = tl.zeros([SOME], tl.float32)
    mixed = tl.zeros([SOME, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        at = (group * SPLITS + split) * TILE + mine
        factor = tl.exp2(tl.load(weight + at * 2, cache_modifier=".cg") - highest)
        factor *= tl.load(weight + at * 2 + 1, cache_modifier=".cg")
        whole += factor
        mean = tl.load(part + at[:, None] * DIM + dim[None, :], cache_modifier=".cg")
        mixed += mean.to(tl.float32) * factor[:, None]
    member = tile * TILE + mine
    row, head = pair // KV_HEADS * rows + member // GROUP, pair % KV_HEADS * GROUP + member % GROUP
    to = out + (row * (KV_HEADS * GROUP) + head)[:, None] * DIM + dim[None, :]
    tl.store(to, (mixed / whole[:, None]).to(out.dtype.element_ty), mask=(member < rows * GROUP)[:, None])
