"""The products of `step_triton` for 16-bit weights on Hopper, in Gluon, where a kernel says itself when which weights are fetched.

A program keeps a ring of STAGES blocks of weights in shared memory. Before it waits for the kernel before, it asks for all of them
(`early_triton`), so that memory stays busy while that one ends. Then it takes block after block, and asks for the next in the place of
the one that it used last. Two programs share a multiprocessor, and so many should be launched: a kernel that starts early takes what
room there is, and where that is uneven some multiprocessors get more work than others. So a ring is as long as two programs have room for.

A copy belongs to a group, and groups end in their order: the blocks of weights of the ring, their rows, then a block with its rows each.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstarc_runtime.engines.early_triton import early
from mstarc_runtime.models.step_products import IN, Products

STAGES_MIN = 4
SHARED = 227 << 10  # bytes that the programs of a multiprocessor share
ATTENTION = 36 << 10  # of them for a program of attention
SHARES_STAGES = 3  # two such programs leave room for one of the gated product


@gluon.jit
def _rows_of(tile, member, OUTS: gl.constexpr, GATED: gl.constexpr):
    """The weight's rows of a tile, i64; if GATED a first half of gates, and a second of what they are multiplied with."""
    if GATED:
        found = tile * 32 + member % 32 + gl.where(member < 32, 0, OUTS // 2)
    else:
        found = tile * 64 + member
    return found.to(gl.int64)


@gluon.jit
def _opened(
    weight,
    OUTS: gl.constexpr, INS: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr,
    STAGES: gl.constexpr, EARLY: gl.constexpr, AFTER_WAIT: gl.constexpr,
):  # fmt: skip
    """A program's beginning, up to the end of its wait: the ring, pointers to its weights [64, 128] of the first block, and which block
    of inputs that is and how many it takes. AFTER_WAIT: the next kernel may begin then, not at once."""
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    if EARLY and not AFTER_WAIT:
        gdc_launch_dependents()
    blocks: gl.constexpr = INS // 128
    tile, part = gl.program_id(0) // PARTS, gl.program_id(0) % PARTS
    low = part * blocks // PARTS
    count = (part + 1) * blocks // PARTS - low
    col = gl.arange(0, 128, layout=gl.SliceLayout(0, lanes))[None, :] + low * 128
    own = weight + _rows_of(tile, gl.arange(0, 64, layout=gl.SliceLayout(1, lanes)), OUTS, GATED)[:, None] * INS + col
    ring = gl.allocate_shared_memory(weight.dtype.element_ty, [STAGES, 64, 128], swizzled)
    for stage in gl.static_range(STAGES):
        if stage < count:
            async_copy.async_copy_global_to_shared(ring.index(stage), own + stage * 128, eviction_policy="evict_first")
        async_copy.commit_group()
    if EARLY:
        gdc_wait()
        if AFTER_WAIT:
            gdc_launch_dependents()
    return ring, own, low, count


@gluon.jit
def _sums(opened, x, rows, INS: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr):
    """A program's tile of outputs over its part of the inputs, f32 [64, ROWS], from rows x [rows, INS]."""
    ring, own, low, count = opened
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, lanes))[:, None]
    there = row < rows
    theirs = x + row * INS + low * 128 + gl.arange(0, 128, layout=gl.SliceLayout(0, lanes))[None, :]
    ring_x = gl.allocate_shared_memory(ring.dtype, [STAGES, ROWS, 128], swizzled)
    for stage in gl.static_range(STAGES):
        if stage < count:
            async_copy.async_copy_global_to_shared(ring_x.index(stage), theirs + stage * 128, mask=there)
        async_copy.commit_group()
    return _loop(ring, own, count, ring_x, theirs, there, True, STAGES, ROWS)


@gluon.jit
def _sums_of_mixes(
    opened, mixed, tops, totals,
    INS: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """`_sums` of a single row, which is the mixes of its heads, from their shares (see `attend_step_triton.Shares`)."""
    ring, own, low, count = opened
    held: gl.constexpr = (INS // 128 + PARTS - 1) // PARTS
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    x_blocks = gl.allocate_shared_memory(ring.dtype, [held, ROWS, 128], swizzled)
    _mixes(x_blocks, mixed, tops, totals, low, count, SPLITS, held, ROWS)
    return _loop(ring, own, count, x_blocks, own, own, False, STAGES, ROWS)


@gluon.jit
def _mixes(x_blocks, mixed, tops, totals, low, count, SPLITS: gl.constexpr, HELD: gl.constexpr, ROWS: gl.constexpr):
    """The mixes of the single row's heads low..low+count-1 from their shares (`attend_step_triton.Shares`), a block of inputs each.

    Every row of x_blocks [HELD, ROWS, 128] gets them: nobody reads what becomes of the others.
    """
    padded: gl.constexpr = triton.next_power_of_2(SPLITS)
    columns: gl.constexpr = triton.next_power_of_2(HELD)
    lanes: gl.constexpr = gl.BlockedLayout([padded, 1], [1, 32], [1, 4], [1, 0])
    pairs: gl.constexpr = gl.BlockedLayout([1, 1], [16, 2], [1, 4], [0, 1])
    split = gl.arange(0, padded, layout=gl.SliceLayout(1, lanes))[:, None]
    dim = gl.arange(0, 128, layout=gl.SliceLayout(0, lanes))[None, :]
    shares = ()
    for block in gl.static_range(HELD):  # all are asked for before one is looked at
        place = ((low + block) * SPLITS + split) * 128 + dim
        some = gl.load(mixed + place, mask=(split < SPLITS) & (block < count), other=0.0)
        shares = shares + (some,)  # type: ignore[assignment]  # noqa: RUF005 (Gluon does not unpack)
    split = gl.arange(0, padded, layout=gl.SliceLayout(1, pairs))[:, None]
    block = gl.arange(0, columns, layout=gl.SliceLayout(0, pairs))[None, :]
    there = (split < SPLITS) & (block < count)
    total = gl.load(totals + (low + block) * SPLITS + split, mask=there, other=0.0)
    top = gl.load(tops + (low + block) * SPLITS + split, mask=there, other=float("-inf"))
    top = gl.where(total > 0, top, float("-inf"))
    factor = gl.exp2(top - gl.where(block < count, gl.max(top, 0)[None, :], 0.0))
    factor = factor / gl.where(block < count, gl.sum(total * factor, 0)[None, :], 1.0)
    factors = gl.allocate_shared_memory(gl.float32, [padded, columns], gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
    factors.store(factor)
    gl.thread_barrier()
    for block in gl.static_range(HELD):
        mix = gl.sum(shares[block] * factors.slice(block, 1, dim=1).load(lanes), 0)
        rows = gl.zeros([ROWS, 128], gl.float32, layout=lanes) + mix[None, :]
        x_blocks.index(block).store(rows.to(x_blocks.dtype))
    fence_async_shared()


@gluon.jit
def _loop(
    ring, own, count, x_blocks, theirs, there,
    FETCHED: gl.constexpr, STAGES: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """The products of all blocks, summed, f32 [64, ROWS]. If FETCHED, rows are in a ring as weights are; else all are there."""
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sums = gl.zeros([64, ROWS], gl.float32, layout=product)
    slot, last = 0, STAGES - 1
    for block in range(count):
        async_copy.wait_group(STAGES - 2)
        gl.thread_barrier()
        fence_async_shared()
        following = block + (STAGES - 1)
        if (block > 0) & (following < count):
            async_copy.async_copy_global_to_shared(
                ring.index(last), own + following * 128, eviction_policy="evict_first"
            )
            if FETCHED:
                async_copy.async_copy_global_to_shared(x_blocks.index(last), theirs + following * 128, mask=there)
        async_copy.commit_group()
        x_block = x_blocks.index(slot if FETCHED else block)
        sums = warpgroup_mma(ring.index(slot), x_block.permute([1, 0]), sums)
        last = slot
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    async_copy.wait_group(0)
    return sums


@gluon.jit
def _squares(squares, rows, ROWS: gl.constexpr, TILES: gl.constexpr, TILES_PAD: gl.constexpr):
    """Each row's sums of squares, f32 [ROWS, TILES_PAD]."""
    read: gl.constexpr = gl.BlockedLayout([1, TILES_PAD // 32], [1, 32], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, read))
    tile = gl.arange(0, TILES_PAD, layout=gl.SliceLayout(0, read))
    there = (row < rows)[:, None] & (tile < TILES)[None, :]
    return gl.load(squares + row[:, None] * TILES + tile[None, :], mask=there, other=0.0)


@gluon.jit
def _normed(sums, squares, eps, INS: gl.constexpr):
    """Sums [64, ROWS] in the epilogue's layout, times 1 / sqrt(mean(x²) + eps) of their rows."""
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    factor = gl.rsqrt(gl.sum(squares, 1) / INS + eps)
    return gl.convert_layout(sums, epilogue) * gl.convert_layout(factor, gl.SliceLayout(0, epilogue))[None, :]


@gluon.jit(do_not_specialize=["rows"])
def _parts_product(
    x, weight, squares, out, rows, eps,
    OUTS: gl.constexpr, INS: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
    ROWS: gl.constexpr, TILES: gl.constexpr, TILES_PAD: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    # attention is the next kernel, and reads lengths and which rows are active before its wait
    opened = _opened(weight, OUTS, INS, PARTS, False, STAGES, EARLY, AFTER_WAIT=True)
    some = _squares(squares, rows, ROWS, TILES, TILES_PAD)
    sums = _normed(_sums(opened, x, rows, INS, STAGES, ROWS), some, eps, INS)
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    tile, part = gl.program_id(0) // PARTS, gl.program_id(0) % PARTS
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, epilogue))[None, :]
    col = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, epilogue))[:, None]
    place = (part * rows + row).to(gl.int64) * OUTS + col
    gl.store(out + place, sums, mask=row < rows)


@gluon.jit(do_not_specialize=["rows"])
def _gated_product(
    x, weight, squares, out, rows, eps,
    OUTS: gl.constexpr, INS: gl.constexpr, STAGES: gl.constexpr,
    ROWS: gl.constexpr, TILES: gl.constexpr, TILES_PAD: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    opened = _opened(weight, OUTS, INS, 1, True, STAGES, EARLY, AFTER_WAIT=False)
    some = _squares(squares, rows, ROWS, TILES, TILES_PAD)
    sums = _normed(_sums(opened, x, rows, INS, STAGES, ROWS), some, eps, INS)
    half: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    both = gl.allocate_shared_memory(gl.float32, [64, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
    both.store(sums)
    gl.thread_barrier()
    gate, up = both.slice(0, 32).load(half), both.slice(32, 32).load(half)
    mixed = gate / (1.0 + gl.exp(-gate)) * up
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, half))[None, :]
    col = gl.program_id(0) * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, half))[:, None]
    gl.store(out + row * (OUTS // 2) + col, mixed.to(out.dtype.element_ty), mask=row < rows)


@gluon.jit
def _add(
    sums, residual, norm, out, squares, parts, arrived, rows,
    OUTS: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Sums [64, ROWS] of a tile's part, added to the residual stream with those of the other parts."""
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    sums = gl.convert_layout(sums, epilogue)
    tile, part = gl.program_id(0) // PARTS, gl.program_id(0) % PARTS
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, epilogue))
    col = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, epilogue))
    there = (row < rows)[None, :]
    place = row[None, :] * OUTS + col[:, None]
    before = gl.load(residual + place, mask=there, other=0.0)
    scale = gl.load(norm + col).to(gl.float32)[:, None]
    last = True
    if PARTS > 1:
        gl.store(parts + part * rows * OUTS + place, sums, mask=there)
        gl.thread_barrier()
        last = gl.atomic_add(arrived + tile, 1, sem="acq_rel") == PARTS - 1
    if last:
        if PARTS > 1:
            gl.store(arrived + tile, 0)
            sums = gl.zeros([64, ROWS], gl.float32, layout=epilogue)
            for other in gl.static_range(PARTS):
                sums += gl.load(parts + other * rows * OUTS + place, mask=there, other=0.0, cache_modifier=".cg")
        whole = before + sums
        gl.store(residual + place, whole, mask=there)
        gl.store(squares + row * (OUTS // 64) + tile, gl.sum(whole * whole, 0), mask=row < rows)
        gl.store(out + place, (whole * scale).to(out.dtype.element_ty), mask=there)


@gluon.jit(do_not_specialize=["rows"])
def _add_product(
    x, weight, residual, norm, out, squares, parts, arrived, rows,
    OUTS: gl.constexpr, INS: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
    ROWS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    opened = _opened(weight, OUTS, INS, PARTS, False, STAGES, EARLY, AFTER_WAIT=False)
    sums = _sums(opened, x, rows, INS, STAGES, ROWS)
    _add(sums, residual, norm, out, squares, parts, arrived, rows, OUTS, PARTS, ROWS)


@gluon.jit
def _add_shares_product(
    mixed, tops, totals, weight, residual, norm, out, squares, parts, arrived,
    OUTS: gl.constexpr, INS: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr,
    ROWS: gl.constexpr, SPLITS: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    opened = _opened(weight, OUTS, INS, PARTS, False, STAGES, EARLY, AFTER_WAIT=False)
    sums = _sums_of_mixes(opened, mixed, tops, totals, INS, PARTS, STAGES, ROWS, SPLITS)
    _add(sums, residual, norm, out, squares, parts, arrived, 1, OUTS, PARTS, ROWS)


def runs_on(weight: Tensor) -> bool:
    """Whether these kernels are for the weight [outs, ins] and its device. An input cut into no parts has to fill the ring."""
    if weight.dtype != torch.bfloat16 or not weight.is_cuda or weight.shape[1] < STAGES_MIN * IN:
        return False
    return torch.cuda.get_device_capability(weight.device)[0] == 9


def _options(kernel: Any, weight: Tensor, rows: int) -> dict[str, Any]:
    """The ring is as long as there is room for in two programs, and beside them in a program of the next kernel where that waits for more
    than memory: attention, or while shares of it are read the gated product."""
    padded = max(8, triton.next_power_of_2(rows))
    stage = (64 + padded) * IN * 2
    stages = max(STAGES_MIN, (SHARED // 2 - 1024) // stage)
    if kernel is _parts_product:
        stages = max(STAGES_MIN, ((SHARED - ATTENTION) // 2 - 1024) // stage)
    elif kernel is _add_shares_product:
        stages = SHARES_STAGES
    return {"ROWS": padded, "STAGES": min(weight.shape[1] // IN, stages), "num_warps": 4, **early(weight.device)}


PRODUCTS = Products(_parts_product, _gated_product, _add_product, _options, _add_shares_product)
