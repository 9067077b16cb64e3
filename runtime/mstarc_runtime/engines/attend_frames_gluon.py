"""Attention of frames over paged contexts on Hopper: one program takes all rows of a head, so that keys are read once.

A frame is 257 to 264 rows that all see the context and each other: 256 in four tiles of 64, and up to 8 spare ones. The warps of a
program are parted (warp specialisation); only shared memory and its barriers join them:

    fetch     1 warp: brings blocks of 64 keys and values into a ring of STAGES by the copy engine (TMA)
    tile 0-3  4 warps each: scores of 64 rows, online softmax in base 2, mix; while one computes exponentials, others multiply
    spare     4 warps: the same for the spare rows, with both products transposed (rows of a product come in 64, columns in 8); blocks
              of own rows go from the ring to the pages

A block is a page of the context or 64 own rows. What fills a block in part, fills its end: it is fetched from as many places before
its begin (`shift`), where the copy engine finds nothing and writes zeros, or own rows that are known already. So what lies beyond a
context's length is never loaded; the first `shift` entries are masked.

Shapes: data [2 · heads, slots, 64] (keys of all heads, then values), q, k, v [requests · rows, heads, 64], each head with its own keys.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from mstarc_runtime.engines.attend_rows_triton import join_rows

ROWS_MIN, ROWS_MAX = 257, 264
BLOCK = gl.constexpr(64)  # rows of a tile, entries of a block and of a page
DIM = gl.constexpr(64)
SPARE = gl.constexpr(8)
STAGES = gl.constexpr(4)
TILE_REGISTERS, SPARE_REGISTERS, FETCH_REGISTERS = gl.constexpr(96), gl.constexpr(56), gl.constexpr(24)
NOTHING = gl.constexpr(-1.0e30)  # a maximum of no scores: finite, so that differences of two are numbers
OVERHEAD = 4  # blocks in whose time a program begins and ends
SPLITS_MAX = 8
JOINED = 16  # rows x heads that one program joins


@gluon.jit
def _shift(block, blocks, context, hidden, missing):
    """Entries at the start of a block that are masked: `hidden` of the last page, `missing` of the last own block; all of none."""
    shift = gl.where(block == context - 1, hidden, 0)
    shift = gl.where(block == blocks - 1, missing, shift)
    return gl.where(block >= blocks, BLOCK, shift)


@gluon.jit
def _fetch(paged, own_k, own_v, table, ring, work, pages, HEADS: gl.constexpr):
    """Bring every block of keys and values into the ring, as soon as a stage is free."""
    keys, values, ready, free = ring
    request, head, begin, end, blocks, context, hidden, missing = work
    page = gl.load(table + begin, mask=begin < context, other=0)
    for block in range(begin, end):
        step = block - begin
        stage = step % STAGES
        shift = _shift(block, blocks, context, hidden, missing)
        mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(ready.index(stage), 2 * paged.block_type.nbytes)
        if block < context:
            row = head * pages + page
            tma.async_copy_global_to_shared(paged, [row, -shift, 0], ready.index(stage), keys.index(stage))
            row += HEADS * pages
            tma.async_copy_global_to_shared(paged, [row, -shift, 0], ready.index(stage), values.index(stage))
            page = gl.load(table + block + 1, mask=block + 1 < context, other=0)
        else:
            row = (block - context) * BLOCK - shift
            tma.async_copy_global_to_shared(own_k, [request, row, head * DIM], ready.index(stage), keys.index(stage))
            tma.async_copy_global_to_shared(own_v, [request, row, head * DIM], ready.index(stage), values.index(stage))


@gluon.jit
def _tile(
    WHICH: gl.constexpr,
    asked,
    queries,
    ring,
    work,
    result,
    scale,
    HEADS: gl.constexpr,
    SPLITS: gl.constexpr,
):
    """64 rows of the frame, from 64 · WHICH on."""
    keys, values, ready, free = ring
    request, head, begin, end, blocks, context, hidden, missing = work
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 64, 16])
    entry = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, mma))
    top = gl.full([BLOCK], NOTHING, gl.float32, layout=gl.SliceLayout(1, mma))
    total = gl.full([BLOCK], 0.0, gl.float32, layout=gl.SliceLayout(1, mma))
    mixed = gl.full([BLOCK, DIM], 0.0, gl.float32, layout=mma)
    none = gl.full([BLOCK, BLOCK], 0.0, gl.float32, layout=mma)
    mbarrier.wait(asked, 0)
    for block in range(begin, end):
        step = block - begin
        stage = step % STAGES
        mbarrier.wait(ready.index(stage), step // STAGES & 1)
        some_keys = keys.index(stage).reshape([BLOCK, DIM]).permute((1, 0))
        scores = warpgroup_mma(queries.index(WHICH), some_keys, none, use_acc=False)
        shift = _shift(block, blocks, context, hidden, missing)
        if shift > 0:
            scores = gl.where((entry >= shift)[None, :], scores, float("-inf"))
        higher = gl.maximum(top, gl.max(scores, 1) * scale)
        shrink = gl.exp2(top - higher)
        share = gl.exp2(scores * scale - higher[:, None])
        total = total * shrink + gl.sum(share, 1)
        top = higher
        share = gl.convert_layout(share.to(keys.dtype), gl.DotOperandLayout(operand_index=0, parent=mma, k_width=2))
        mixed = warpgroup_mma(share, values.index(stage).reshape([BLOCK, DIM]), mixed * shrink[:, None])
        mbarrier.arrive(free.index(stage), count=1)
    row = WHICH * BLOCK + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, mma))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, mma))
    _keep(result, request, head, row, dim, top, total, mixed, HEADS, SPLITS, 1)


@gluon.jit
def _spare(
    asked,
    spare,
    weights,
    data,
    table,
    ring,
    work,
    result,
    scale,
    pages,
    entries,
    until,
    HEADS: gl.constexpr,
    SPLITS: gl.constexpr,
    APPEND: gl.constexpr,
):
    """The rows of the frame from 256 on. Blocks [context, until) are own rows that become entries from `entries` on."""
    keys, values, ready, free = ring
    request, head, begin, end, blocks, context, hidden, missing = work
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16])
    entry = gl.arange(0, BLOCK, layout=gl.SliceLayout(1, mma))
    top = gl.full([SPARE], NOTHING, gl.float32, layout=gl.SliceLayout(0, mma))
    total = gl.full([SPARE], 0.0, gl.float32, layout=gl.SliceLayout(0, mma))
    mixed = gl.full([DIM, SPARE], 0.0, gl.float32, layout=mma)
    none = gl.full([BLOCK, SPARE], 0.0, gl.float32, layout=mma)
    mbarrier.wait(asked, 0)
    for block in range(begin, end):
        step = block - begin
        stage = step % STAGES
        shift = _shift(block, blocks, context, hidden, missing)
        mbarrier.wait(ready.index(stage), step // STAGES & 1)
        if APPEND and block >= context and block < until:
            first = entries + (block - context) * BLOCK - shift
            _append(data, table, keys.index(stage), head * pages, first)
            _append(data, table, values.index(stage), (HEADS + head) * pages, first)
        some_keys = keys.index(stage).reshape([BLOCK, DIM])
        scores = warpgroup_mma(some_keys, spare.permute((1, 0)), none, use_acc=False)
        scores = gl.where((entry >= shift)[:, None], scores, float("-inf"))
        higher = gl.maximum(top, gl.max(scores, 0) * scale)
        shrink = gl.exp2(top - higher)
        share = gl.exp2(scores * scale - higher[None, :])
        total = total * shrink + gl.sum(share, 0)
        top = higher
        weights.permute((1, 0)).store(share.to(keys.dtype))
        fence_async_shared()
        some_values = values.index(stage).reshape([BLOCK, DIM]).permute((1, 0))
        mixed = warpgroup_mma(some_values, weights.permute((1, 0)), mixed * shrink[None, :])
        mbarrier.arrive(free.index(stage), count=1)
    row = 4 * BLOCK + gl.arange(0, SPARE, layout=gl.SliceLayout(0, mma))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(1, mma))
    _keep(result, request, head, row, dim, top, total, mixed, HEADS, SPLITS, 0)


@gluon.jit
def _append(data, table, block, pages, first):
    """A block of own keys or values becomes the entries from `first` on; a head's pages begin at page `pages` of data."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    entry = first + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, spread))
    dim = gl.arange(0, DIM, layout=gl.SliceLayout(0, spread))
    page = pages + gl.load(table + entry // BLOCK)
    place = (page * BLOCK + entry % BLOCK).to(gl.int64)[:, None] * DIM + dim[None, :]
    gl.store(data + place, block.reshape([BLOCK, DIM]).load(spread))


@gluon.jit
def _keep(
    result,
    request,
    head,
    row,
    dim,
    top,
    total,
    mixed,
    HEADS: gl.constexpr,
    SPLITS: gl.constexpr,
    ACROSS: gl.constexpr,
):
    """Rows `row` of the result, or of its part if there are several. `dim` lies across: along axis ACROSS of mixed."""
    out, part, weight, rows, all_rows, split = result
    at = (request * rows + row) * HEADS + head
    there = gl.expand_dims(row < rows, ACROSS)
    if SPLITS == 1:
        place = gl.expand_dims(at, ACROSS) * DIM + gl.expand_dims(dim, 1 - ACROSS)
        mean = mixed / gl.expand_dims(total, ACROSS)
        gl.store(out + place, mean.to(out.dtype.element_ty), mask=there)
    else:
        at += split * all_rows * HEADS
        place = gl.expand_dims(at, ACROSS).to(gl.int64) * DIM + gl.expand_dims(dim, 1 - ACROSS)
        gl.store(part + place, mixed, mask=there)
        gl.store(weight + at * 2, top, mask=row < rows)
        gl.store(weight + at * 2 + 1, total, mask=row < rows)


@gluon.jit
def _attend_frame(
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
    context = gl.cdiv(entries, BLOCK)
    blocks = context + gl.cdiv(rows, BLOCK)
    share = gl.cdiv(blocks, SPLITS)
    split = gl.program_id(1)
    begin = split * share
    end = gl.maximum(gl.minimum(begin + share, blocks), begin + 1)  # a share of nothing is one masked block
    work = (request, head, begin, end, blocks, context, context * BLOCK - entries, (blocks - context) * BLOCK - rows)
    until = gl.where(live, blocks, 0)
    table += request * table_row
    result = (out, part, weight, rows, all_rows, split)

    keys = gl.allocate_shared_memory(paged.dtype, [STAGES, 1, BLOCK, DIM], paged.layout)
    values = gl.allocate_shared_memory(paged.dtype, [STAGES, 1, BLOCK, DIM], paged.layout)
    queries = gl.allocate_shared_memory(paged.dtype, [4, BLOCK, DIM], asking.layout)
    spare = gl.allocate_shared_memory(paged.dtype, [SPARE, DIM], asking_spare.layout)
    weights = gl.allocate_shared_memory(paged.dtype, [SPARE, BLOCK], asking_spare.layout)
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
    ring = (keys, values, ready, free)
    gl.warp_specialize(
        [
            (_tile, (0, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (1, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (2, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (_tile, (3, asked, queries, ring, work, result, scale, HEADS, SPLITS)),
            (
                _spare,
                (
                    asked,
                    spare,
                    weights,
                    data,
                    table,
                    ring,
                    work,
                    result,
                    scale,
                    pages,
                    entries,
                    until,
                    HEADS,
                    SPLITS,
                    APPEND,
                ),
            ),
            (_fetch, (paged, own_k, own_v, table, ring, work, pages, HEADS)),
        ],
        [4, 4, 4, 4, 1],
        [TILE_REGISTERS, TILE_REGISTERS, TILE_REGISTERS, SPARE_REGISTERS, FETCH_REGISTERS],
    )


def takes(data: Tensor, q: Tensor, k: Tensor, v: Tensor, rows: int, page_size: int, scale: float) -> bool:
    """Whether `attend_frames` can and pays: several frames of as many rows as a program takes, 16-bit, on a Hopper GPU."""
    heads, dim = q.shape[1:]
    return (
        ROWS_MIN <= rows <= ROWS_MAX < len(q)
        and (dim, page_size, scale > 0) == (DIM.value, BLOCK.value, True)
        and data.shape[0] == 2 * heads
        and q.dtype == k.dtype == v.dtype == data.dtype
        and data.dtype in (torch.bfloat16, torch.float16)
        and data.is_contiguous()
        and all(x.stride()[1:] == (dim, 1) and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in (q, k, v))
        and torch.cuda.get_device_capability(data.device)[0] == 9
    )


def attend_frames(
    data: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    length: Tensor,
    active: Tensor | None,
    *,
    rows: int,
    append: bool,
    scale: float,
    programs: int,
) -> Tensor:
    """As `attend_triton.attend_slots` with full attention, where `takes` says so. `scale` is in base 2; `programs` run at once."""
    all_rows, heads, dim = q.shape
    requests, width = len(length), heads * dim
    splits = _splits(requests * heads, triton.cdiv(rows, BLOCK.value) + table.shape[1], programs)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    part = weight = out
    if splits > 1:
        part = torch.empty((splits, all_rows, heads, dim), dtype=torch.float32, device=q.device)
        weight = torch.empty((splits, all_rows, heads, 2), dtype=torch.float32, device=q.device)
    flat = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    deep = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    block = [1, BLOCK.value, dim]
    pages = data.shape[1] // BLOCK.value
    frames = [requests, rows, width]
    _attend_frame[(requests * heads, splits)](
        data,
        TensorDescriptor(q, [all_rows, width], [q.stride(0), 1], block[1:], flat),
        TensorDescriptor(q, [all_rows, width], [q.stride(0), 1], [SPARE.value, dim], flat),
        TensorDescriptor(data, [2 * heads * pages, BLOCK.value, dim], [BLOCK.value * dim, dim, 1], block, deep),
        TensorDescriptor(k, frames, [rows * k.stride(0), k.stride(0), 1], block, deep),
        TensorDescriptor(v, frames, [rows * v.stride(0), v.stride(0), 1], block, deep),
        table,
        length,
        length if active is None else active,
        out,
        part,
        weight,
        scale,
        rows,
        all_rows,
        pages,
        table.stride(0),
        HEADS=heads,
        SPLITS=splits,
        MASKED=active is not None,
        APPEND=append,
        num_warps=4,
    )
    if splits > 1:
        join_rows[(triton.cdiv(all_rows * heads, JOINED),)](
            part, weight, out, all_rows * heads, DIM=dim, BLOCK=JOINED, SPLITS=splits, num_warps=4
        )
    return out


def _splits(frames: int, blocks: int, programs: int) -> int:
    """Shares of the blocks of a head, so that the last of the programs ends soonest. Joining costs about what two blocks do."""
    return min(
        range(1, SPLITS_MAX + 1),
        key=lambda n: triton.cdiv(frames * n, programs) * (triton.cdiv(blocks, n) + OVERHEAD) + 2 * (n > 1),
    )
