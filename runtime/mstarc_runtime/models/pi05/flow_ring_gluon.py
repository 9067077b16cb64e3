"""Products of few rows inside one kernel on Hopper, in Gluon: weights come through a ring in shared memory that never waits for rows.

The warps of a program are parted. One asks the copy engine (TMA) for all that does not change in a step, weights and pages of the context,
in the order in which the others will need it, as far ahead as the ring has room: across stages, layers and barriers. Four warps compute.
The rows of a product are the 64 of a tensor core's operand and are kept in registers, so that shared memory is all for the ring.

*Fragments* are rows in memory as a tensor core takes them from registers: of each 16 columns ("step") 1024 numbers, those of a thread next
to each other. A thread of warp w, lane 4 · g + t holds rows 16 · w + g and + 8, columns 2 · t, + 1, + 8 and + 9.

A slot of the ring is 16 KB: 32 outputs x 256 inputs, or 64 x 128, or 64 entries x 128 dims; in it blocks of 64 columns, swizzled.
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

ROWS = gl.constexpr(64)
STEP = gl.constexpr(1024)  # numbers of 16 columns of fragments
CHUNK = gl.constexpr(8)  # steps that are loaded at once
SLOTS = gl.constexpr(13)
SLOT_BYTES = gl.constexpr(16384)
SWIZZLED = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2))
LINEAR = gl.constexpr(gl.BlockedLayout([8], [32], [4], [0]))  # of fragments


class Ring(NamedTuple):
    """SLOTS slots, in four views, each with the barriers that say that it is there and that it is done with."""

    sixteens: Any  # [8 · SLOTS, 16, 64]
    thirties: Any  # [4 · SLOTS, 32, 64]
    sixties: Any  # [2 · SLOTS, 64, 64]
    narrow: Any  # [2 · SLOTS, 32, 128]
    wide: Any  # [SLOTS, 64, 128]
    ready: Any
    free: Any


@gluon.jit
def make_ring(dtype: gl.constexpr):
    sixteens = gl.allocate_shared_memory(dtype, [8 * SLOTS, 16, 64], SWIZZLED)
    ready = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(ready.index(slot), count=1)
        mbarrier.init(free.index(slot), count=1)
    fence_async_shared()
    return Ring(
        sixteens,
        sixteens._reinterpret(dtype, [4 * SLOTS, 32, 64], SWIZZLED),
        sixteens._reinterpret(dtype, [2 * SLOTS, 64, 64], SWIZZLED),
        sixteens._reinterpret(dtype, [2 * SLOTS, 32, 128], SWIZZLED),
        sixteens._reinterpret(dtype, [SLOTS, 64, 128], SWIZZLED),
        ready,
        free,
    )


@gluon.jit
def asked(ring, at):
    """The slot of the `at`-th filling and its barrier, when it is free; the barrier expects a slot's bytes."""
    slot = at % SLOTS
    mbarrier.wait(ring.free.index(slot), (at // SLOTS & 1) ^ 1)
    ready = ring.ready.index(slot)
    mbarrier.expect(ready, SLOT_BYTES)
    return slot, ready


@gluon.jit
def there(ring, at):
    """The slot of the `at`-th filling, when it is filled."""
    slot = at % SLOTS
    mbarrier.wait(ring.ready.index(slot), at // SLOTS & 1)
    return slot


@gluon.jit
def used(ring, at):
    """All warps are done with that slot."""
    gl.thread_barrier()
    mbarrier.arrive(ring.free.index(at % SLOTS), count=1)


@gluon.jit
def fetch_pairs(ring, at, matrix, first, second, low, fills):
    """16 rows from `first` on and 16 from `second`, the inputs from `low` on: a slot for each 256."""
    for fill in range(fills):
        slot, ready = asked(ring, at + fill)
        for block in gl.static_range(4):
            col = low + fill * 256 + block * 64
            tma.async_copy_global_to_shared(matrix, [first, col], ready, ring.sixteens.index(slot * 8 + block * 2))
            tma.async_copy_global_to_shared(matrix, [second, col], ready, ring.sixteens.index(slot * 8 + block * 2 + 1))


@gluon.jit
def fetch_narrow(ring, at, matrix, first, low, fills):
    """32 rows from `first` on, the inputs from `low` on: a slot for each 256."""
    for fill in range(fills):
        slot, ready = asked(ring, at + fill)
        for block in gl.static_range(4):
            col = low + fill * 256 + block * 64
            tma.async_copy_global_to_shared(matrix, [first, col], ready, ring.thirties.index(slot * 4 + block))


@gluon.jit
def fetch_wide(ring, at, matrix, first, second, fills):
    """32 rows from `first` on and 32 from `second`: a slot for each 128 inputs."""
    for fill in range(fills):
        slot, ready = asked(ring, at + fill)
        for block in gl.static_range(2):
            col = fill * 128 + block * 64
            tma.async_copy_global_to_shared(matrix, [first, col], ready, ring.thirties.index(slot * 4 + block * 2))
            tma.async_copy_global_to_shared(matrix, [second, col], ready, ring.thirties.index(slot * 4 + block * 2 + 1))


@gluon.jit
def fetch_page(ring, at, paged, row, fills):
    """64 entries from `row` on: a slot for each 128 dims."""
    for fill in range(fills):
        slot, ready = asked(ring, at + fill)
        for block in gl.static_range(2):
            where = ring.sixties.index(slot * 2 + block)
            tma.async_copy_global_to_shared(paged, [row, fill * 128 + block * 64], ready, where)


@gluon.jit
def fragments(source, rows, STEPS: gl.constexpr, product: gl.constexpr):
    """Fragments as the left operand [ROWS, 16 · STEPS] of `product`. Not loaded: rows of threads that have none below `rows`."""
    at = gl.arange(0, STEP * STEPS, layout=LINEAR)
    some = gl.load(source + at, mask=kept(at, rows), cache_modifier=".cg")
    return gl.convert_layout(unfolded(some, STEPS), gl.DotOperandLayout(0, product, 2))


@gluon.jit
def kept(at, rows):
    """Which numbers of fragments, at places `at`, are of threads that have a row below `rows`."""
    return at // 256 % 4 * 16 + at // 32 % 8 < rows


@gluon.jit
def unfolded(some, STEPS: gl.constexpr):
    """Fragments [STEPS · STEP] as rows [ROWS, 16 · STEPS]."""
    return some.reshape([STEPS, 4, 8, 4, 2, 2, 2]).permute([1, 5, 2, 0, 4, 3, 6]).reshape([ROWS, 16 * STEPS])


@gluon.jit
def folded(some, STEPS: gl.constexpr):
    """Rows [ROWS, 16 · STEPS] as fragments."""
    flat = some.reshape([4, 2, 8, STEPS, 2, 4, 2]).permute([3, 0, 2, 5, 4, 1, 6]).reshape([STEP * STEPS])
    return gl.convert_layout(flat, LINEAR)


@gluon.jit
def product(ring, at, x, rows, CHUNKS: gl.constexpr, N: gl.constexpr):
    """Fragments x by the next fillings of the ring, 128 · CHUNKS inputs: f32 [ROWS, N]; N is 32 (narrow slots) or 64 (wide ones).

    While the tensor cores have one chunk, the next two are on their way.
    """
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    size: gl.constexpr = CHUNK * STEP
    sums = gl.zeros([ROWS, N], gl.float32, layout=layout)
    one, two = fragments(x, rows, CHUNK, layout), fragments(x + size, rows, CHUNK, layout)
    three = two
    if CHUNKS > 2:
        three = fragments(x + 2 * size, rows, CHUNK, layout)
    for chunk in gl.static_range(CHUNKS):
        if N == 64:
            block = ring.wide.index(there(ring, at + chunk))
        else:
            block = ring.narrow.index(there(ring, at + chunk // 2) * 2 + chunk % 2)
        sums = warpgroup_mma(one, block.permute([1, 0]), sums, is_async=True)
        one = two
        two = three
        if chunk > 0:
            sums = warpgroup_mma_wait(1, deps=(sums,))
            if N == 64:
                used(ring, at + chunk - 1)
            elif chunk % 2 == 0:
                used(ring, at + chunk // 2 - 1)
            if chunk + 2 < CHUNKS:
                two = fragments(x + (chunk + 2) * size, rows, CHUNK, layout)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    used(ring, at + (CHUNKS - 1 if N == 64 else CHUNKS // 2 - 1))
    return sums
