"""Attention of a flow step over a paged context that is only read, as device functions of `flow_step_triton`: parts, then their joining.

A task takes one KV head of one request, a tile of its rows x heads, and one part: the rows' own keys, or a block of the context. Blocks are
loaded before the task waits for the queries: they do not change in a step. There are as many parts as the longest context has; those that
come first are there in any context, so that the programs of one round share the work of a short one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.attend_step_triton import _entries
from mstarc_runtime.engines.attend_tiles_triton import fold
from mstarc_runtime.models.pi05.barrier_triton import wait

TILE = 64  # rows x heads of a task
BLOCK = 64  # entries of a part, and the most rows of a request


@triton.jit
def _entries_of(length, active, request):
    """How many entries a request sees beside its own rows."""
    return tl.where(tl.load(active + request) != 0, tl.load(length + request), 0)


@triton.jit
def parts_of(length, active, requests, BLOCK: tl.constexpr):
    """How many parts the longest of the contexts has, with its own rows."""
    most = 1
    for request in range(requests):
        most = tl.maximum(most, 1 + tl.cdiv(_entries_of(length, active, request), BLOCK))
    return most


@triton.jit(noinline=True)
def attended(
    task, qkv, data, table, length, active, part, weight, scale, rows, groups, data_head, table_row, counter, target,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    TILES: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """scale: times log2(e). rows: of each request. groups: tiles of all requests and KV heads, TILES of each. Part 0 are the own rows."""
    group, split = task % groups, task // groups
    tile, pair = group % TILES, group // TILES
    request, kv_head = pair // KV_HEADS, pair % KV_HEADS
    heads: tl.constexpr = GROUP * KV_HEADS
    width: tl.constexpr = (GROUP + 2) * KV_HEADS * DIM
    dim = tl.arange(0, DIM)
    keys = data + data_head.to(tl.int64) * kv_head
    values = data + data_head.to(tl.int64) * (kv_head + KV_HEADS)
    entries = _entries_of(length, active, request)
    low = (split - 1) * BLOCK
    high = tl.where(split > 0, entries, low)
    place, seen = _entries(data, table + request * table_row, low, high, dim, PAGE, BLOCK, DIM)
    some_keys = tl.load(keys + place, mask=seen[:, None], other=0.0)
    some_values = tl.load(values + place, mask=seen[:, None], other=0.0)
    wait(counter, target, NATIVE)

    if low < entries:
        member = tile * TILE + tl.arange(0, TILE)
        there = (member < rows * GROUP)[:, None]
        head = (request * rows + member // GROUP) * width + (kv_head * GROUP + member % GROUP) * DIM
        queries = tl.load(qkv + head[:, None] + dim[None, :], mask=there, other=0.0)
        other = tl.arange(0, BLOCK)
        is_own = (split == 0) & (other < rows)
        own = qkv + ((request * rows + other) * width + (heads + kv_head) * DIM)[:, None] + dim[None, :]
        some_keys += tl.load(own, mask=is_own[:, None], other=0.0)
        some_values += tl.load(own + KV_HEADS * DIM, mask=is_own[:, None], other=0.0)
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        mixed = tl.zeros([TILE, DIM], tl.float32)
        top, total, mixed = fold(
            queries, some_keys, some_values, (seen | is_own)[None, :], scale, top, total, mixed, PRECISION=PRECISION
        )
        mine = task * TILE + tl.arange(0, TILE)
        tl.store(part + mine[:, None] * DIM + dim[None, :], (mixed / total[:, None]).to(part.dtype.element_ty))
        tl.store(weight + mine * 2, top)
        tl.store(weight + mine * 2 + 1, total)


@triton.jit(noinline=True)
def joined(
    task, part, weight, length, active, out, rows, groups,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
    TILES: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The parts of SOME rows x heads of a tile -> their results. SPLITS: of the longest context."""
    group, first = task // (TILE // SOME), task % (TILE // SOME) * SOME
    tile, pair = group % TILES, group // TILES
    count = 1 + tl.cdiv(_entries_of(length, active, pair // KV_HEADS), BLOCK)
    mine, dim = first + tl.arange(0, SOME), tl.arange(0, DIM)
    highest = tl.full([SOME], float("-inf"), tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * groups + group) * TILE + mine
        there = at * 0 + split < count
        highest = tl.maximum(highest, tl.load(weight + at * 2, mask=there, other=float("-inf"), cache_modifier=".cg"))
    whole = tl.zeros([SOME], tl.float32)
    mixed = tl.zeros([SOME, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        at = (split * groups + group) * TILE + mine
        there = at * 0 + split < count
        factor = tl.exp2(tl.load(weight + at * 2, mask=there, other=float("-inf"), cache_modifier=".cg") - highest)
        factor *= tl.load(weight + at * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
        whole += factor
        mean = tl.load(part + at[:, None] * DIM + dim[None, :], mask=there[:, None], other=0.0, cache_modifier=".cg")
        mixed += mean.to(tl.float32) * factor[:, None]
    member = tile * TILE + mine
    row, head = pair // KV_HEADS * rows + member // GROUP, pair % KV_HEADS * GROUP + member % GROUP
    to = out + (row * (KV_HEADS * GROUP) + head)[:, None] * DIM + dim[None, :]
    tl.store(to, (mixed / whole[:, None]).to(out.dtype.element_ty), mask=(member < rows * GROUP)[:, None])
