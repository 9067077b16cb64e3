"""Triton kernels of a flow step: few rows (a horizon per request) through the action expert, each weight read once.

All sums are f32. A sublayer's product with a part of its inner width leaves a partial sum, f32 [parts, rows, width]; the norm that
follows adds them up. Kernels take CUDA tensors, or CPU ones under Triton's interpreter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from mstarc_runtime.models.fused_triton import gelu_mul, rotate


@triton.jit
def _angles(positions, frequencies, cos, sin, HALF: tl.constexpr, PAD: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, PAD)
    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + at, mask=at < HALF, other=0.0)
    tl.store(cos + row * HALF + at, tl.cos(angle), mask=at < HALF)
    tl.store(sin + row * HALF + at, tl.sin(angle), mask=at < HALF)


@triton.jit
def _pair(x, weight, row, first, second, WIDTH: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr):
    """Rows of x [·, WIDTH] by two sets of rows of weight [·, WIDTH]: two f32 tiles [rows, columns]."""
    left = tl.zeros([row.shape[0], first.shape[0]], tl.float32)
    right = tl.zeros([row.shape[0], first.shape[0]], tl.float32)
    for start in range(0, WIDTH, INNER):
        k = start + tl.arange(0, INNER)
        inside = (k < WIDTH)[None, :]
        if WIDTH % INNER == 0:
            some = tl.load(x + row[:, None] * WIDTH + k[None, :])
            a = tl.load(weight + first[:, None] * WIDTH + k[None, :])
            b = tl.load(weight + second[:, None] * WIDTH + k[None, :])
        else:
            some = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
            a = tl.load(weight + first[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
            b = tl.load(weight + second[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
        left = tl.dot(some, tl.trans(a), left, input_precision=PRECISION)
        right = tl.dot(some, tl.trans(b), right, input_precision=PRECISION)
    return left, right


@triton.jit
def _gated(
    x, weight, out, rows,
    WIDTH: tl.constexpr, FFN: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, TILE)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = tl.minimum(row, rows - 1)
    first = tl.minimum(column, FFN - 1)
    gate, up = _pair(x, weight, held, first, FFN + first, WIDTH, INNER, PRECISION)
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # see `fused_triton._gelu_mul`
    mixed = gate / (1.0 + tl.exp(-inner)) * up
    kept = (row < rows)[:, None] & (column < FFN)[None, :]
    tl.store(out + row[:, None] * FFN + column[None, :], mixed.to(out.dtype.element_ty), mask=kept)


@triton.jit
def _turned(
    x, weight, cos, sin, out, rows,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, TURNED: tl.constexpr, HALF: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, TILE)
    head = tl.program_id(0) // tl.cdiv(HALF, BLOCK)
    dim = tl.program_id(0) % tl.cdiv(HALF, BLOCK) * BLOCK + tl.arange(0, BLOCK)
    held = tl.minimum(row, rows - 1)
    first = head * (2 * HALF) + tl.minimum(dim, HALF - 1)
    left, right = _pair(x, weight, held, first, first + HALF, WIDTH, INNER, PRECISION)
    kept = (row < rows)[:, None] & (dim < HALF)[None, :]
    turns = kept & (head < TURNED)
    c = tl.load(cos + row[:, None] * HALF + dim[None, :], mask=turns, other=1.0)
    s = tl.load(sin + row[:, None] * HALF + dim[None, :], mask=turns, other=0.0)
    place = out + row[:, None] * (HEADS * 2 * HALF) + head * (2 * HALF) + dim[None, :]
    tl.store(place, (left * c - right * s).to(out.dtype.element_ty), mask=kept)
    tl.store(place + HALF, (right * c + left * s).to(out.dtype.element_ty), mask=kept)


@triton.jit
def _partial(
    x, weight, out, rows, width,
    INSIDE: tl.constexpr, PARTS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, TILE)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.program_id(1)
    held, first = tl.minimum(row, rows - 1), tl.minimum(column, width - 1)
    share: tl.constexpr = (INSIDE + PARTS * INNER - 1) // (PARTS * INNER) * INNER
    begin = part * share
    total = tl.zeros([TILE, BLOCK], tl.float32)
    for start in range(0, share, INNER):
        k = begin + start + tl.arange(0, INNER)
        inside = (k < INSIDE)[None, :]
        if share * PARTS == INSIDE:
            some = tl.load(x + held[:, None] * INSIDE + k[None, :])
            a = tl.load(weight + first[:, None] * INSIDE + k[None, :])
        else:
            some = tl.load(x + held[:, None] * INSIDE + k[None, :], mask=inside, other=0.0)
            a = tl.load(weight + first[:, None] * INSIDE + k[None, :], mask=inside, other=0.0)
        total = tl.dot(some, tl.trans(a), total, input_precision=PRECISION)
    kept = (row < rows)[:, None] & (column < width)[None, :]
    tl.store(out + (part * rows + row[:, None]) * width + column[None, :], total, mask=kept)


@triton.jit(do_not_specialize=["number"])
def _normed(
    x, y, parts, slot, out, eps, all_rows, rows_each, slot_stride, number,
    WIDTH: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """x += gate of the norm before · the sum of y's parts, in place; then norm `number`."""
    row = tl.program_id(0)
    at = tl.arange(0, PAD)
    there = at < WIDTH
    place = row.to(tl.int64) * WIDTH + at
    held = parts + tl.load(slot + row // rows_each) * slot_stride + 3 * number * WIDTH + at
    total = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    added = tl.zeros([PAD], tl.float32)
    for part in tl.static_range(PARTS):
        added += tl.load(y + part * all_rows * WIDTH + place, mask=there, other=0.0).to(tl.float32)
    total += tl.load(held - WIDTH, mask=there, other=0.0) * added
    tl.store(x + place, total.to(x.dtype.element_ty), mask=there)
    factor = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + eps)
    scale = 1.0 + tl.load(held, mask=there, other=0.0)
    normed = total * factor * scale + tl.load(held + WIDTH, mask=there, other=0.0)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def _opened(
    actions, weight, bias, parts, slot, x, out, eps, rows_each, slot_stride,
    ACTIONS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Rows of the expert from noisy actions, and norm 0. weight [ACTIONS, WIDTH]."""
    row = tl.program_id(0)
    at = tl.arange(0, PAD)
    there = at < WIDTH
    total = tl.load(bias + at, mask=there, other=0.0)
    for k in range(ACTIONS):
        total += tl.load(actions + row * ACTIONS + k) * tl.load(weight + k * WIDTH + at, mask=there, other=0.0)
    place = row.to(tl.int64) * WIDTH + at
    total = total.to(x.dtype.element_ty)
    tl.store(x + place, total, mask=there)
    total = total.to(tl.float32)
    held = parts + tl.load(slot + row // rows_each) * slot_stride + at
    factor = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + eps)
    scale = 1.0 + tl.load(held, mask=there, other=0.0)
    normed = total * factor * scale + tl.load(held + WIDTH, mask=there, other=0.0)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["number"])
def _closed(
    x, y, parts, slot, weight, bias, out, eps, all_rows, rows_each, slot_stride, number,
    ACTIONS: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr, PARTS: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The last norm after the last sublayer's sum, and velocities f32. weight [ACTIONS, WIDTH]."""
    row = tl.program_id(0)
    at = tl.arange(0, PAD)
    there = at < WIDTH
    place = row.to(tl.int64) * WIDTH + at
    held = parts + tl.load(slot + row // rows_each) * slot_stride + 3 * number * WIDTH + at
    total = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    added = tl.zeros([PAD], tl.float32)
    for part in tl.static_range(PARTS):
        added += tl.load(y + part * all_rows * WIDTH + place, mask=there, other=0.0).to(tl.float32)
    total += tl.load(held - WIDTH, mask=there, other=0.0) * added
    factor = tl.rsqrt(tl.sum(total * total, 0) / WIDTH + eps)
    scale = 1.0 + tl.load(held, mask=there, other=0.0)
    normed = total * factor * scale + tl.load(held + WIDTH, mask=there, other=0.0)
    normed = tl.where(there, normed.to(x.dtype.element_ty).to(tl.float32), 0.0)
    for first in range(0, ACTIONS, SOME):
        action = first + tl.arange(0, SOME)
        kept = action < ACTIONS
        some = tl.load(weight + action[:, None] * WIDTH + at[None, :], mask=kept[:, None] & there[None, :], other=0.0)
        moved = tl.sum(some * normed[None, :], 1) + tl.load(bias + action, mask=kept, other=0.0)
        tl.store(out + row * ACTIONS + action, moved, mask=kept)


# what was fastest on an H200 at 50 rows: tests.bench's log
TILE = 64  # rows up to which these products are faster than the library's; they are one tile
PARTS = 4  # of an inner width
TURNED_BLOCK, GATED_BLOCK, PARTIAL_BLOCK = 16, 32, 32  # columns of a tile
STAGES = 8  # the most of a pipeline of loads; as many as shared memory holds


def angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines f32 [n, half] of rotary positions i64 [n]."""
    rows, half = len(positions), len(frequencies)
    cos, sin = torch.empty(2, rows, half, device=positions.device)
    _angles[(rows,)](positions, frequencies, cos, sin, HALF=half, PAD=triton.next_power_of_2(half), num_warps=4)
    return cos, sin


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """gelu(x · gate) · (x · up) by the tanh formula: x [n, width], weight [2 · ffn, width] holds gate, then up; [n, ffn]."""
    (rows, width), ffn = x.shape, len(weight) // 2
    if rows > TILE:
        return gelu_mul(F.linear(x, weight))
    out = torch.empty(rows, ffn, dtype=x.dtype, device=x.device)
    _gated[(triton.cdiv(ffn, GATED_BLOCK),)](
        x, weight, out, rows, WIDTH=width, FFN=ffn, TILE=TILE, BLOCK=GATED_BLOCK, **_steps(x, 2 * GATED_BLOCK),
    )  # fmt: skip
    return out


def turned(x: Tensor, weight: Tensor, heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows x [n, width] by weight [all heads · head_dim, width], the first `heads` heads turned: [n, all heads, head_dim].

    cos, sin f32 [n, head_dim / 2]: rotary positions whose pairs are half a head apart.
    """
    (rows, width), half = x.shape, cos.shape[1]
    count = len(weight) // (2 * half)
    if rows > TILE:
        product = F.linear(x, weight).view(rows, count, 2 * half)
        rotate(product, heads, cos, sin)
        return product
    out = torch.empty(rows, count, 2 * half, dtype=x.dtype, device=x.device)
    _turned[(count * triton.cdiv(half, TURNED_BLOCK),)](
        x, weight, cos, sin, out, rows, WIDTH=width, HEADS=count, TURNED=heads, HALF=half, TILE=TILE, BLOCK=TURNED_BLOCK,
        **_steps(x, 2 * TURNED_BLOCK),
    )  # fmt: skip
    return out


def partial(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, inside] by weight [width, inside], as sums of parts of the inner width: [parts, n, width]."""
    (rows, inside), width = x.shape, len(weight)
    if rows > TILE:
        return F.linear(x, weight)[None]
    out = torch.empty(PARTS, rows, width, device=x.device)
    _partial[(triton.cdiv(width, PARTIAL_BLOCK), PARTS)](
        x, weight, out, rows, width, INSIDE=inside, PARTS=PARTS, TILE=TILE, BLOCK=PARTIAL_BLOCK, **_steps(x, PARTIAL_BLOCK),
    )  # fmt: skip
    return out


def opened(
    actions: Tensor, weight: Tensor, bias: Tensor, parts: Tensor, slot: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Noisy actions f32 [B, horizon, actions] -> rows [B · horizon, width], and the same after norm 0. weight f32 [actions, width]."""
    batch, horizon, count = actions.shape
    width = weight.shape[1]
    x, out = torch.empty(2, batch * horizon, width, dtype=dtype, device=actions.device)
    _opened[(batch * horizon,)](
        actions, weight, bias, parts, slot, x, out, eps, horizon, parts.stride(0), ACTIONS=count, WIDTH=width,
        PAD=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return x, out


def normed(x: Tensor, y: Tensor, parts: Tensor, slot: Tensor, number: int, eps: float) -> Tensor:
    """x [n, width] += gate of norm `number` - 1 · the sum of y [parts, n, width], in place; then norm `number`."""
    rows, width = x.shape
    out = torch.empty_like(x)
    _normed[(rows,)](
        x, y, parts, slot, out, eps, rows, rows // len(slot), parts.stride(0), number, WIDTH=width, PAD=triton.next_power_of_2(width),
        PARTS=len(y), num_warps=4,
    )  # fmt: skip
    return out


def closed(
    x: Tensor, y: Tensor, parts: Tensor, slot: Tensor, number: int, eps: float, weight: Tensor, bias: Tensor
) -> Tensor:
    """As `normed`, then velocities f32 [n, actions]; weight f32 [actions, width]."""
    rows, width = x.shape
    out = torch.empty(rows, len(weight), device=x.device)
    _closed[(rows,)](
        x, y, parts, slot, weight, bias, out, eps, rows, rows // len(slot), parts.stride(0), number, ACTIONS=len(weight), WIDTH=width,
        PAD=triton.next_power_of_2(width), PARTS=len(y), SOME=8, num_warps=8,
    )  # fmt: skip
    return out


def _steps(x: Tensor, columns: int) -> dict[str, Any]:
    """The steps of a product of so many columns a tile: their inner width, how f32 is multiplied, and how many are under way."""
    inner = 32 if x.dtype == torch.float32 else 128
    loaded = (TILE + columns) * inner * x.element_size()
    stages = max(2, min(STAGES, _shared_memory(x.device) // loaded))
    return {"INNER": inner, "PRECISION": "ieee" if inner == 32 else "tf32", "num_warps": 4, "num_stages": stages}


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program can have."""
    if device.type != "cuda":
        return 1 << 17
    facts = torch.cuda.get_device_properties(device)
    return int(facts.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # left out of the type's description
