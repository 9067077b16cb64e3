"""The kernel of `flow_step_triton` for one request in bf16 on Hopper, in Gluon, with weights in a ring (`flow_ring_gluon`).

The same stages with the same barriers between them; `flow_attend_gluon` has those of attention. Rows between stages are fragments. A stage
waits in one place, not in its tasks: so the compiler knows that all threads of a program do the same, and computes addresses once for all.

Where sums are added, PARTS tasks have a tile's outputs, each over a part of the inputs. Each of them adds a quarter of the tile's rows: the
others send what they have of these to its inbox, without a barrier. A number in an inbox is there as soon as it is no longer `NOTHING`.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from mstarc_runtime.models.pi05.barrier_triton import POLL
from mstarc_runtime.models.pi05.flow_attend_gluon import BLOCK, attended, joined
from mstarc_runtime.models.pi05.flow_ring_gluon import (
    CHUNK,
    LINEAR,
    ROWS,
    STEP,
    fetch_narrow,
    fetch_page,
    fetch_pairs,
    fetch_wide,
    folded,
    make_ring,
    product,
)

PARTS = gl.constexpr(4)  # of the inputs where sums are added
TILE = gl.constexpr(32)  # outputs of a task there
CLOSED = gl.constexpr(16)  # actions of a task
ADDED = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16]))
GATED = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))

ARRIVING = gl.constexpr(gl.BlockedLayout([4, 4], [1, 32], [1, 4], [1, 0]))  # of an inbox
NOTHING = gl.constexpr(-1)  # all bits: a NaN that no sum is

_TAKE = gl.constexpr("""{
    .reg .pred missing;
again:
    ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];
    setp.eq.s32 missing, $0, -1;
    @missing bra again;
    setp.eq.s32 missing, $1, -1;
    @missing bra again;
    setp.eq.s32 missing, $2, -1;
    @missing bra again;
    setp.eq.s32 missing, $3, -1;
    @missing bra again;
}""")


@gluon.jit
def _wait(counter, stages, PROGRAMS: gl.constexpr):
    """Until all programs have arrived so many times."""
    gl.inline_asm_elementwise(POLL, "=r,l,r", [counter, stages * PROGRAMS], dtype=gl.int32, is_pure=False, pack=1)
    gl.thread_barrier()


@gluon.jit
def _arrive(counter):
    gl.thread_barrier()
    gl.atomic_add(counter, 1, sem="release")


@gluon.jit
def _inbox(parts, task):
    """Where the parts of a task's rows arrive [PARTS, 512]."""
    part = gl.arange(0, PARTS, layout=gl.SliceLayout(1, ARRIVING))
    at = gl.arange(0, 512, layout=gl.SliceLayout(0, ARRIVING))
    return parts + (task * PARTS + part)[:, None] * 512 + at[None, :]


@gluon.jit
def _clear(inbox):
    nothing = gl.full([PARTS, 512], NOTHING, gl.int32, layout=ARRIVING)
    gl.store(inbox.cast(gl.pointer_type(gl.int32), bitcast=True), nothing)


@gluon.jit
def _sent(sums, parts, task):
    """Sums of a tile [ROWS, TILE] -> the inboxes of its tasks, each warp's 16 rows to one of them; from all to all, the sender included."""
    rows = sums.reshape([4, 2, 8, 4, 4, 2]).permute([0, 3, 2, 4, 1, 5]).reshape([PARTS, 512])
    to = gl.arange(0, PARTS, layout=gl.SliceLayout(1, rows.type.layout))
    at = gl.arange(0, 512, layout=gl.SliceLayout(0, rows.type.layout))
    gl.store(parts + ((task // PARTS * PARTS + to) * PARTS + task % PARTS)[:, None] * 512 + at[None, :], rows)


@gluon.jit
def _received(parts, task):
    """The sum of all parts of a task's rows [16, TILE], in their order, when they are there; the inbox is empty then."""
    inbox = _inbox(parts, task)
    some = gl.inline_asm_elementwise(_TAKE, "=r,=r,=r,=r,l,l,l,l", [inbox], dtype=gl.float32, is_pure=False, pack=4)
    _clear(inbox)
    return gl.sum(_arranged(some), 0)


@gluon.jit
def _arranged(inbox):
    """[PARTS, 512] as rows [PARTS, 16, TILE]."""
    return inbox.reshape([PARTS, 4, 8, 4, 2, 2]).permute([0, 4, 2, 1, 3, 5]).reshape([PARTS, 16, TILE])


@gluon.jit
def _own(task):
    """The rows [16] and columns [TILE] that a task adds."""
    layout: gl.constexpr = gl.SliceLayout(0, _arranged(gl.zeros([PARTS, 512], gl.float32, layout=ARRIVING)).type.layout)
    row = task % PARTS * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
    return row, task // PARTS * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(0, layout))


@gluon.jit
def _streamed(whole, scale, task, residual, scaled, squares, rows, WIDTH: gl.constexpr):
    """Write a task's rows of a tile [16, TILE] of the residual stream, and what the next norm begins with."""
    row, col = _own(task)
    kept = row < rows
    gl.store(residual + row[:, None] * WIDTH + col[None, :], whole, mask=kept[:, None])
    gl.store(squares + row * (WIDTH // TILE) + task // PARTS, gl.sum(whole * whole, 1), mask=kept)
    some = (whole * (1.0 + scale)[None, :]).to(scaled.dtype.element_ty)
    flat = some.reshape([2, 8, 2, 2, 4, 2]).permute([2, 1, 4, 3, 0, 5]).reshape([512])
    at = gl.arange(0, 512, layout=flat.type.layout)
    gl.store(scaled + task // PARTS * (2 * STEP) + at // 256 * STEP + task % PARTS * 256 + at % 256, flat)


@gluon.jit
def _factor(squares, rows, eps, product: gl.constexpr, WIDTH: gl.constexpr):
    """1 / sqrt(mean(x²) + eps) of each row [ROWS]."""
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, ADDED))
    tile = gl.arange(0, WIDTH // TILE, layout=gl.SliceLayout(0, ADDED))
    some = gl.load(squares + row[:, None] * (WIDTH // TILE) + tile[None, :], mask=(row < rows)[:, None], other=0.0)
    return gl.convert_layout(gl.rsqrt(gl.sum(some, 1) / WIDTH + eps), gl.SliceLayout(1, product))


@gluon.jit
def _halves(sums, some: gl.constexpr):
    """The first and the last `some` columns."""
    return gl.split(sums.reshape([ROWS, 2, some]).permute([0, 2, 1]))


@gluon.jit
def _opened(
    task, actions, weight, bias, maps, residual, scaled, squares, parts, rows, ACTIONS: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """A task's rows of a tile. weight f32 [ACTIONS, WIDTH]."""
    _clear(_inbox(parts, task))
    row, col = _own(task)
    x = (row * 0).to(gl.float32)[:, None] + gl.load(bias + col)[None, :]
    for action in gl.static_range(ACTIONS):
        some = gl.load(actions + row * ACTIONS + action, mask=row < rows, other=0.0)
        x += some[:, None] * gl.load(weight + action * WIDTH + col)[None, :]
    _streamed(x, gl.load(maps + col), task, residual, scaled, squares, rows, WIDTH)


@gluon.jit
def _turned(
    task, ring, at, scaled, squares, bias, cos, sin, queries, own, rows, eps,
    HEADS: gl.constexpr, TURNED: gl.constexpr, DIM: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """A tile holds 16 dims of the first half of a head, and those that they are turned with."""
    half: gl.constexpr = DIM // 2
    head, first = task // (half // 16), task % (half // 16) * 16
    member = gl.arange(0, 32, layout=gl.SliceLayout(0, ADDED))
    added = gl.load(bias + head * DIM + first + member % 16 + member // 16 * half)
    layout: gl.constexpr = _halves(gl.zeros([ROWS, 32], gl.float32, layout=ADDED), 16)[0].type.layout
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
    dim = first + gl.arange(0, 16, layout=gl.SliceLayout(0, layout))
    turns = (row < rows)[:, None] & (dim < half * (head < TURNED).to(gl.int32))[None, :]
    c = gl.load(cos + row[:, None] * half + dim[None, :], mask=turns, other=1.0)
    s = gl.load(sin + row[:, None] * half + dim[None, :], mask=turns, other=0.0)
    factor = _factor(squares, rows, eps, ADDED, WIDTH)
    sums = product(ring, at, scaled, rows, WIDTH // 128, 32)
    sums = sums * factor[:, None] + added[None, :]
    left, right = _halves(sums, 16)
    one = (left * c - right * s).to(scaled.dtype.element_ty)
    two = (right * c + left * s).to(scaled.dtype.element_ty)
    if head < HEADS:
        to = queries + (head * (DIM // 16) + first // 16) * STEP + gl.arange(0, STEP, layout=LINEAR)
        gl.store(to, folded(one, 1))
        gl.store(to + half // 16 * STEP, folded(two, 1))
    else:
        whole: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])  # 16 bytes of a row
        each = gl.arange(0, ROWS, layout=gl.SliceLayout(1, whole))
        spot = gl.arange(0, 16, layout=gl.SliceLayout(0, whole))
        place = own + ((head - HEADS) * ROWS + each)[:, None] * DIM + (first + spot)[None, :]
        gl.store(place, gl.convert_layout(one, whole), mask=(each < rows)[:, None])
        gl.store(place + half, gl.convert_layout(two, whole), mask=(each < rows)[:, None])


@gluon.jit
def _gated(task, ring, at, scaled, squares, bias, inner, rows, eps, FFN: gl.constexpr, WIDTH: gl.constexpr):
    """A tile holds 32 gates, and what they are multiplied with."""
    member = gl.arange(0, 64, layout=gl.SliceLayout(0, GATED))
    added = gl.load(bias + task * 32 + member % 32 + member // 32 * FFN)
    factor = _factor(squares, rows, eps, GATED, WIDTH)
    sums = product(ring, at, scaled, rows, WIDTH // 128, 64)
    sums = sums * factor[:, None] + added[None, :]
    gate, up = _halves(sums, 32)
    around = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # see `fused_triton._gelu_mul`
    some = (gate / (1.0 + gl.exp(-around)) * up).to(inner.dtype.element_ty)
    gl.store(inner + task * (2 * STEP) + gl.arange(0, 2 * STEP, layout=LINEAR), folded(some, 2))


@gluon.jit
def _added(task, ring, at, x, residual, maps, scaled, squares, parts, rows, WIDTH: gl.constexpr, CHUNKS: gl.constexpr):
    """residual += gate · the product, and what the next norm begins with. maps: at that norm; the gate is that of the one before."""
    row, col = _own(task)
    gate, scale = gl.load(maps - WIDTH + col), gl.load(maps + col)
    before = gl.load(residual + row[:, None] * WIDTH + col[None, :], mask=(row < rows)[:, None], other=0.0)
    sums = product(ring, at, x + task % PARTS * (CHUNKS * CHUNK * STEP), rows, CHUNKS, 32)
    _sent(sums, parts, task)
    whole = before + gate[None, :] * _received(parts, task)
    _streamed(whole, scale, task, residual, scaled, squares, rows, WIDTH)


@gluon.jit
def _closed(
    task, residual, maps, weight, bias, out, eps, counter, stages,
    ACTIONS: gl.constexpr, WIDTH: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Some actions of one row, from the last norm of it, at which `maps` begin. weight f32 [ACTIONS, WIDTH]."""
    spread: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0])
    several: gl.constexpr = (ACTIONS + CLOSED - 1) // CLOSED
    row, col = task // several, gl.arange(0, WIDTH, layout=gl.SliceLayout(0, spread))
    action = task % several * CLOSED + gl.arange(0, CLOSED, layout=gl.SliceLayout(1, spread))
    scale, shift = gl.load(maps + col), gl.load(maps + WIDTH + col)
    some = gl.load(weight + action[:, None] * WIDTH + col[None, :], mask=(action < ACTIONS)[:, None], other=0.0)
    _wait(counter, stages, PROGRAMS)
    x = gl.load(residual + row * WIDTH + col)
    normed = x * gl.rsqrt(gl.sum(x * x, 0) / WIDTH + eps) * (1.0 + scale) + shift
    moved = gl.sum(some * normed[None, :], 1) + gl.load(bias + action, mask=action < ACTIONS, other=0.0)
    gl.store(out + row * ACTIONS + action, moved, mask=action < ACTIONS)


@gluon.jit
def _compute(
    ring, actions, action_in, action_in_bias, action_out, action_out_bias, velocities, maps, qkv_bias, gate_bias, cos, sin,
    residual, scaled, squares, queries, own, mixed, inner, parts, part, weight, counter, scale, eps, rows, layers,
    entries, blocks,
    ACTIONS: gl.constexpr, WIDTH: gl.constexpr, FFN: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr,
    DIM: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """All stages; `counter` is 0."""
    me = gl.program_id(0)
    all_heads: gl.constexpr = HEADS + 2 * KV_HEADS
    tiles: gl.constexpr = WIDTH // TILE
    for task in range(me, tiles * PARTS, PROGRAMS):
        _opened(task, actions, action_in, action_in_bias, maps, residual, scaled, squares, parts, rows, ACTIONS, WIDTH)
    _arrive(counter)
    at = 0
    for layer in range(layers):
        done = 1 + 6 * layer
        _wait(counter, done, PROGRAMS)
        for task in range(me, all_heads * (DIM // 32), PROGRAMS):
            _turned(
                task, ring, at, scaled, squares, qkv_bias + layer * (all_heads * DIM), cos, sin, queries, own, rows, eps, HEADS,
                HEADS + KV_HEADS, DIM, WIDTH,
            )  # fmt: skip
            at += WIDTH // 256
        _arrive(counter)
        _wait(counter, done + 1, PROGRAMS)
        for task in range(me, HEADS * blocks, PROGRAMS):
            attended(
                task, ring, at, queries, own, part, weight, entries, rows, scale, blocks, HEADS, GROUP, KV_HEADS, DIM
            )
            at += DIM // 64
        _arrive(counter)
        _wait(counter, done + 2, PROGRAMS)
        for task in range(me, HEADS * (DIM // 16), PROGRAMS):
            joined(task, part, weight, mixed, rows, blocks, DIM)
        _arrive(counter)
        _wait(counter, done + 3, PROGRAMS)
        for task in range(me, tiles * PARTS, PROGRAMS):
            norm = maps + 3 * (2 * layer + 1) * WIDTH
            _added(
                task, ring, at, mixed, residual, norm, scaled, squares, parts, rows, WIDTH, HEADS * DIM // (128 * PARTS)
            )  # fmt: skip
            at += HEADS * DIM // (256 * PARTS)
        _arrive(counter)
        _wait(counter, done + 4, PROGRAMS)
        for task in range(me, FFN // 32, PROGRAMS):
            _gated(task, ring, at, scaled, squares, gate_bias + layer * (2 * FFN), inner, rows, eps, FFN, WIDTH)
            at += WIDTH // 128
        _arrive(counter)
        _wait(counter, done + 5, PROGRAMS)
        for task in range(me, tiles * PARTS, PROGRAMS):
            norm = maps + 3 * (2 * layer + 2) * WIDTH
            _added(task, ring, at, inner, residual, norm, scaled, squares, parts, rows, WIDTH, FFN // (128 * PARTS))
            at += FFN // (256 * PARTS)
        _arrive(counter)
    last = maps + 6 * layers * WIDTH
    for task in range(me, rows * ((ACTIONS + CLOSED - 1) // CLOSED), PROGRAMS):
        _closed(
            task,
            residual,
            last,
            action_out,
            action_out_bias,
            velocities,
            eps,
            counter,
            1 + 6 * layers,
            ACTIONS,
            WIDTH,
            PROGRAMS,
        )


@gluon.jit
def _fetch(
    ring, qkv, out, gate_up, down, paged, table, layers, entries, blocks, slots,
    WIDTH: gl.constexpr, FFN: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr, DIM: gl.constexpr,
    PAGE: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """What `_compute` takes from the ring, in its order."""
    me = gl.program_id(0)
    half: gl.constexpr = DIM // 2
    all_heads: gl.constexpr = HEADS + 2 * KV_HEADS
    tasks: gl.constexpr = WIDTH // TILE * PARTS
    at = 0
    for layer in range(layers):
        for task in range(me, all_heads * (half // 16), PROGRAMS):
            first = (layer * all_heads + task // (half // 16)) * DIM + task % (half // 16) * 16
            fetch_pairs(ring, at, qkv, first, first + half, 0, qkv.shape[1] // 256)
            at += WIDTH // 256
        for task in range(me, HEADS * blocks, PROGRAMS):
            entry = task // HEADS * BLOCK
            page = gl.load(table + entry // PAGE, mask=entry < entries, other=0)
            row = (layer * (2 * KV_HEADS) + task % HEADS // GROUP) * slots + page * PAGE + entry % PAGE
            fetch_page(ring, at, paged, row, paged.shape[1] // 128)
            fetch_page(ring, at + DIM // 128, paged, row + KV_HEADS * slots, paged.shape[1] // 128)
            at += DIM // 64
        for task in range(me, tasks, PROGRAMS):
            low = task % PARTS * (HEADS * DIM // PARTS)
            fetch_narrow(ring, at, out, layer * WIDTH + task // PARTS * TILE, low, out.shape[1] // (256 * PARTS))
            at += HEADS * DIM // (256 * PARTS)
        for task in range(me, FFN // 32, PROGRAMS):
            first = layer * (2 * FFN) + task * 32
            fetch_wide(ring, at, gate_up, first, first + FFN, gate_up.shape[1] // 128)
            at += WIDTH // 128
        for task in range(me, tasks, PROGRAMS):
            low = task % PARTS * (FFN // PARTS)
            fetch_narrow(ring, at, down, layer * WIDTH + task // PARTS * TILE, low, down.shape[1] // (256 * PARTS))
            at += FFN // (256 * PARTS)


@gluon.jit(do_not_specialize=["rows", "layers", "slots"])
def flow_step(
    actions, action_in, action_in_bias, action_out, action_out_bias, velocities, maps, slot, qkv_bias, gate_bias, cos, sin,
    qkv, out, gate_up, down, paged, table, length, active,
    residual, scaled, squares, queries, own, mixed, inner, parts, part, weight, counter, scale, eps, rows, layers, slots,
    map_stride, qkv_stride, gate_stride,
    ACTIONS: gl.constexpr, WIDTH: gl.constexpr, FFN: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, KV_HEADS: gl.constexpr,
    DIM: gl.constexpr, PAGE: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Sizes of the buffers between stages: see `flow_ring.step`. scale: of scores, times log2(e)."""
    entries = gl.where(gl.load(active) != 0, gl.load(length), 0)
    blocks = gl.cdiv(entries + rows, BLOCK)
    held = gl.load(slot)
    ring = make_ring(scaled.dtype.element_ty)
    gl.warp_specialize(
        [
            (
                _compute,
                (
                    ring, actions, action_in, action_in_bias, action_out, action_out_bias, velocities, maps + held * map_stride,
                    qkv_bias + held * qkv_stride, gate_bias + held * gate_stride, cos, sin, residual, scaled, squares, queries, own, mixed,
                    inner, parts, part, weight, counter, scale, eps, rows, layers, entries, blocks, ACTIONS, WIDTH, FFN,
                    HEADS, GROUP, KV_HEADS, DIM, PROGRAMS,
                ),
            ),
            (
                _fetch,
                (
                    ring, qkv, out, gate_up, down, paged, table, layers, entries, blocks, slots, WIDTH, FFN, HEADS, GROUP, KV_HEADS, DIM,
                    PAGE, PROGRAMS,
                ),
            ),
        ],
        [1],
        [40],
    )  # fmt: skip
