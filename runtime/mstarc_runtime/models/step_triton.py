"""The products of a decode step as Triton kernels, with the small operations around them inside.

A product of few rows reads each weight once and waits for memory alone, so memory should never idle: one kernel does what four did, a
kernel starts before the last one has ended, and before it waits for that one it asks for its first weights (`early_triton`).

    begin           token ids -> the residual stream, its scaled rows, their squares; sines and cosines of the positions
    parts_product   scaled rows -> f32 in parts that are to be summed (queries, keys and values; the head, in one part)
    gated_product   scaled rows -> silu(gate) · up
    add_product     rows -> added to the residual stream: its scaled rows, their squares

*Scaled rows* are x · weight of the next norm. The norm's other factor, 1 / sqrt(mean(x²) + eps), is one number a row: the product that
reads them applies it to its sums. *Squares* f32 [rows, tiles] are sums of x² by tile of outputs. A program takes a tile of outputs and
a part of the inputs; the last to be done with a tile joins its parts, in their order, so that no result depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mstarc_runtime.engines.early_triton import early

MAX_ROWS = 32  # with 64, every program's own copy of the rows makes the step slower than cuBLAS's


@triton.jit
def _rows_of(tile, member, OUTS: tl.constexpr, OUT: tl.constexpr, GATED: tl.constexpr):
    """The weight's rows of a tile, i64; if GATED a first half of gates, and a second of what they are multiplied with."""
    if GATED:
        half: tl.constexpr = OUT // 2
        found = tile * half + member % half + tl.where(member < half, 0, OUTS // 2)
    else:
        found = tile * OUT + member
    return found.to(tl.int64)


@triton.jit
def _sums(
    x,
    weight,
    rows,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    GATED: tl.constexpr,
    LEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """A program's tile of outputs over its part of the inputs, f32 [OUT, ROWS].

    The first LEAD columns of weights are loaded before the wait for the kernel before, and used last.
    """
    blocks: tl.constexpr = INS // IN
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    low = part * blocks // PARTS
    high = (part + 1) * blocks // PARTS
    at, row = tl.arange(0, IN), tl.arange(0, ROWS)
    own = weight + _rows_of(tile, tl.arange(0, OUT), OUTS, OUT, GATED)[:, None] * INS
    theirs = x + row[:, None] * INS
    there = (row < rows)[:, None]
    if EARLY:
        gdc_launch_dependents()
    if LEAD > 0:
        at_lead = low * IN + tl.arange(0, LEAD)
        first = tl.load(own + at_lead[None, :], eviction_policy="evict_first")
    if EARLY:
        gdc_wait()
    sums = tl.zeros([OUT, ROWS], tl.float32)
    for start in range(low * IN + LEAD, high * IN, IN):
        some = tl.load(own + (start + at)[None, :], eviction_policy="evict_first")
        theirs_here = tl.load(theirs + (start + at)[None, :], mask=there, other=0.0)
        sums = tl.dot(some, tl.trans(theirs_here), sums, input_precision=PRECISION)
    if LEAD > 0:
        theirs_lead = tl.load(theirs + at_lead[None, :], mask=there, other=0.0)
        sums = tl.dot(first, tl.trans(theirs_lead), sums, input_precision=PRECISION)
    return sums


@triton.jit
def _normed(
    sums, squares, rows, eps, INS: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr
):
    """Sums [any, ROWS] of scaled rows, with the factor of each row."""
    row, tile = tl.arange(0, ROWS), tl.arange(0, TILES_PAD)
    there = (row < rows)[:, None] & (tile < TILES)[None, :]
    mean = tl.sum(tl.load(squares + row[:, None] * TILES + tile[None, :], mask=there, other=0.0), 1) / INS
    return sums * tl.rsqrt(mean + eps)[None, :]


@triton.jit(do_not_specialize=["rows"])
def _parts_product(
    x,
    weight,
    squares,
    out,
    rows,
    eps,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    LEAD: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, PARTS, False, LEAD, ROWS, PRECISION, EARLY)
    sums = _normed(sums, squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row, col = tl.arange(0, ROWS), tile * OUT + tl.arange(0, OUT)
    place = (part * rows + row[None, :]).to(tl.int64) * OUTS + col[:, None]
    tl.store(out + place, sums, mask=(row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _gated_product(
    x,
    weight,
    squares,
    out,
    rows,
    eps,
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    LEAD: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    half: tl.constexpr = OUT // 2
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, 1, True, LEAD, ROWS, PRECISION, EARLY)
    sums = _normed(sums, squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    gate, up = tl.split(tl.permute(tl.reshape(sums, [2, half, ROWS]), (1, 2, 0)))
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    row, col = tl.arange(0, ROWS), tl.program_id(0) * half + tl.arange(0, half)
    place = row[None, :] * (OUTS // 2) + col[:, None]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=(row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
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
    OUTS: tl.constexpr,
    INS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PARTS: tl.constexpr,
    LEAD: tl.constexpr,
    ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, PARTS, False, LEAD, ROWS, PRECISION, EARLY)
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row, col = tl.arange(0, ROWS), tile * OUT + tl.arange(0, OUT)
    there = (row < rows)[None, :]
    place = row[None, :] * OUTS + col[:, None]
    last = True
    if PARTS > 1:
        tl.store(parts + part * rows * OUTS + place, sums, mask=there)
        tl.debug_barrier()
        last = tl.atomic_add(arrived + tile, 1, sem="acq_rel") == PARTS - 1
    if last:
        if PARTS > 1:
            tl.store(arrived + tile, 0)
            sums = tl.zeros([OUT, ROWS], tl.float32)
            for other in tl.static_range(PARTS):
                sums += tl.load(parts + other * rows * OUTS + place, mask=there, other=0.0, cache_modifier=".cg")
        whole = tl.load(residual + place, mask=there, other=0.0) + sums
        tl.store(residual + place, whole, mask=there)
        tl.store(squares + row * (OUTS // OUT) + tile, tl.sum(whole * whole, 0), mask=row < rows)
        scaled = whole * tl.load(norm + col).to(tl.float32)[:, None]
        tl.store(out + place, scaled.to(out.dtype.element_ty), mask=there)


@triton.jit
def _begin(
    ids,
    embed,
    norm,
    positions,
    frequencies,
    residual,
    out,
    squares,
    cos,
    sin,
    vocab,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    TILES: tl.constexpr,
    TILES_PAD: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PAD: tl.constexpr,
    EARLY: tl.constexpr,
):
    if EARLY:
        gdc_launch_dependents()  # itself it starts when all before it is done, and so begins a chain
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(ids + row)
    at, tile, pair = tl.arange(0, PAD), tl.arange(0, TILES_PAD), tl.arange(0, HALF_PAD)
    there = (at < WIDTH) & (token >= 0) & (token < vocab)
    x = tl.load(embed + token * WIDTH + at, mask=there, other=0.0).to(tl.float32)
    tl.store(residual + row * WIDTH + at, x, mask=at < WIDTH)
    scaled = x * tl.load(norm + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, scaled.to(out.dtype.element_ty), mask=at < WIDTH)
    tl.store(squares + row * TILES + tile, tl.where(tile == 0, tl.sum(x * x, 0), 0.0), mask=tile < TILES)
    turn = tl.load(frequencies + pair, mask=pair < HALF, other=0.0)
    angle = (tl.load(positions + row).to(tl.float32) * turn).to(tl.float64)
    tl.store(cos + row * HALF + pair, tl.cos(angle).to(tl.float32), mask=pair < HALF)
    tl.store(sin + row * HALF + pair, tl.sin(angle).to(tl.float32), mask=pair < HALF)


@dataclass(frozen=True, slots=True)
class Blocking:
    """How a product is cut: outputs of a tile, inputs of a block, parts of the inputs, warps, stages, inputs of weights loaded early.

    Two programs should fit on a multiprocessor of an H200, not three, and so many should be launched: a kernel that starts early takes
    what room there is, and where that is uneven some multiprocessors get more work than others.
    """

    out: int = 64
    block: int = 128
    parts: int = 1
    stages: int = 3
    lead: int = 256  # a multiple of `block`, a power of two or 0
    warps: int = 4


@dataclass(frozen=True, slots=True)
class Stream:
    """B rows between products: residual f32 [B, hidden], `scaled` [B, hidden] in the weights' dtype, squares f32 [B, tiles]."""

    residual: Tensor
    scaled: Tensor
    squares: Tensor


def begin(
    ids: Tensor, embed: Tensor, norm: Tensor, positions: Tensor, frequencies: Tensor, tiles: int
) -> tuple[Stream, Tensor, Tensor]:
    """Ids i64 [B] -> their stream, and cosines and sines f32 [B, head_dim / 2] of positions i64 [B] x frequencies."""
    rows, width, half = len(ids), embed.shape[1], len(frequencies)
    stream = Stream(_f32(ids, rows, width), embed.new_empty(rows, width), _f32(ids, rows, tiles))
    cos, sin = _f32(ids, rows, half), _f32(ids, rows, half)
    _begin[(rows,)](
        ids,
        embed,
        norm,
        positions,
        frequencies,
        stream.residual,
        stream.scaled,
        stream.squares,
        cos,
        sin,
        len(embed),
        WIDTH=width,
        PAD=triton.next_power_of_2(width),
        TILES=tiles,
        TILES_PAD=triton.next_power_of_2(tiles),
        HALF=half,
        HALF_PAD=triton.next_power_of_2(half),
        EARLY=early(ids.device)["EARLY"],
        num_warps=8,
    )
    return stream, cos, sin


def parts_product(stream: Stream, weight: Tensor, eps: float, blocking: Blocking) -> Tensor:
    """RMS norm of the stream · weight [outs, ins]^T -> f32 [parts, B, outs], to be summed over dim 0."""
    rows, (outs, tiles) = len(stream.scaled), (len(weight), stream.squares.shape[1])
    out = _f32(weight, blocking.parts, rows, outs)
    _parts_product[(outs // blocking.out * blocking.parts,)](
        stream.scaled,
        weight,
        stream.squares,
        out,
        rows,
        eps,
        PARTS=blocking.parts,
        TILES=tiles,
        TILES_PAD=triton.next_power_of_2(tiles),
        **_options(weight, rows, blocking),
    )
    return out


def gated_product(stream: Stream, weight: Tensor, eps: float, blocking: Blocking) -> Tensor:
    """silu(gate) · up [B, outs / 2] of the RMS norm of the stream; weight [outs, ins] has the rows of all gates first."""
    rows, (outs, tiles) = len(stream.scaled), (len(weight), stream.squares.shape[1])
    out = weight.new_empty(rows, outs // 2)
    _gated_product[(outs // blocking.out,)](
        stream.scaled,
        weight,
        stream.squares,
        out,
        rows,
        eps,
        TILES=tiles,
        TILES_PAD=triton.next_power_of_2(tiles),
        **_options(weight, rows, blocking),
    )
    return out


def add_product(stream: Stream, x: Tensor, weight: Tensor, norm: Tensor, arrived: Tensor, blocking: Blocking) -> Stream:
    """The stream with x [B, ins] · weight [outs, ins]^T added in place; `norm` is the weight of the norm that follows.

    arrived: zeros i32, one or more for each tile, left as zeros.
    """
    rows, outs, tiles = len(x), len(weight), len(weight) // blocking.out
    after = Stream(stream.residual, weight.new_empty(rows, outs), _f32(weight, rows, tiles))
    _add_product[(tiles * blocking.parts,)](
        x,
        weight,
        stream.residual,
        norm,
        after.scaled,
        after.squares,
        _f32(weight, blocking.parts, rows, outs),
        arrived,
        rows,
        PARTS=blocking.parts,
        **_options(weight, rows, blocking),
    )
    return after


def _options(weight: Tensor, rows: int, blocking: Blocking) -> dict[str, Any]:
    outs, ins = weight.shape
    return {
        "OUTS": outs,
        "INS": ins,
        "OUT": blocking.out,
        "IN": blocking.block,
        "LEAD": blocking.lead,
        "ROWS": max(16, triton.next_power_of_2(rows)),
        "PRECISION": "ieee" if weight.dtype == torch.float32 else "tf32",
        "num_warps": blocking.warps,
        "num_stages": blocking.stages,
        **early(weight.device),
    }


def _f32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)
