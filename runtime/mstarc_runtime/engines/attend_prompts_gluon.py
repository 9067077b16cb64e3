"""Attention of many rows over paged contexts on Hopper: prompts and other blocks of rows, all or causal, of unequal requests.

The rows of a request times the query heads that share a KV head are its *members*: member m is row m // group, head m % group. A program
takes a tile of 128 members of one KV head, so that every key that it fetches serves all its query heads, and all blocks of 64 entries
that they see, or a part of them. Its warps are parted (warp specialisation); only shared memory and its barriers join them:

    fetch       1 warp: brings blocks of keys and values into a ring of STAGES by the copy engine (TMA)
    tile 0, 1   4 warps each: scores of 64 members, online softmax in base 2, mix. The scores of a block are computed while the values
                of the block before are mixed, and one tile multiplies while the other computes exponentials
    append      2 warps: own rows go to the pages

Blocks come in this order: the whole pages of the context, the whole blocks of own rows that every member sees, then those that are
masked: a begun page, own rows at the diagonal or at the end of a request. What fills a block in part fills its end: a page is fetched from
as many places before its begin (`shift`), where the copy engine finds nothing and writes zeros; of own rows, some that are known already.
So what lies beyond a context's length is never looked at. Only a request of less than 64 rows has others' rows in its block; they may
hold anything (NaN included), so its values are zeroed in shared memory.

Which tile a program takes, and how many parts a tile has, follows from the lengths on the device (`attend_prompts_plan`). Programs are as
many as there can be tiles and parts; those beyond end at once. Parts are joined by `join_parts`, a kernel of its own: to wait for each
other within this one took longer.

Shapes: data [2 · kv_heads, slots, dim] (keys of all heads, then values), q [rows, heads, dim], k, v [rows, kv_heads, dim], all requests
packed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstarc_runtime.engines import attend_prompts_plan as plan
from mstarc_runtime.engines.attend_prompts_plan import BLOCK, TILE

NOTHING = gl.constexpr(-1.0e30)  # a maximum of no scores: finite, so that differences of two are numbers
WHOLE = gl.constexpr(1.0e30)


class Ring(NamedTuple):
    """Blocks in shared memory, STAGES of them, each with the barriers that say that it is there and that it is done with.

    They are filled and used in the order keys 0, keys 1, values 0, keys 2, values 1, ..., the last values.
    """

    blocks: Any
    ready: Any
    free: Any


class Result(NamedTuple):
    """Where results go: whole ones, or parts [splits, rows, heads, dim] in the type of the result with their levels.

    level f32 [splits, rows, heads]: log2 of the sum of exponentials; NOTHING where a part saw nothing, WHOLE where part 0 is all and the
    result is out.
    """

    out: Any
    part: Any
    level: Any
    row_heads: Any


@gluon.jit
def _bring(paged, own, ring, step, of_context, page, at, col, SHAPE: gl.constexpr):
    """A block goes into the ring as soon as its stage is free."""
    stage = step % SHAPE.stages
    ready = ring.ready.index(stage)
    mbarrier.wait(ring.free.index(stage), (step // SHAPE.stages & 1) ^ 1)
    mbarrier.expect(ready, paged.block_type.nbytes)
    if of_context:
        tma.async_copy_global_to_shared(paged, [page, at, 0], ready, ring.blocks.index(stage))
    else:
        tma.async_copy_global_to_shared(own, [0, at, col], ready, ring.blocks.index(stage))


@gluon.jit
def _fetch(paged, own_k, own_v, table, pages, work, asked, ring, SHAPE: gl.constexpr):
    """Bring every block of keys and values into the ring, in the order of their use. The queries come before most of them."""
    keys = work.kv_head * pages
    values = keys + SHAPE.kv_heads * pages
    col = work.kv_head * SHAPE.dim
    page = plan.page_of(work, table, work.begin)
    step = 0
    before_paged, before, before_at = page >= 0, 0, 0
    for block in range(work.begin, work.end):
        paged_now, now = plan.is_page(work, block), page
        at = gl.where(paged_now, -plan.shift_of(work, block), work.first + plan.own_row(work, block))
        page = plan.page_of(work, table, block + 1)
        _bring(paged, own_k, ring, step, paged_now, keys + now, at, col, SHAPE)
        step += 1
        if block == work.begin:
            mbarrier.wait(asked, 0)
        else:
            _bring(paged, own_v, ring, step, before_paged, values + before, before_at, col, SHAPE)
            step += 1
        before_paged, before, before_at = paged_now, now, at
    _bring(paged, own_v, ring, step, before_paged, values + before, before_at, col, SHAPE)


@gluon.jit
def _append(k, v, data, table, pages, k_row, v_row, work, SHAPE: gl.constexpr):
    """The own rows of which the tile has the first member become entries; the parts of a tile share them."""
    rows_each: gl.constexpr = 2048 // SHAPE.dim
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [256 // SHAPE.dim, SHAPE.dim // 8], [2, 1], [1, 0])
    dim = gl.arange(0, SHAPE.dim, layout=gl.SliceLayout(0, spread))[None, :]
    low = gl.cdiv(work.tile * TILE, SHAPE.group) + work.split * rows_each
    until = gl.minimum(gl.cdiv((work.tile + 1) * TILE, SHAPE.group), gl.where(work.live, work.rows, 0))
    for at in range(low, until, work.splits * rows_each):
        row = at + gl.arange(0, rows_each, layout=gl.SliceLayout(1, spread))
        there = row < until
        source = work.first + row
        keys = gl.load(k + (source * k_row + work.kv_head * SHAPE.dim)[:, None] + dim, mask=there[:, None])
        values = gl.load(v + (source * v_row + work.kv_head * SHAPE.dim)[:, None] + dim, mask=there[:, None])
        entry = work.entries + row
        page = gl.load(table + entry // BLOCK, mask=there, other=0)
        place = ((work.kv_head * pages + page) * BLOCK + entry % BLOCK).to(gl.int64) * SHAPE.dim
        gl.store(data + place[:, None] + dim, keys, mask=there[:, None])
        place += pages.to(gl.int64) * (SHAPE.kv_heads * SHAPE.dim * BLOCK)
        gl.store(data + place[:, None] + dim, values, mask=there[:, None])


@gluon.jit
def _seen(work, block, row, scores, SHAPE: gl.constexpr):
    """Which entries of a masked block rows see, as `scores`."""
    entry = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, scores.type.layout))[None, :]
    seen = entry >= plan.shift_of(work, block)
    if SHAPE.causal:
        last = gl.where(plan.is_page(work, block), BLOCK, row - plan.own_row(work, block))
        seen = seen & (entry <= last[:, None])
    return seen & (entry < gl.where(plan.is_page(work, block), BLOCK, work.rows))  # then others' rows


@gluon.jit
def _weigh(scores, top, total, scale):
    """Scores [64, 64] -> exponentials, and the running maximum and sum [64] with them, and what a mix so far shrinks by."""
    higher = gl.maximum(top, gl.max(scores, 1) * scale)
    shrink = gl.exp2(top - higher)
    share = gl.exp2(scores * scale - higher[:, None])
    return share, higher, total * shrink + gl.sum(share, 1), shrink


@gluon.jit
def _values(ring, step, work, block, SHAPE: gl.constexpr, MASKED: gl.constexpr):
    """The values of a block, those of others zeroed. Both tiles do so, as either may be first."""
    stage = step % SHAPE.stages
    values = ring.blocks.index(stage).reshape([BLOCK, SHAPE.dim])
    mbarrier.wait(ring.ready.index(stage), step // SHAPE.stages & 1)
    if MASKED:  # noqa: SIM102 (one is known when compiling)
        if (work.rows < BLOCK) & ~plan.is_page(work, block):
            dim: gl.constexpr = SHAPE.dim
            spread: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
            row = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, spread))
            for col in gl.static_range(0, dim, 64):
                some = values.slice(col, 64, dim=1)
                some.store(gl.where((row < work.rows)[:, None], some.load(spread), 0.0))
            fence_async_shared()
            gl.thread_barrier()
    return values


@gluon.jit
def _fold(
    queries, ring, step, work, block, row, share, top, total, mixed, none, scale,
    SHAPE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of a block, while the values of the block before are mixed by their `share`; the block's own share comes out."""
    stage = step % SHAPE.stages
    values = _values(ring, step + 1, work, block - 1, SHAPE, MASKED)
    mbarrier.wait(ring.ready.index(stage), step // SHAPE.stages & 1)
    keys = ring.blocks.index(stage).reshape([BLOCK, SHAPE.dim]).permute((1, 0))
    scores = warpgroup_mma(queries, keys, none, use_acc=False, is_async=True)
    mixed = warpgroup_mma(share, values, mixed, is_async=True)
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(ring.free.index(stage), count=1)
    if MASKED:
        scores = gl.where(_seen(work, block, row, scores, SHAPE), scores, float("-inf"))
    weights, top, total, shrink = _weigh(scores, top, total, scale)
    mixed, share = warpgroup_mma_wait(0, deps=(mixed, share))
    mbarrier.arrive(ring.free.index((step + 1) % SHAPE.stages), count=1)
    mixed = mixed * gl.convert_layout(shrink, gl.SliceLayout(1, mixed.type.layout))[:, None]
    return gl.convert_layout(weights.to(share.dtype), share.type.layout), top, total, mixed


@gluon.jit
def _places(work, low, lines: gl.constexpr, SHAPE: gl.constexpr):
    """64 members from `low` on: their rows and heads, where they are among rows x heads, and which are there."""
    member = low + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, lines))
    row, head = work.first + member // SHAPE.group, work.kv_head * SHAPE.group + member % SHAPE.group
    return row, head, row * (SHAPE.kv_heads * SHAPE.group) + head, member < work.rows * SHAPE.group


@gluon.jit
def _keep(mine, mean, level, result, work, low, SHAPE: gl.constexpr):
    """What 64 members from `low` on found, through the shared memory of their queries, so that it is written in whole lines."""
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    mine.store(mean.to(mine.dtype))
    gl.thread_barrier()
    _, _, at, there = _places(work, low, lines, SHAPE)
    to = result.out
    if SHAPE.parted:
        my_level = gl.convert_layout(level, at.type.layout)
        if work.splits > 1:
            to = result.part + work.split * result.row_heads.to(gl.int64) * SHAPE.dim
        else:
            my_level = gl.full([BLOCK], WHOLE, gl.float32, at.type.layout)
        gl.store(result.level + at + work.split * result.row_heads, my_level, mask=there)
    place = at.to(gl.int64)[:, None] * SHAPE.dim + gl.arange(0, SHAPE.dim, layout=gl.SliceLayout(0, lines))[None, :]
    gl.store(to + place, mine.load(lines), mask=there[:, None])


@gluon.jit
def _keep_nothing(result, work, SHAPE: gl.constexpr):
    """The level of a part that a tile does not have."""
    each: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [0, 1])
    for half in gl.static_range(2):
        _, _, at, there = _places(work, work.tile * TILE + half * BLOCK, each, SHAPE)
        gl.store(
            result.level + at + work.split * result.row_heads,
            gl.full([BLOCK], NOTHING, gl.float32, at.type.layout),
            mask=there,
        )


@gluon.jit
def _tile(WHICH: gl.constexpr, q, q_row, queries, work, asked, ring, result, scale, SHAPE: gl.constexpr):
    """64 members of the tile, from 64 · WHICH on."""
    lines: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    scored: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SHAPE.dim, 16])
    low = work.tile * TILE + WHICH * BLOCK
    mine = queries.index(WHICH)
    row, head, _, there = _places(work, low, lines, SHAPE)
    dim = gl.arange(0, SHAPE.dim, layout=gl.SliceLayout(0, lines))
    place = row * q_row + head * SHAPE.dim
    mine.store(gl.load(q + place[:, None] + dim[None, :], mask=there[:, None], other=0.0))
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(asked, count=1)

    row = (low + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, scored))) // SHAPE.group
    top = gl.full([BLOCK], NOTHING, gl.float32, layout=gl.SliceLayout(1, scored))
    total = gl.full([BLOCK], 0.0, gl.float32, layout=gl.SliceLayout(1, scored))
    none = gl.full([BLOCK, BLOCK], 0.0, gl.float32, layout=scored)
    mixed = gl.full([BLOCK, SHAPE.dim], 0.0, gl.float32, layout=mma)
    mbarrier.wait(ring.ready.index(0), 0)
    keys = ring.blocks.index(0).reshape([BLOCK, SHAPE.dim]).permute((1, 0))
    scores = warpgroup_mma(mine, keys, none, use_acc=False)
    mbarrier.arrive(ring.free.index(0), count=1)
    scores = gl.where(_seen(work, work.begin, row, scores, SHAPE), scores, float("-inf"))
    weights, top, total, _ = _weigh(scores, top, total, scale)
    share = gl.convert_layout(weights.to(mine.dtype), gl.DotOperandLayout(operand_index=0, parent=mma, k_width=2))
    step = 1
    for block in range(work.begin + 1, gl.minimum(work.end, work.full)):
        share, top, total, mixed = _fold(
            mine, ring, step, work, block, row, share, top, total, mixed, none, scale, SHAPE, MASKED=False
        )
        step += 2
    for block in range(gl.maximum(work.begin + 1, work.full), work.end):
        share, top, total, mixed = _fold(
            mine, ring, step, work, block, row, share, top, total, mixed, none, scale, SHAPE, MASKED=True
        )
        step += 2
    mixed = warpgroup_mma(share, _values(ring, step, work, work.end - 1, SHAPE, True), mixed)
    level = gl.where(total > 0, top + gl.log2(total), NOTHING)
    factor = 1.0 / gl.where(total > 0, total, 1.0)
    _keep(mine, mixed * gl.convert_layout(factor, gl.SliceLayout(1, mma))[:, None], level, result, work, low, SHAPE)


@gluon.jit(
    do_not_specialize=["requests", "rows_each", "splits", "all_rows", "pages", "table_row"],
    do_not_specialize_on_alignment=["table", "length", "active", "starts"],
)
def attend_prompt(
    q,
    k,
    v,
    data,
    paged,  # data as [2 · kv_heads · pages, 64, dim], in pages
    own_k,  # k and v as [1, rows, kv_heads · dim], in 64 rows of a head
    own_v,
    table,
    length,
    active,
    starts,
    out,
    part,
    level,
    scale,  # times log2(e), above 0
    requests,
    rows_each,  # rows of every request, if not ragged
    splits,
    all_rows,
    q_row,
    k_row,
    v_row,
    pages,
    table_row,
    SHAPE: gl.constexpr,
    APPEND: gl.constexpr,
    REGISTERS: gl.constexpr,  # of a thread that computes, and of one that copies
):
    """One tile of one KV head of one request over one part of the blocks that it sees."""
    if SHAPE.parted:
        gdc_launch_dependents()
    flat: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    blocks = gl.allocate_shared_memory(paged.dtype, [SHAPE.stages, 1, BLOCK, SHAPE.dim], paged.layout)
    queries = gl.allocate_shared_memory(paged.dtype, [2, BLOCK, SHAPE.dim], flat)
    asked = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [SHAPE.stages, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SHAPE.stages, 1], mbarrier.MBarrierLayout())
    stages: gl.constexpr = SHAPE.stages
    mbarrier.init(asked, count=2)
    for stage in gl.static_range(stages):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gdc_wait()
    given = plan.Given(length, active, starts, requests, rows_each, splits)
    work, there = plan.work_of(given, gl.program_id(0), SHAPE)
    if not there:
        return
    result = Result(out, part, level, all_rows * (SHAPE.kv_heads * SHAPE.group))
    if SHAPE.parted:  # noqa: SIM102 (one is known when compiling)
        if work.split >= work.splits:
            _keep_nothing(result, work, SHAPE)
            return
    table += work.request * table_row
    ring = Ring(blocks, ready, free)
    if APPEND:
        gl.warp_specialize(
            [
                (_tile, (0, q, q_row, queries, work, asked, ring, result, scale, SHAPE)),
                (_tile, (1, q, q_row, queries, work, asked, ring, result, scale, SHAPE)),
                (_fetch, (paged, own_k, own_v, table, pages, work, asked, ring, SHAPE)),
                (_append, (k, v, data, table, pages, k_row, v_row, work, SHAPE)),
            ],
            [4, 1, 2],
            [REGISTERS[0], REGISTERS[1], REGISTERS[1]],
        )
    else:
        gl.warp_specialize(
            [
                (_tile, (0, q, q_row, queries, work, asked, ring, result, scale, SHAPE)),
                (_tile, (1, q, q_row, queries, work, asked, ring, result, scale, SHAPE)),
                (_fetch, (paged, own_k, own_v, table, pages, work, asked, ring, SHAPE)),
            ],
            [4, 1],
            [REGISTERS[0], REGISTERS[1]],
        )


@triton.jit
def join_parts(
    part,
    level,
    out,
    row_heads,  # rows x query heads
    DIM: tl.constexpr,
    EACH: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """The parts of EACH rows x heads -> their results, where there are several."""
    gdc_wait()
    which = tl.program_id(0) * EACH + tl.arange(0, EACH)
    several = tl.load(level + which, mask=which < row_heads, other=1.0e30) < 1.0e29
    highest = tl.full([EACH], -1.0e30, tl.float32)
    for split in tl.static_range(SPLITS):
        highest = tl.maximum(highest, tl.load(level + split * row_heads + which, mask=several, other=-1.0e30))
    dim = tl.arange(0, DIM)
    whole = tl.zeros([EACH], tl.float32)
    mixed = tl.zeros([EACH, DIM], tl.float32)
    for split in tl.static_range(SPLITS):
        at = split * row_heads + which
        mine = tl.load(level + at, mask=several, other=-1.0e30)
        seen = several & (mine > -1.0e29)
        share = tl.where(seen, tl.exp2(mine - highest), 0.0)
        some = tl.load(part + at[:, None].to(tl.int64) * DIM + dim[None, :], mask=seen[:, None], other=0.0)
        whole += share
        mixed += some.to(tl.float32) * share[:, None]
    mean = mixed * (1.0 / tl.where(several, whole, 1.0))[:, None]
    tl.store(
        out + which[:, None].to(tl.int64) * DIM + dim[None, :], mean.to(out.dtype.element_ty), mask=several[:, None]
    )
