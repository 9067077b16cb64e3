"""A flow step of few rows as one kernel: a program on each multiprocessor, barriers between stages (`barrier_triton`).

A product of few rows reads its weights once, and is bound by how long one stage waits for another: a barrier inside a kernel costs less
than the end of one kernel and the begin of the next, and what a program looks up for its next stage it looks up before it waits.
Stages of a layer:

    turned    scaled rows -> queries, keys and values, turned by their positions
    attended  queries -> parts of the attention (`flow_attend_triton`)
    joined    parts -> mixed rows
    added     mixed rows -> added to the residual stream: its scaled rows, their squares
    gated     scaled rows -> gelu(gate) · up
    added     these rows likewise

Before them `opened`: noisy actions -> the residual stream; behind them `closed`: the residual stream -> velocities.

A norm of the expert is x / rms(x) · (1 + scale) + shift, scale and shift by the time of the request. *Scaled rows* are x · (1 + scale).
What is left of the norm are a factor of the row, 1 / sqrt(mean(x²) + eps), and weight · shift, which is as constant as the time
(`times_triton.Shifts`): the product that reads them applies both to its sums. *Squares* f32 [rows, tiles] are sums of x² by tile of
columns. A task takes a tile of outputs and a part of the inputs; the last to be done with a tile joins its parts, in their order.

`slot` i32 [B] says where the time of each request is in `maps` f32 [times, norms, 3, width] and in the biases f32 [times, layers, outputs].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstarc_runtime.engines.attend_triton import LOG2_E
from mstarc_runtime.models.pi05.barrier_triton import arrive, programs, wait
from mstarc_runtime.models.pi05.flow_attend_triton import BLOCK, TILE, attended, joined, parts_of

MAX_ROWS = 64  # rows of a product are one tile
MAX_PARTS = 33  # of attention: their joining has a load for each
KEY_BYTES = 512  # of an entry: blocks of keys, values and queries lie in shared memory


@triton.jit
def _sums(
    x, weight, own, low, high, rows, counter, target,
    INS: tl.constexpr, IN: tl.constexpr, STAGES: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Rows x [rows, INS] by the rows `own` of weight [·, INS] over the inputs low..high-1, behind `wait`: f32 [ROWS, as many as own]."""
    row, at = tl.arange(0, ROWS), tl.arange(0, IN)
    theirs = x + row[:, None] * INS
    mine = weight + own[:, None] * INS
    there = (row < rows)[:, None]
    wait(counter, target, NATIVE)
    sums = tl.zeros([ROWS, own.shape[0]], tl.float32)
    for start in tl.range(low, high, IN, num_stages=STAGES):
        some = tl.load(mine + (start + at)[None, :])
        here = tl.load(theirs + (start + at)[None, :], mask=there, other=0.0)
        sums = tl.dot(here, tl.trans(some), sums, input_precision=PRECISION)
    return sums


@triton.jit
def _by_time(values, slot, column, rows, rows_each, stride, ROWS: tl.constexpr):
    """values[time of the row, column], f32 [ROWS, columns]."""
    row = tl.arange(0, ROWS)
    held = tl.load(slot + row // rows_each, mask=row < rows, other=0)
    return tl.load(values + held[:, None] * stride + column[None, :], mask=(row < rows)[:, None], other=0.0)


@triton.jit
def _factor(squares, rows, eps, INS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr):
    """1 / sqrt(mean(x²) + eps) of each row [ROWS]."""
    row, tile = tl.arange(0, ROWS), tl.arange(0, TILES_PAD)
    there = (row < rows)[:, None] & (tile < TILES)[None, :]
    return tl.rsqrt(
        tl.sum(tl.load(squares + row[:, None] * TILES + tile[None, :], mask=there, other=0.0), 1) / INS + eps
    )


@triton.jit
def _streamed(
    whole, scale, residual, out, squares, tile, rows, WIDTH: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Write a tile of the residual stream [ROWS, OUT], and what the next norm begins with."""
    row, col = tl.arange(0, ROWS), tile * OUT + tl.arange(0, OUT)
    there = (row < rows)[:, None]
    place = row[:, None] * WIDTH + col[None, :]
    tl.store(residual + place, whole, mask=there)
    tl.store(squares + row * (WIDTH // OUT) + tile, tl.sum(whole * whole, 1), mask=row < rows)
    tl.store(out + place, (whole * (1.0 + scale)).to(out.dtype.element_ty), mask=there)


@triton.jit(noinline=True)
def _opened(
    tile, actions, weight, bias, maps, slot, residual, out, squares, rows, rows_each, map_stride,
    ACTIONS: tl.constexpr, ACTIONS_PAD: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile of columns of all rows. weight f32 [ACTIONS, WIDTH]."""
    row, col, k = tl.arange(0, ROWS), tile * OUT + tl.arange(0, OUT), tl.arange(0, ACTIONS_PAD)
    scale = _by_time(maps, slot, col, rows, rows_each, map_stride, ROWS)
    some = tl.load(
        actions + row[:, None] * ACTIONS + k[None, :], mask=(row < rows)[:, None] & (k < ACTIONS)[None, :], other=0.0
    )
    into = tl.load(weight + k[:, None] * WIDTH + col[None, :], mask=(k < ACTIONS)[:, None], other=0.0)
    x = tl.dot(some, into, input_precision="ieee") + tl.load(bias + col)[None, :]
    _streamed(x, scale, residual, out, squares, tile, rows, WIDTH, OUT, ROWS)


@triton.jit(noinline=True)
def _turned(
    task, x, weight, squares, bias, slot, cos, sin, out, rows, rows_each, bias_stride, eps, counter, target,
    HEADS: tl.constexpr, TURNED: tl.constexpr, HALF: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
    STAGES: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr, PRECISION: tl.constexpr,
    NATIVE: tl.constexpr,
):  # fmt: skip
    """A tile holds OUT / 2 dims of the first half of a head, and those that they are turned with."""
    some: tl.constexpr = OUT // 2
    head, member = task // (HALF // some), tl.arange(0, OUT)
    own = head * (2 * HALF) + task % (HALF // some) * some + member % some + member // some * HALF
    added = _by_time(bias, slot, own, rows, rows_each, bias_stride, ROWS)
    sums = _sums(x, weight, own, 0, INS, rows, counter, target, INS, IN, STAGES, ROWS, PRECISION, NATIVE)
    sums = sums * _factor(squares, rows, eps, INS, ROWS, TILES, TILES_PAD)[:, None] + added
    left, right = tl.split(tl.permute(tl.reshape(sums, [ROWS, 2, some]), (0, 2, 1)))
    row, dim = tl.arange(0, ROWS), task % (HALF // some) * some + tl.arange(0, some)
    there = (row < rows)[:, None] & (dim < HALF)[None, :]
    turns = there & (head < TURNED)
    c = tl.load(cos + row[:, None] * HALF + dim[None, :], mask=turns, other=1.0)
    s = tl.load(sin + row[:, None] * HALF + dim[None, :], mask=turns, other=0.0)
    place = out + row[:, None] * (HEADS * 2 * HALF) + head * (2 * HALF) + dim[None, :]
    tl.store(place, (left * c - right * s).to(out.dtype.element_ty), mask=there)
    tl.store(place + HALF, (right * c + left * s).to(out.dtype.element_ty), mask=there)


@triton.jit(noinline=True)
def _gated(
    task, x, weight, squares, bias, slot, out, rows, rows_each, bias_stride, eps, counter, target,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, STAGES: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """A tile holds OUT / 2 gates, and what they are multiplied with."""
    some: tl.constexpr = OUT // 2
    member = tl.arange(0, OUT)
    own = task * some + member % some + member // some * (OUTS // 2)
    added = _by_time(bias, slot, own, rows, rows_each, bias_stride, ROWS)
    sums = _sums(x, weight, own, 0, INS, rows, counter, target, INS, IN, STAGES, ROWS, PRECISION, NATIVE)
    sums = sums * _factor(squares, rows, eps, INS, ROWS, TILES, TILES_PAD)[:, None] + added
    gate, up = tl.split(tl.permute(tl.reshape(sums, [ROWS, 2, some]), (0, 2, 1)))
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # see `fused_triton._gelu_mul`
    mixed = gate / (1.0 + tl.exp(-inner)) * up
    row, col = tl.arange(0, ROWS), task * some + tl.arange(0, some)
    place = out + row[:, None] * (OUTS // 2) + col[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=(row < rows)[:, None])


@triton.jit(noinline=True)
def _added(
    task, x, weight, residual, maps, slot, out, squares, parts, arrived, rows, rows_each, map_stride, counter, target,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """residual += gate · the product, and what the next norm begins with. maps: at that norm; the gate is that of the one before."""
    tile, part = task // PARTS, task % PARTS
    row, member = tl.arange(0, ROWS), tl.arange(0, OUT)
    col = tile * OUT + member
    gate = _by_time(maps - OUTS, slot, col, rows, rows_each, map_stride, ROWS)
    scale = _by_time(maps, slot, col, rows, rows_each, map_stride, ROWS)
    share: tl.constexpr = INS // PARTS
    low = part * share
    sums = _sums(x, weight, col, low, low + share, rows, counter, target, INS, IN, STAGES, ROWS, PRECISION, NATIVE)
    here = row[:, None] * OUT + member[None, :]
    tl.store(parts + task * (ROWS * OUT) + here, sums)
    tl.debug_barrier()
    if tl.atomic_add(arrived + tile, 1, sem="acq_rel") == PARTS - 1:
        tl.store(arrived + tile, 0)
        sums = tl.zeros([ROWS, OUT], tl.float32)
        for other in tl.static_range(PARTS):
            sums += tl.load(parts + (tile * PARTS + other) * (ROWS * OUT) + here, cache_modifier=".cg")
        place = row[:, None] * OUTS + col[None, :]
        whole = tl.load(residual + place, mask=(row < rows)[:, None], other=0.0) + gate * sums
        _streamed(whole, scale, residual, out, squares, tile, rows, OUTS, OUT, ROWS)


@triton.jit(noinline=True)
def _closed(
    task, residual, maps, slot, weight, bias, out, rows_each, map_stride, eps, counter, target,
    ACTIONS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, SOME: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """Some actions of one row, from the last norm of it, at which `maps` begin. weight f32 [ACTIONS, WIDTH]."""
    several: tl.constexpr = (ACTIONS + SOME - 1) // SOME
    row, at, action = task // several, tl.arange(0, PAD), task % several * SOME + tl.arange(0, SOME)
    there, kept = at < WIDTH, action < ACTIONS
    held = maps + tl.load(slot + row // rows_each) * map_stride + at
    scale = 1.0 + tl.load(held, mask=there, other=0.0)
    shift = tl.load(held + WIDTH, mask=there, other=0.0)
    some = tl.load(weight + action[:, None] * WIDTH + at[None, :], mask=kept[:, None] & there[None, :], other=0.0)
    wait(counter, target, NATIVE)
    x = tl.load(residual + row * WIDTH + at, mask=there, other=0.0)
    normed = x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * scale + shift
    moved = tl.sum(some * normed[None, :], 1) + tl.load(bias + action, mask=kept, other=0.0)
    tl.store(out + row * ACTIONS + action, moved, mask=kept)


@triton.jit
def _matrix(places, layer, dtype: tl.constexpr):
    """The matrix of a layer, from a table of addresses."""
    return tl.multiple_of(tl.load(places + layer).to(tl.pointer_type(dtype)), 16)


@triton.jit(do_not_specialize=["rows", "rows_each", "requests", "layers", "groups"])
def _flow_step(
    actions, action_in, action_in_bias, action_out, action_out_bias, velocities, maps, slot, qkv_bias, gate_bias, cos, sin,
    qkv_places, out_places, gate_places, down_places, residual, scaled, squares, qkv, mixed, inner, parts, part, weight, arrived, counter,
    data, table, length, active, scale, eps, rows, rows_each, requests, layers, groups, map_stride, qkv_stride, gate_stride, data_layer,
    data_head, table_row,
    ACTIONS: tl.constexpr, ACTIONS_PAD: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, FFN: tl.constexpr, ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, TILES: tl.constexpr, SOME: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
    STAGES: tl.constexpr, TURNED_OUT: tl.constexpr, GATED_OUT: tl.constexpr, PARTS: tl.constexpr, CLOSED: tl.constexpr,
    SQUARES: tl.constexpr, PROGRAMS: tl.constexpr, PRECISION: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """All stages; `counter` and `arrived` are zeros. Sizes of the buffers between stages: see `step`. scale: of scores, times log2(e)."""
    me = tl.program_id(0)
    heads: tl.constexpr = (GROUP + 2) * KV_HEADS
    tiles: tl.constexpr = WIDTH // OUT
    kind: tl.constexpr = scaled.dtype.element_ty
    most = parts_of(length, active, requests, BLOCK)
    for task in tl.range(me, tiles, PROGRAMS, num_stages=1):
        _opened(
            task, actions, action_in, action_in_bias, maps, slot, residual, scaled, squares, rows, rows_each, map_stride,
            ACTIONS, ACTIONS_PAD, WIDTH, OUT, ROWS,
        )  # fmt: skip
    arrive(counter)
    for layer in tl.range(0, layers, num_stages=1):
        done = 1 + 6 * layer  # stages
        matrix = _matrix(qkv_places, layer, kind)
        bias = qkv_bias + layer * (heads * DIM)
        for task in tl.range(me, heads * DIM // TURNED_OUT, PROGRAMS, num_stages=1):
            _turned(
                task, scaled, matrix, squares, bias, slot, cos, sin, qkv, rows, rows_each, qkv_stride, eps, counter, done * PROGRAMS,
                heads, (GROUP + 1) * KV_HEADS, DIM // 2, WIDTH, TURNED_OUT, IN, STAGES, ROWS, tiles, SQUARES, PRECISION, NATIVE,
            )  # fmt: skip
        if me >= heads * DIM // TURNED_OUT:
            wait(counter, done * PROGRAMS, NATIVE)
        arrive(counter)
        for task in tl.range(me, groups * most, PROGRAMS, num_stages=1):
            attended(
                task, qkv, data + data_layer.to(tl.int64) * layer, table, length, active, part, weight, scale, rows_each, groups,
                data_head, table_row, counter, (done + 1) * PROGRAMS, KV_HEADS, GROUP, DIM, PAGE, TILE, BLOCK, TILES, PRECISION, NATIVE,
            )  # fmt: skip
        if me >= groups * most:
            wait(counter, (done + 1) * PROGRAMS, NATIVE)
        arrive(counter)
        wait(counter, (done + 2) * PROGRAMS, NATIVE)
        for task in tl.range(me, groups * (TILE // SOME), PROGRAMS, num_stages=1):
            joined(
                task, part, weight, length, active, mixed, rows_each, groups, KV_HEADS, GROUP, DIM, TILE, BLOCK, SPLITS, TILES, SOME,
            )  # fmt: skip
        arrive(counter)
        matrix = _matrix(out_places, layer, kind)
        norm = maps + 3 * (2 * layer + 1) * WIDTH
        for task in tl.range(me, tiles * PARTS, PROGRAMS, num_stages=1):
            _added(
                task, mixed, matrix, residual, norm, slot, scaled, squares, parts, arrived, rows, rows_each, map_stride, counter,
                (done + 3) * PROGRAMS, WIDTH, GROUP * KV_HEADS * DIM, OUT, IN, PARTS, STAGES, ROWS, PRECISION, NATIVE,
            )  # fmt: skip
        if me >= tiles * PARTS:
            wait(counter, (done + 3) * PROGRAMS, NATIVE)
        arrive(counter)
        matrix = _matrix(gate_places, layer, kind)
        bias = gate_bias + layer * (2 * FFN)
        for task in tl.range(me, 2 * FFN // GATED_OUT, PROGRAMS, num_stages=1):
            _gated(
                task, scaled, matrix, squares, bias, slot, inner, rows, rows_each, gate_stride, eps, counter, (done + 4) * PROGRAMS,
                2 * FFN, WIDTH, GATED_OUT, IN, STAGES, ROWS, tiles, SQUARES, PRECISION, NATIVE,
            )  # fmt: skip
        if me >= 2 * FFN // GATED_OUT:
            wait(counter, (done + 4) * PROGRAMS, NATIVE)
        arrive(counter)
        matrix = _matrix(down_places, layer, kind)
        norm = maps + 3 * (2 * layer + 2) * WIDTH
        for task in tl.range(me, tiles * PARTS, PROGRAMS, num_stages=1):
            _added(
                task, inner, matrix, residual, norm, slot, scaled, squares, parts, arrived, rows, rows_each, map_stride, counter,
                (done + 5) * PROGRAMS, WIDTH, FFN, OUT, IN, PARTS, STAGES, ROWS, PRECISION, NATIVE,
            )  # fmt: skip
        if me >= tiles * PARTS:
            wait(counter, (done + 5) * PROGRAMS, NATIVE)
        arrive(counter)
    last = maps + 6 * layers * WIDTH
    for task in tl.range(me, rows * ((ACTIONS + CLOSED - 1) // CLOSED), PROGRAMS, num_stages=1):
        _closed(
            task, residual, last, slot, action_out, action_out_bias, velocities, rows_each, map_stride, eps, counter,
            (1 + 6 * layers) * PROGRAMS, ACTIONS, WIDTH, PAD, CLOSED, NATIVE,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cuts:
    """How products are cut: outputs of a tile where they are added, turned and gated; parts of the inputs where they are added; inputs of a
    block, stages of a pipeline of blocks, warps."""

    added: int = 32
    turned: int = 32
    gated: int = 64
    parts: int = 4
    block: int = 128
    stages: int = 4
    warps: int = 8


HALVED = Cuts()  # of 16-bit weights: what was fastest on an H200 at 50 rows; tests.bench's log
PLAIN = Cuts(parts=2, block=32, stages=2)  # of f32


def cuts_of(dtype: torch.dtype) -> Cuts:
    """How products of weights in f32 or bf16 are cut."""
    return PLAIN if dtype == torch.float32 else HALVED


@dataclass(frozen=True, slots=True)
class Expert:
    """What does not change: addresses of the matrices of each layer i64 [layers], the maps from and to actions, f32.

    action_in [actions, width]; action_out [actions, width].
    """

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    action_in: Tensor
    action_in_bias: Tensor
    action_out: Tensor
    action_out_bias: Tensor
    ffn: int
    dtype: torch.dtype
    eps: float


@dataclass(frozen=True, slots=True)
class Timed:
    """What depends on times: `slot` and what it points into, see the module's docstring."""

    slot: Tensor
    maps: Tensor
    qkv_bias: Tensor
    gate_bias: Tensor


@dataclass(frozen=True, slots=True)
class Held:
    """Contexts that are read: data [layers, 2 · kv_heads, slots, head_dim], table i32 [B, P], length i32 [B], active bool [B]."""

    data: Tensor
    table: Tensor
    length: Tensor
    active: Tensor
    page_size: int


def step(
    actions: Tensor, expert: Expert, timed: Timed, held: Held, heads: int, cos: Tensor, sin: Tensor, cuts: Cuts
) -> Tensor:
    """Noisy actions f32 [B, horizon, actions] -> velocities of the same shape; cos, sin f32 [B · horizon, head_dim / 2]; see `fits`.

    The launch is a cooperative one: all programs run at once, or it is an error.
    """
    batch, horizon, count = actions.shape
    rows, width, layers = batch * horizon, expert.action_in.shape[1], len(expert.qkv)
    _, twice, _, dim = held.data.shape
    kv_heads, device = twice // 2, actions.device
    group, padded = heads // kv_heads, max(16, triton.next_power_of_2(rows))
    at_once = programs(device)
    tiles = triton.cdiv(horizon * group, TILE)
    groups = tiles * batch * kv_heads
    splits = _parts_of(held.table.shape[1] * held.page_size)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    arrived, counter = torch.zeros(2, max(32, width // cuts.added), dtype=torch.int32, device=device)
    velocities = made(batch, horizon, count)
    _flow_step[(at_once,)](
        actions, expert.action_in, expert.action_in_bias, expert.action_out, expert.action_out_bias, velocities, timed.maps, timed.slot,
        timed.qkv_bias, timed.gate_bias, cos, sin, expert.qkv, expert.out, expert.gate_up, expert.down, made(rows, width),
        made(rows, width, dtype=expert.dtype), made(rows, width // cuts.added),
        made(rows, (group + 2) * kv_heads * dim, dtype=expert.dtype), made(rows, heads * dim, dtype=expert.dtype),
        made(rows, expert.ffn, dtype=expert.dtype), made(cuts.parts * padded, width),
        made(groups * splits * TILE, dim, dtype=expert.dtype), made(groups * splits * TILE, 2),
        arrived, counter, held.data, held.table, held.length, held.active, dim**-0.5 * LOG2_E, expert.eps, rows, horizon, batch, layers,
        groups, timed.maps.stride(0), timed.qkv_bias.stride(0), timed.gate_bias.stride(0), held.data.stride(0), held.data.stride(1),
        held.table.stride(0), ACTIONS=count, ACTIONS_PAD=max(16, triton.next_power_of_2(count)), WIDTH=width,
        PAD=triton.next_power_of_2(width), FFN=expert.ffn, ROWS=padded, KV_HEADS=kv_heads, GROUP=group, DIM=dim, PAGE=held.page_size,
        TILE=TILE, BLOCK=BLOCK, SPLITS=splits, TILES=tiles, SOME=4, OUT=cuts.added, IN=cuts.block, STAGES=cuts.stages,
        TURNED_OUT=cuts.turned, PARTS=cuts.parts, GATED_OUT=cuts.gated, CLOSED=8,
        SQUARES=triton.next_power_of_2(width // cuts.added), PROGRAMS=at_once,
        PRECISION="ieee" if expert.dtype == torch.float32 else "tf32", NATIVE=actions.is_cuda, num_warps=cuts.warps,
        launch_cooperative_grid=actions.is_cuda,
    )  # fmt: skip
    return velocities


def fits(device: torch.device, batch: int, horizon: int, entries: int) -> bool:
    """Whether so many rows are a tile, those of a request a block of attention, and contexts of up to so many entries few enough parts; and
    whether the device has what the kernel takes."""
    able = device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)
    return able and batch * horizon <= MAX_ROWS and horizon <= BLOCK and _parts_of(entries) <= MAX_PARTS


def _parts_of(entries: int) -> int:
    """The parts of attention for a context of so many entries: its blocks, and the own rows."""
    return 1 + -(-entries // BLOCK)


def places(matrices: list[Tensor]) -> Tensor:
    """A table of addresses, i64 [matrices]; their owner keeps them."""
    return torch.tensor([matrix.data_ptr() for matrix in matrices], device=matrices[0].device)
