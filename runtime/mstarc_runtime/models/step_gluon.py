"""The products of `step_triton` for 16-bit weights on Hopper, in Gluon, where a kernel says itself when which weights are fetched.

A program keeps a ring of STAGES blocks of weights in shared memory. Before it waits for the kernel before, it asks for all of them
(`early_triton`), so that memory stays busy while that one ends. Then it takes block after block, and asks for the next in the place of
the one that it used last. Two programs share a multiprocessor, and so many should be launched: a kernel that starts early takes what
room there is, and where that is uneven some multiprocessors get more work than others.

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
from mstarc_runtime.models.step_triton import IN, OUT, Stream, f32

STAGES = 4


@gluon.jit
def _rows_of(tile, member, OUTS: gl.constexpr, GATED: gl.constexpr):
    """The weight's rows of a tile, i64; if GATED a first half of gates, and a second of what they are multiplied with."""
    if GATED:
        found = tile * 32 + member % 32 + gl.where(member < 32, 0, OUTS // 2)
    else:
        found = tile * 64 + member
    return found.to(gl.int64)


@gluon.jit
def _sums(
    x,
    weight,
    rows,
    OUTS: gl.constexpr,
    INS: gl.constexpr,
    PARTS: gl.constexpr,
    GATED: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    EARLY: gl.constexpr,
):
    """A program's tile of outputs over its part of the inputs, f32 [64, ROWS]."""
    dtype: gl.constexpr = weight.dtype.element_ty
    lanes: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    if EARLY:
        gdc_launch_dependents()
    blocks: gl.constexpr = INS // 128
    tile, part = gl.program_id(0) // PARTS, gl.program_id(0) % PARTS
    low = part * blocks // PARTS
    count = (part + 1) * blocks // PARTS - low
    col = gl.arange(0, 128, layout=gl.SliceLayout(0, lanes))[None, :] + low * 128
    own = weight + _rows_of(tile, gl.arange(0, 64, layout=gl.SliceLayout(1, lanes)), OUTS, GATED)[:, None] * INS + col
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, lanes))[:, None]
    theirs = x + row * INS + col
    there = row < rows
    ring = gl.allocate_shared_memory(dtype, [STAGES, 64, 128], swizzled)
    ring_x = gl.allocate_shared_memory(dtype, [STAGES, ROWS, 128], swizzled)
    for stage in gl.static_range(STAGES):
        if stage < count:
            async_copy.async_copy_global_to_shared(ring.index(stage), own + stage * 128, eviction_policy="evict_first")
        async_copy.commit_group()
    if EARLY:
        gdc_wait()
    for stage in gl.static_range(STAGES):
        if stage < count:
            async_copy.async_copy_global_to_shared(ring_x.index(stage), theirs + stage * 128, mask=there)
        async_copy.commit_group()
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
            async_copy.async_copy_global_to_shared(ring_x.index(last), theirs + following * 128, mask=there)
        async_copy.commit_group()
        sums = warpgroup_mma(ring.index(slot), ring_x.index(slot).permute([1, 0]), sums)
        last = slot
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)
    async_copy.wait_group(0)
    return sums


@gluon.jit
def _factor(squares, rows, eps, INS: gl.constexpr, ROWS: gl.constexpr, TILES: gl.constexpr, TILES_PAD: gl.constexpr):
    """1 / sqrt(mean(x²) + eps) of each row, f32 [1, ROWS] in the epilogue's layout."""
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    read: gl.constexpr = gl.BlockedLayout([1, TILES_PAD // 32], [1, 32], [4, 1], [1, 0])
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, read))
    tile = gl.arange(0, TILES_PAD, layout=gl.SliceLayout(0, read))
    there = (row < rows)[:, None] & (tile < TILES)[None, :]
    some = gl.load(squares + row[:, None] * TILES + tile[None, :], mask=there, other=0.0)
    mean = gl.sum(some, 1) / INS
    return gl.convert_layout(gl.rsqrt(mean + eps), gl.SliceLayout(0, epilogue))[None, :]


@gluon.jit(do_not_specialize=["rows"])
def _parts_product(
    x,
    weight,
    squares,
    out,
    rows,
    eps,
    OUTS: gl.constexpr,
    INS: gl.constexpr,
    PARTS: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    TILES: gl.constexpr,
    TILES_PAD: gl.constexpr,
    EARLY: gl.constexpr,
):
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    sums = _sums(x, weight, rows, OUTS, INS, PARTS, False, STAGES, ROWS, EARLY)
    sums = gl.convert_layout(sums, epilogue) * _factor(squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    tile, part = gl.program_id(0) // PARTS, gl.program_id(0) % PARTS
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, epilogue))[None, :]
    col = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, epilogue))[:, None]
    place = (part * rows + row).to(gl.int64) * OUTS + col
    gl.store(out + place, sums, mask=row < rows)


@gluon.jit(do_not_specialize=["rows"])
def _gated_product(
    x,
    weight,
    squares,
    out,
    rows,
    eps,
    OUTS: gl.constexpr,
    INS: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    TILES: gl.constexpr,
    TILES_PAD: gl.constexpr,
    EARLY: gl.constexpr,
):
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    half: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    sums = _sums(x, weight, rows, OUTS, INS, 1, True, STAGES, ROWS, EARLY)
    sums = gl.convert_layout(sums, epilogue) * _factor(squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    both = gl.allocate_shared_memory(gl.float32, [64, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0, 1]))
    both.store(sums)
    gl.thread_barrier()
    gate, up = both.slice(0, 32).load(half), both.slice(32, 32).load(half)
    mixed = gate / (1.0 + gl.exp(-gate)) * up
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, half))[None, :]
    col = gl.program_id(0) * 32 + gl.arange(0, 32, layout=gl.SliceLayout(1, half))[:, None]
    gl.store(out + row * (OUTS // 2) + col, mixed.to(out.dtype.element_ty), mask=row < rows)


@gluon.jit(do_not_specialize=["rows"])
def _add_product(
    x,
    weight,
    residual,
    norm,
    out,
    squares,
    parts,
    arrived,
    rows,
    OUTS: gl.constexpr,
    INS: gl.constexpr,
    PARTS: gl.constexpr,
    STAGES: gl.constexpr,
    ROWS: gl.constexpr,
    EARLY: gl.constexpr,
):
    epilogue: gl.constexpr = gl.BlockedLayout([2, 1], [32, 1], [1, 4], [0, 1])
    sums = gl.convert_layout(_sums(x, weight, rows, OUTS, INS, PARTS, False, STAGES, ROWS, EARLY), epilogue)
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


def runs_on(weight: Tensor) -> bool:
    """Whether these kernels are for the weight [outs, ins] and its device. An input cut into no parts has to fill the ring."""
    if weight.dtype != torch.bfloat16 or not weight.is_cuda or weight.shape[1] < STAGES * IN:
        return False
    return torch.cuda.get_device_capability(weight.device)[0] == 9


def parts_product(stream: Stream, weight: Tensor, eps: float, parts: int) -> Tensor:
    """See `step_triton.parts_product`."""
    rows, (outs, tiles) = len(stream.scaled), (len(weight), stream.squares.shape[1])
    out = f32(weight, parts, rows, outs)
    _parts_product[(outs // OUT * parts,)](
        stream.scaled,
        weight,
        stream.squares,
        out,
        rows,
        eps,
        PARTS=parts,
        TILES=tiles,
        TILES_PAD=max(32, triton.next_power_of_2(tiles)),
        **_options(weight, rows),
    )
    return out


def gated_product(stream: Stream, weight: Tensor, eps: float) -> Tensor:
    """See `step_triton.gated_product`."""
    rows, (outs, tiles) = len(stream.scaled), (len(weight), stream.squares.shape[1])
    out = weight.new_empty(rows, outs // 2)
    _gated_product[(outs // OUT,)](
        stream.scaled,
        weight,
        stream.squares,
        out,
        rows,
        eps,
        TILES=tiles,
        TILES_PAD=max(32, triton.next_power_of_2(tiles)),
        **_options(weight, rows),
    )
    return out


def add_product(stream: Stream, x: Tensor, weight: Tensor, norm: Tensor, arrived: Tensor, parts: int) -> Stream:
    """See `step_triton.add_product`."""
    rows, outs, tiles = len(x), len(weight), len(weight) // OUT
    after = Stream(stream.residual, weight.new_empty(rows, outs), f32(weight, rows, tiles))
    _add_product[(tiles * parts,)](
        x,
        weight,
        stream.residual,
        norm,
        after.scaled,
        after.squares,
        f32(weight, parts, rows, outs),
        arrived,
        rows,
        PARTS=parts,
        **_options(weight, rows),
    )
    return after


def _options(weight: Tensor, rows: int) -> dict[str, Any]:
    outs, ins = weight.shape
    return {
        "OUTS": outs,
        "INS": ins,
        "STAGES": STAGES,
        "ROWS": max(16, triton.next_power_of_2(rows)),
        "num_warps": 4,
        **early(weight.device),
    }
