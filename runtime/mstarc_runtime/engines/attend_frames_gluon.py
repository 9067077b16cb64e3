"""Attention of frames over paged contexts on Hopper: one program takes all rows of a head, so that keys are read once.

A frame is 257 to 264 rows that all see the context and each other: 256 in four tiles of 64, and up to 8 spare ones. The warps of a
program are parted (warp specialisation); only shared memory and its barriers join them:

    fetch     1 warp: brings blocks of 64 keys and values into a ring of STAGES by the copy engine (TMA)
    tile 0-3  4 warps each: scores of 64 rows, online softmax in base 2, mix; while one computes exponentials, others multiply
    spare     4 warps: the same for the spare rows, with both products transposed (rows of a product come in 64, columns in 8); blocks
              of own rows go from the ring to the pages

A block is a page of the context or 64 own rows: first the whole pages, then the whole blocks of own rows, then what fills a block in
part. That fills its end: it is fetched from as many places before its begin (`shift`), where the copy engine finds nothing and writes
zeros, or own rows that are known already. So what lies beyond a context's length is never loaded, and only in these last blocks the
first `shift` entries are masked.

Shapes: data [2 · heads, slots, 64] (keys of all heads, then values), q, k, v [requests · rows, heads, 64], each head with its own keys.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

BLOCK = gl.constexpr(64)  # rows of a tile, entries of a block and of a page
DIM = gl.constexpr(64)
SPARE = gl.constexpr(8)
STAGES = gl.constexpr(8)  # an even number
TILE_REGISTERS, SPARE_REGISTERS, FETCH_REGISTERS = gl.constexpr(96), gl.constexpr(56), gl.constexpr(24)
NOTHING = gl.constexpr(-1.0e30)  # a maximum of no scores: finite, so that differences of two are numbers


class Ring(NamedTuple):
    """The blocks in shared memory, STAGES of them, each with the barriers that say that it is there and that it is done with."""

    key_blocks: Any
    value_blocks: Any
    ready: Any
    free: Any


class Work(NamedTuple):
    """The blocks [begin, end) of one head of one request: `whole` pages, own blocks up to `full`, then up to `blocks` those in part.

    A page in part hides its first `hidden` entries (0: there is none), the last own block its first `missing`.
    """

    request: Any
    head: Any
    begin: Any
    end: Any
    whole: Any
    full: Any
    blocks: Any
    hidden: Any
    missing: Any
    rows: Any


@gluon.jit
def _of_context(work, block):
    """Whether a block is a page."""
    return (block < work.whole) | ((block == work.full) & (work.hidden > 0))


@gluon.jit
def _page(work, table, block):
    """The page that a block is, if it is one."""
    return gl.load(table + gl.minimum(block, work.whole), mask=_of_context(work, block), other=0)


@gluon.jit
def _own_row(work, block):
    """The own row at which an own block starts."""
    return gl.where(block < work.full, (block - work.whole) * BLOCK, work.rows - BLOCK)


@gluon.jit
def _shift(work, block):
    """How many entries at the start of a block are masked: all of a block that is none."""
    shift = gl.where((block == work.full) & (work.hidden > 0), work.hidden, work.missing)
    shift = gl.where(block >= work.blocks, BLOCK, shift)
    return gl.where(block < work.full, 0, shift)


@gluon.jit
def _fetch(paged, own_k, own_v, table, ring, work, pages, HEADS: gl.constexpr):
    """Bring every block of keys and values into the ring, as soon as a stage is free."""
    head = work.head
    page = _page(work, table, work.begin)
    for block in range(work.begin, work.end):
        step = block - work.begin
        stage = step % STAGES
        ready = ring.ready.index(stage)
        mbarrier.wait(ring.free.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(ready, 2 * paged.block_type.nbytes)
        if _of_context(work, block):
            at = -_shift(work, block)
            row = head * pages + page
            tma.async_copy_global_to_shared(paged, [row, at, 0], ready, ring.key_blocks.index(stage))
            row += HEADS * pages
            tma.async_copy_global_to_shared(paged, [row, at, 0], ready, ring.value_blocks.index(stage))
        else:
            at = _own_row(work, block)
            tma.async_copy_global_to_shared(own_k, [work.request, at, head * DIM], ready, ring.key_blocks.index(stage))
            tma.async_copy_global_to_shared(
                own_v, [work.request, at, head * DIM], ready, ring.value_blocks.index(stage)
            )
        page = _page(work, table, block + 1)


@gluon.jit
def _fold(queries, ring, step, shift, top, total, mixed, none, scale, MASKED: gl.constexpr):
    """One step of the online softmax of a tile: maximum and sum [64] and mix [64, 64] with a block folded in."""
    mma: gl.constexpr = mixed.type.layout
    stage = step % STAGES
    mbarrier.wait(ring.ready.index(stage), step // STAGES & 1)
    keys = ring.key_blocks.index(stage).reshape([BLOCK, DIM]).permute((1, 0))
    scores = warpgroup_mma(queries, keys, none, use_acc=False)
    if MASKED:
        entry = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, mma))
        scores = gl.where((entry >= shift)[None, :], scores, float("-inf"))
    higher = gl.maximum(top, gl.max(scores, 1) * scale)
    shrink = gl.exp2(top - higher)
    share = gl.exp2(scores * scale - higher[:, None])
    total = total * shrink + gl.sum(share, 1)
    share = gl.convert_layout(share.to(keys.dtype), gl.DotOperandLayout(operand_index=0, parent=mma, k_width=2))
    mixed = warpgroup_mma(share, ring.value_blocks.index(stage).reshape([BLOCK, DIM]), mixed * shrink[:, None])
    mbarrier.arrive(ring.free.index(stage), count=1)
    return higher, total, mixed


@gluon.jit
def _tile(
    WHICH: gl.constexpr, asked, queries, ring, work, result, scale, HEADS: gl.constexpr, SPLITS: gl.constexpr
):  # fmt: skip
    """64 rows of the frame, from 64 · WHICH on."""
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    top = gl.full([BLOCK], NOTHING, gl.float32, layout=gl.SliceLayout(1, mma))
    total = gl.full([BLOCK], 0.0, gl.float32, layout=gl.SliceLayout(1, mma))
    mixed = gl.full([BLOCK, DIM], 0.0, gl.float32, layout=mma)
    none = gl.full([BLOCK, BLOCK], 0.0, gl.float32, layout=mma)
    mine = queries.index(WHICH)
    mbarrier.wait(asked, 0)
    for block in range(work.begin, gl.minimum(work.end, work.full)):
        top, total, mixed = _fold(mine, ring, block - work.begin, 0, top, total, mixed, none, scale, MASKED=False)
    for block in range(gl.maximum(work.begin, work.full), work.end):
        shift = _shift(work, block)
        top, total, mixed = _fold(mine, ring, block - work.begin, shift, top, total, mixed, none, scale, MASKED=True)
    row = WHICH * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, mma))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, mma))
    _keep(result, work, row, dim, top, total, mixed, HEADS, SPLITS, 1)


@gluon.jit
def _spare_scores(spare, ring, work, block, none):
    """Keys of a block with the spare rows [64, 8], masked."""
    step = block - work.begin
    stage = step % STAGES
    mbarrier.wait(ring.ready.index(stage), step // STAGES & 1)
    scores = warpgroup_mma(
        ring.key_blocks.index(stage).reshape([BLOCK, DIM]), spare.permute((1, 0)), none, use_acc=False
    )
    entry = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, none.type.layout))
    return gl.where((entry >= _shift(work, block))[:, None], scores, float("-inf"))


@gluon.jit
def _spare(
    asked, spare, shares, data, table, ring, work, result, scale, pages, entries, until,
    HEADS: gl.constexpr, SPLITS: gl.constexpr, APPEND: gl.constexpr,
):  # fmt: skip
    """The rows of the frame from 256 on. Own blocks before block `until` become entries, own row 0 entry `entries`."""
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16])
    top = gl.full([SPARE], NOTHING, gl.float32, layout=gl.SliceLayout(0, mma))
    totals = gl.full([BLOCK, SPARE], 0.0, gl.float32, layout=mma)
    mixed = gl.full([DIM, SPARE], 0.0, gl.float32, layout=mma)
    none = gl.full([BLOCK, SPARE], 0.0, gl.float32, layout=mma)
    mbarrier.wait(asked, 0)
    pairs = (work.end - work.begin) // 2
    for pair in range(pairs):  # two blocks at once: the warps have to agree on a maximum half as often
        block = work.begin + pair * 2
        one = _spare_scores(spare, ring, work, block, none)
        two = _spare_scores(spare, ring, work, block + 1, none)
        higher = gl.maximum(top, gl.max(gl.maximum(one, two), 0) * scale)
        shrink = gl.exp2(top - higher)
        one = gl.exp2(one * scale - higher[None, :])
        two = gl.exp2(two * scale - higher[None, :])
        totals = totals * shrink[None, :] + one + two
        top = higher
        shares.index(0).permute((1, 0)).store(one.to(spare.dtype))
        shares.index(1).permute((1, 0)).store(two.to(spare.dtype))
        fence_async_shared()
        stage = pair * 2 % STAGES
        some = ring.value_blocks.index(stage).reshape([BLOCK, DIM]).permute((1, 0))
        others = ring.value_blocks.index(stage + 1).reshape([BLOCK, DIM]).permute((1, 0))
        mixed = warpgroup_mma(some, shares.index(0).permute((1, 0)), mixed * shrink[None, :], is_async=True)
        mixed = warpgroup_mma(others, shares.index(1).permute((1, 0)), mixed, is_async=True)
        mixed = warpgroup_mma_wait(0, deps=(mixed,))
        if APPEND:
            _append(data, table, ring, work, block, pages, entries, until, HEADS)
            _append(data, table, ring, work, block + 1, pages, entries, until, HEADS)
        mbarrier.arrive(ring.free.index(stage), count=1)
        mbarrier.arrive(ring.free.index(stage + 1), count=1)
    for block in range(work.begin + pairs * 2, work.end):
        one = _spare_scores(spare, ring, work, block, none)
        higher = gl.maximum(top, gl.max(one, 0) * scale)
        shrink = gl.exp2(top - higher)
        one = gl.exp2(one * scale - higher[None, :])
        totals = totals * shrink[None, :] + one
        top = higher
        shares.index(0).permute((1, 0)).store(one.to(spare.dtype))
        fence_async_shared()
        stage = (block - work.begin) % STAGES
        some = ring.value_blocks.index(stage).reshape([BLOCK, DIM]).permute((1, 0))
        mixed = warpgroup_mma(some, shares.index(0).permute((1, 0)), mixed * shrink[None, :])
        if APPEND:
            _append(data, table, ring, work, block, pages, entries, until, HEADS)
        mbarrier.arrive(ring.free.index(stage), count=1)
    row = 4 * BLOCK + gl.arange(0, SPARE, layout=gl.SliceLayout(0, mma))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(1, mma))
    _keep(result, work, row, dim, top, gl.sum(totals, 0), mixed, HEADS, SPLITS, 0)


@gluon.jit
def _append(data, table, ring, work, block, pages, entries, until, HEADS: gl.constexpr):
    """A block, if it is an own one before `until`, goes to the pages of the context."""
    if block >= work.whole and block < until and not _of_context(work, block):
        first = entries + _own_row(work, block)
        stage = (block - work.begin) % STAGES
        _put(data, table, ring.key_blocks.index(stage), work.head * pages, first)
        _put(data, table, ring.value_blocks.index(stage), (HEADS + work.head) * pages, first)


@gluon.jit
def _put(data, table, block, pages, first):
    """A block of keys or values becomes the entries from `first` on; those of the head begin at page `pages` of data."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    entry = first + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, spread))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, spread))
    page = pages + gl.load(table + entry // BLOCK)
    place = (page * BLOCK + entry % BLOCK).to(gl.int64)[:, None] * DIM + dim[None, :]
    gl.store(data + place, block.reshape([BLOCK, DIM]).load(spread))


@gluon.jit
def _keep(
    result, work, row, dim, top, total, mixed,
    HEADS: gl.constexpr, SPLITS: gl.constexpr, ACROSS: gl.constexpr,
):  # fmt: skip
    """Rows `row` of the result, or of its part if there are several. `dim` lies across: along axis ACROSS of mixed."""
    out, part, weight, all_rows = result
    at = (work.request * work.rows + row) * HEADS + work.head
    there = gl.expand_dims(row < work.rows, ACROSS)
    if SPLITS == 1:
        place = gl.expand_dims(at, ACROSS) * DIM + gl.expand_dims(dim, 1 - ACROSS)
        mean = mixed / gl.expand_dims(total, ACROSS)
        gl.store(out + place, mean.to(out.dtype.element_ty), mask=there)
    else:
        at += gl.program_id(1) * all_rows * HEADS
        place = gl.expand_dims(at, ACROSS).to(gl.int64) * DIM + gl.expand_dims(dim, 1 - ACROSS)
        gl.store(part + place, mixed, mask=there)
        gl.store(weight + at * 2, top, mask=row < work.rows)
        gl.store(weight + at * 2 + 1, total, mask=row < work.rows)


@gluon.jit
def attend_frame(
    data,
    asking,  # q as blocks of 64 rows of a head, and of 8
    asking_spare,
    paged,  # data as [2 · heads · pages, 64, 64], in pages
    own_k,  # k and v as [requests, rows, heads · 64], in 64 rows of a head
    own_v,
    table,
    length,
    active,
    out,
    part,
    weight,
    scale,  # times log2(e), above 0
    rows,
    all_rows,
    pages,
    table_row,
    HEADS: gl.constexpr,
    SPLITS: gl.constexpr,
    MASKED: gl.constexpr,
    APPEND: gl.constexpr,
):
    """All rows of one head of one request over one share of its blocks (context, then own rows)."""
    request = gl.program_id(0) // HEADS
    head = gl.program_id(0) % HEADS
    entries = gl.load(length + request)
    live = True
    if MASKED:
        live = gl.load(active + request) != 0
        entries = gl.where(live, entries, 0)
    whole = entries // BLOCK
    full = whole + rows // BLOCK
    hidden = whole * BLOCK - entries
    hidden = gl.where(hidden < 0, hidden + BLOCK, 0)
    missing = (rows // BLOCK + 1) * BLOCK - rows
    blocks = full + gl.where(hidden > 0, 2, 1)
    share = gl.cdiv(blocks, SPLITS)
    begin = gl.program_id(1) * share
    end = gl.maximum(gl.minimum(begin + share, blocks), begin + 1)  # a share of nothing is one masked block
    work = Work(request, head, begin, end, whole, full, blocks, hidden, missing, rows)
    until = gl.where(live, blocks, 0)
    table += request * table_row
    result = (out, part, weight, all_rows)

    keys = gl.allocate_shared_memory(paged.dtype, [STAGES, 1, BLOCK, DIM], paged.layout)
    values = gl.allocate_shared_memory(paged.dtype, [STAGES, 1, BLOCK, DIM], paged.layout)
    queries = gl.allocate_shared_memory(paged.dtype, [4, BLOCK, DIM], asking.layout)
    spare = gl.allocate_shared_memory(paged.dtype, [SPARE, DIM], asking_spare.layout)
    shares = gl.allocate_shared_memory(paged.dtype, [2, SPARE, BLOCK], asking_spare.layout)
    asked = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(asked, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=5)
    fence_async_shared()
    mbarrier.expect(asked, 4 * asking.block_type.nbytes + asking_spare.block_type.nbytes)
    for which in gl.static_range(4):
        row = request * rows + which * BLOCK
        tma.async_copy_global_to_shared(asking, [row, head * DIM], asked, queries.index(which))
    tma.async_copy_global_to_shared(asking_spare, [request * rows + 4 * BLOCK, head * DIM], asked, spare)
    ring = Ring(keys, values, ready, free)
    gl.warp_specialize(
        [
            (_tile, (0, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (1, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (2, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (3, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (
                _spare,
                (asked, spare, shares, data, table, ring, work, result, scale, pages, entries, until, HEADS, SPLITS, APPEND),
            ),
            (_fetch, (paged, own_k, own_v, table, ring, work, pages, HEADS)),
        ],
        [4, 4, 4, 4, 1],
        [TILE_REGISTERS, TILE_REGISTERS, TILE_REGISTERS, SPARE_REGISTERS, FETCH_REGISTERS],
    )  # fmt: skip
