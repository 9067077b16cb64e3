"""The products of a decode step as Triton kernels, with the small operations around them inside: one kernel does what four did.

A product of few rows reads each weight once and waits for memory alone. `step_gluon` has the same products for Hopper, which keep memory
busy between two kernels as well; `step_products` says what they do. `begin` makes the rows of the first one: token ids -> the residual
stream, its scaled rows, their squares; sines and cosines of the positions.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstarc_runtime.engines.early_triton import early, in_turn
from mstarc_runtime.models.step_products import IN, OUT, Products, Stream, f32


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
    x, weight, rows,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
    PARTS: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program's tile of outputs over its part of the inputs, f32 [OUT, ROWS]."""
    blocks: tl.constexpr = INS // IN
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    low = part * blocks // PARTS
    high = (part + 1) * blocks // PARTS
    at, row = tl.arange(0, IN), tl.arange(0, ROWS)
    own = weight + _rows_of(tile, tl.arange(0, OUT), OUTS, OUT, GATED)[:, None] * INS
    theirs = x + row[:, None] * INS
    there = (row < rows)[:, None]
    sums = tl.zeros([OUT, ROWS], tl.float32)
    for start in range(low * IN, high * IN, IN):
        some = tl.load(own + (start + at)[None, :], eviction_policy="evict_first")
        theirs_here = tl.load(theirs + (start + at)[None, :], mask=there, other=0.0)
        sums = tl.dot(some, tl.trans(theirs_here), sums, input_precision=PRECISION)
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
    x, weight, squares, out, rows, eps,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, PARTS, False, ROWS, PRECISION)
    sums = _normed(sums, squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    tile, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    row, col = tl.arange(0, ROWS), tile * OUT + tl.arange(0, OUT)
    place = (part * rows + row[None, :]).to(tl.int64) * OUTS + col[:, None]
    tl.store(out + place, sums, mask=(row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _gated_product(
    x, weight, squares, out, rows, eps,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    half: tl.constexpr = OUT // 2
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, 1, True, ROWS, PRECISION)
    sums = _normed(sums, squares, rows, eps, INS, ROWS, TILES, TILES_PAD)
    gate, up = tl.split(tl.permute(tl.reshape(sums, [2, half, ROWS]), (1, 2, 0)))
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    row, col = tl.arange(0, ROWS), tl.program_id(0) * half + tl.arange(0, half)
    place = row[None, :] * (OUTS // 2) + col[:, None]
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=(row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _add_product(
    x, weight, residual, norm, out, squares, parts, arrived, rows,
    OUTS: tl.constexpr, INS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    sums = _sums(x, weight, rows, OUTS, INS, OUT, IN, PARTS, False, ROWS, PRECISION)
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
    ids, embed, norm, positions, frequencies, residual, out, squares, cos, sin, vocab,
    WIDTH: tl.constexpr, PAD: tl.constexpr, TILES: tl.constexpr, TILES_PAD: tl.constexpr,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Programs (row, 0): the row's numbers; (row, 1): its sines and cosines, which take as long."""
    in_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) == 0:
        token = tl.load(ids + row)
        at, tile = tl.arange(0, PAD), tl.arange(0, TILES_PAD)
        there = (at < WIDTH) & (token >= 0) & (token < vocab)
        scale = tl.load(norm + at, mask=at < WIDTH, other=0.0).to(tl.float32)
        x = tl.load(embed + token * WIDTH + at, mask=there, other=0.0).to(tl.float32)
        tl.store(residual + row * WIDTH + at, x, mask=at < WIDTH)
        tl.store(out + row * WIDTH + at, (x * scale).to(out.dtype.element_ty), mask=at < WIDTH)
        tl.store(squares + row * TILES + tile, tl.where(tile == 0, tl.sum(x * x, 0), 0.0), mask=tile < TILES)
    else:
        pair = tl.arange(0, HALF_PAD)
        turn = tl.load(frequencies + pair, mask=pair < HALF, other=0.0)
        angle = (tl.load(positions + row).to(tl.float32) * turn).to(tl.float64)
        tl.store(cos + row * HALF + pair, tl.cos(angle).to(tl.float32), mask=pair < HALF)
        tl.store(sin + row * HALF + pair, tl.sin(angle).to(tl.float32), mask=pair < HALF)


def begin(
    ids: Tensor, embed: Tensor, norm: Tensor, positions: Tensor, frequencies: Tensor, tiles: int
) -> tuple[Stream, Tensor, Tensor]:
    """Ids i64 [B] -> their stream, and cosines and sines f32 [B, head_dim / 2] of positions i64 [B] x frequencies."""
    rows, width, half = len(ids), embed.shape[1], len(frequencies)
    stream = Stream(f32(ids, rows, width), embed.new_empty(rows, width), f32(ids, rows, tiles))
    cos, sin = f32(ids, rows, half), f32(ids, rows, half)
    _begin[(rows, 2)](
        ids, embed, norm, positions, frequencies, stream.residual, stream.scaled, stream.squares, cos, sin, len(embed),
        WIDTH=width, PAD=triton.next_power_of_2(width), TILES=tiles, TILES_PAD=triton.next_power_of_2(tiles),
        HALF=half, HALF_PAD=triton.next_power_of_2(half), num_warps=8, **early(ids.device),
    )  # fmt: skip
    return stream, cos, sin


def _options(kernel: Any, weight: Tensor, rows: int) -> dict[str, Any]:
    exact = weight.dtype == torch.float32
    precision, stages = ("ieee", 2) if exact else ("tf32", 4)
    padded = max(16, triton.next_power_of_2(rows))
    return {"OUT": OUT, "IN": IN, "ROWS": padded, "PRECISION": precision, "num_warps": 4, "num_stages": stages}


PRODUCTS = Products(_parts_product, _gated_product, _add_product, _options)
