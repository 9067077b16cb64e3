"""Attention of a flow step over a context and its own rows, as device functions of `flow_step_gluon`: parts, then their joining.

A task takes the rows of one head and 64 entries. Own rows are entries behind those of the context: a block in which they are has its slots
of the ring completed by its task.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from mstarc_runtime.models.pi05.flow_ring_gluon import CHUNK, LINEAR, ROWS, STEP, folded, fragments, kept, there, used

BLOCK = gl.constexpr(64)  # entries of a task
JOINED = gl.constexpr(16)  # blocks that are joined at once
SCORES = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
MIXED = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))


@gluon.jit
def _own_rows(own, base, entries, rows, DIM: gl.constexpr):
    """Own rows [ROWS, DIM] that are among the entries from `base` on, of 128 dims from `own` on; zeros elsewhere."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    row = base + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, spread)) - entries
    dim = gl.arange(0, 128, layout=gl.SliceLayout(0, spread))
    among = ((row >= 0) & (row < rows))[:, None]
    return gl.load(own + row[:, None] * DIM + dim[None, :], mask=among, other=0.0, cache_modifier=".cg")


@gluon.jit
def _complete(ring, at, fresh, base, entries):
    """A slot of entries from `base` on, with own rows and zeros where those of the context end."""
    entry = base + gl.arange(0, BLOCK, layout=gl.SliceLayout(1, fresh.type.layout))
    slot = ring.wide.index(there(ring, at))
    slot.store(gl.where((entry < entries)[:, None], slot.load(fresh.type.layout), fresh))


@gluon.jit
def _scores(ring, at, one, two, halves: gl.constexpr):
    """Queries, 128 dims and 128 more if there are two `halves`, by the keys of as many slots."""
    scores = gl.zeros([ROWS, BLOCK], gl.float32, layout=SCORES)
    scores = warpgroup_mma(one, ring.wide.index(there(ring, at)).permute([1, 0]), scores)
    used(ring, at)
    if halves == 2:
        scores = warpgroup_mma(two, ring.wide.index(there(ring, at + 1)).permute([1, 0]), scores)
        used(ring, at + 1)
    return scores


@gluon.jit
def attended(
    task, ring, at, queries, own, part, weight, entries, rows, scale, blocks,
    HEADS: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """One head's rows over one block of entries: its share of the mix as fragments, and its maximum and sum f32 [2, ROWS]."""
    halves: gl.constexpr = DIM // 128
    head, block = task % HEADS, task // HEADS
    kv_head = head // GROUP
    asking = queries + head * (DIM // 16) * STEP
    one = fragments(asking, rows, CHUNK, SCORES)
    two = one
    if halves == 2:
        two = fragments(asking + CHUNK * STEP, rows, CHUNK, SCORES)
    base = block * BLOCK
    if base + BLOCK > entries:
        keys, values = own + kv_head * ROWS * DIM, own + (KV_HEADS + kv_head) * ROWS * DIM
        fresh_keys = _own_rows(keys, base, entries, rows, DIM)
        fresh_values = _own_rows(values, base, entries, rows, DIM)
        more_keys, more_values = fresh_keys, fresh_values
        if halves == 2:
            more_keys = _own_rows(keys + 128, base, entries, rows, DIM)
            more_values = _own_rows(values + 128, base, entries, rows, DIM)
        _complete(ring, at, fresh_keys, base, entries)
        if halves == 2:
            _complete(ring, at + 1, more_keys, base, entries)
        fence_async_shared()
        gl.thread_barrier()
        scores = _scores(ring, at, one, two, halves)
        _complete(ring, at + halves, fresh_values, base, entries)
        if halves == 2:
            _complete(ring, at + 3, more_values, base, entries)
        fence_async_shared()
        gl.thread_barrier()
    else:
        scores = _scores(ring, at, one, two, halves)
    entry = base + gl.arange(0, BLOCK, layout=gl.SliceLayout(0, SCORES))
    scores = gl.where((entry < entries + rows)[None, :], scores * scale, float("-inf"))
    top = gl.max(scores, 1)
    share = gl.exp2(scores - top[:, None])
    total = gl.sum(share, 1)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, SCORES))
    place = head * blocks + block
    gl.store(weight + place * (2 * ROWS) + row, top)
    gl.store(weight + place * (2 * ROWS) + ROWS + row, total)
    inverse = gl.convert_layout(1.0 / total, gl.SliceLayout(1, MIXED))
    share = gl.convert_layout(share.to(queries.dtype.element_ty), gl.DotOperandLayout(0, MIXED, 2))
    for half in gl.static_range(halves):
        slot = there(ring, at + halves + half)
        none = gl.zeros([ROWS, 128], gl.float32, layout=MIXED)
        mixed = warpgroup_mma(share, ring.wide.index(slot), none) * inverse[:, None]
        used(ring, at + halves + half)
        spot = gl.arange(0, CHUNK * STEP, layout=LINEAR)
        to = part + (place * (DIM // 16) + half * CHUNK) * STEP + spot
        gl.store(to, folded(mixed.to(part.dtype.element_ty), CHUNK), mask=kept(spot, rows))


@gluon.jit
def joined(task, part, weight, mixed, rows, blocks, DIM: gl.constexpr):
    """16 dims of a head's rows: the shares of all blocks -> their mix."""
    head, step = task // (DIM // 16), task % (DIM // 16)
    listed: gl.constexpr = gl.BlockedLayout([JOINED // 2, 1], [2, 16], [1, 4], [0, 1])
    spread: gl.constexpr = gl.BlockedLayout([JOINED, 8], [1, 32], [1, 4], [1, 0])
    board = gl.allocate_shared_memory(gl.float32, [JOINED, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    block = gl.arange(0, JOINED, layout=gl.SliceLayout(1, listed))
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(0, listed))
    of = gl.arange(0, JOINED, layout=gl.SliceLayout(1, spread))
    at = gl.arange(0, STEP, layout=gl.SliceLayout(0, spread))
    layout: gl.constexpr = _shares(gl.zeros([JOINED, STEP], gl.float32, layout=spread)).type.layout
    top = gl.full([ROWS], float("-inf"), gl.float32, layout=gl.SliceLayout(0, listed))
    total = gl.zeros([ROWS], gl.float32, layout=gl.SliceLayout(0, listed))
    sums = gl.zeros([ROWS, 16], gl.float32, layout=gl.SliceLayout(0, layout))
    for first in range(0, blocks, JOINED):
        place = weight + (head * blocks + first + block)[:, None] * (2 * ROWS) + row[None, :]
        seen = (first + block < blocks)[:, None]
        tops = gl.load(place, mask=seen, other=float("-inf"), cache_modifier=".cg")
        totals = gl.load(place + ROWS, mask=seen, other=0.0, cache_modifier=".cg")
        place = part + ((head * blocks + first + of) * (DIM // 16) + step)[:, None] * STEP + at[None, :]
        seen = (first + of < blocks)[:, None] & kept(at, rows)[None, :]
        some = gl.load(place, mask=seen, other=0.0, cache_modifier=".cg")
        higher = gl.maximum(top, gl.max(tops, 0))
        shrink = gl.exp2(top - higher)
        factors = totals * gl.exp2(tops - higher[None, :])
        total, top = total * shrink + gl.sum(factors, 0), higher
        board.store(factors)
        factors = board.load(gl.SliceLayout(2, layout))
        sums *= gl.convert_layout(shrink, gl.SliceLayout(1, gl.SliceLayout(0, layout)))[:, None]
        sums += gl.sum(_shares(some).to(gl.float32) * gl.expand_dims(factors, 2), 0)
    sums = sums / gl.convert_layout(total, gl.SliceLayout(1, gl.SliceLayout(0, layout)))[:, None]
    gl.store(mixed + task * STEP + gl.arange(0, STEP, layout=LINEAR), folded(sums.to(mixed.dtype.element_ty), 1))


@gluon.jit
def _shares(some):
    """Fragments of 16 columns [JOINED, STEP] as rows [JOINED, ROWS, 16]."""
    return some.reshape([JOINED, 4, 8, 4, 2, 2, 2]).permute([0, 1, 5, 2, 4, 3, 6]).reshape([JOINED, ROWS, 16])
