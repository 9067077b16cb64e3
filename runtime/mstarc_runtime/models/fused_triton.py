"""Small Triton kernels between the matrix products of a transformer layer: each reads and writes its rows once.

All compute in f32 and give the dtype of their input. They take CUDA tensors, or CPU ones under Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstarc_runtime.engines.early_triton import early, in_turn

GATE_BLOCK = 1024


@triton.jit
def _add_norm(x, y, weight, out, eps, WIDTH: tl.constexpr, PAD: tl.constexpr, ADD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, PAD)
    there = at < WIDTH
    sums = tl.load(x + row + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        sums += tl.load(y + row + at, mask=there, other=0.0).to(tl.float32)
        tl.store(x + row + at, sums.to(x.dtype.element_ty), mask=there)
    scale = tl.rsqrt(tl.sum(sums * sums, 0) / WIDTH + eps)
    normed = sums * scale * tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row + at, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def _add_layer_norm(
    x, y, weight, bias, out, eps, WIDTH: tl.constexpr, PAD: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * WIDTH
    at = tl.arange(0, PAD)
    there = at < WIDTH
    in_turn(EARLY)
    sums = tl.load(x + row + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        sums += tl.load(y + row + at, mask=there, other=0.0).to(tl.float32)
        tl.store(x + row + at, sums.to(x.dtype.element_ty), mask=there)
    centred = tl.where(there, sums - tl.sum(sums, 0) / WIDTH, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
    normed = centred * scale * tl.load(weight + at, mask=there, other=0.0).to(tl.float32)
    normed += tl.load(bias + at, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row + at, normed.to(out.dtype.element_ty), mask=there)


@triton.jit
def _rotate(
    x,
    cos,
    sin,
    row_stride,
    table_stride,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    HALF: tl.constexpr,
    PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEADS_PAD), tl.arange(0, PAD)
    there = (head < HEADS)[:, None] & (at < HALF)[None, :]
    place = x + row * row_stride + head[:, None] * (2 * HALF) + at[None, :]
    first = tl.load(place, mask=there, other=0.0).to(tl.float32)
    second = tl.load(place + HALF, mask=there, other=0.0).to(tl.float32)
    c = tl.load(cos + row * table_stride + at, mask=at < HALF, other=0.0)[None, :]
    s = tl.load(sin + row * table_stride + at, mask=at < HALF, other=0.0)[None, :]
    tl.store(place, (first * c - second * s).to(x.dtype.element_ty), mask=there)
    tl.store(place + HALF, (second * c + first * s).to(x.dtype.element_ty), mask=there)


@triton.jit
def _rotate_pairs(
    x,
    cos,
    sin,
    out,
    row_stride,
    table_rows,
    HEADS: tl.constexpr,
    HEADS_PAD: tl.constexpr,
    DIM: tl.constexpr,
    PAD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head, at = tl.arange(0, HEADS_PAD), tl.arange(0, PAD)
    there = (head < HEADS)[:, None] & (at < DIM)[None, :]
    place = head[:, None] * DIM + at[None, :]
    table = (row % table_rows) * DIM + at
    own = tl.load(x + row * row_stride + place, mask=there, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(own, [HEADS_PAD, PAD // 2, 2]))
    swapped = tl.reshape(tl.join(odd, even), [HEADS_PAD, PAD])
    c = tl.load(cos + table, mask=at < DIM, other=0.0)[None, :]
    s = tl.load(sin + table, mask=at < DIM, other=0.0)[None, :]
    turned = own * c + swapped * s
    tl.store(out + row * (HEADS * DIM) + place, turned.to(out.dtype.element_ty), mask=there)


@triton.jit
def _gelu_mul(pair, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(pair + row * 2 * width + at, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(pair + row * 2 * width + width + at, mask=at < width, other=0.0).to(tl.float32)
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi): 1 + tanh(z) = 2 sigmoid(2 z)
    mixed = gate / (1.0 + tl.exp(-inner)) * up
    tl.store(out + row * width + at, mixed.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def _silu_mul(pair, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(pair + row * 2 * width + at, mask=at < width, other=0.0).to(tl.float32)
    up = tl.load(pair + row * 2 * width + width + at, mask=at < width, other=0.0).to(tl.float32)
    mixed = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, mixed.to(out.dtype.element_ty), mask=at < width)


def add_rms_norm(x: Tensor, y: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype | None = None) -> Tensor:
    """x += y in place, then its RMS norm x / sqrt(mean(x²) + eps) · weight. x, y [n, width]; in `dtype`, or that of `weight`."""
    rows, width = x.shape
    out = torch.empty(rows, width, dtype=dtype or weight.dtype, device=x.device)
    pad = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        x,
        x if y is None else y,
        weight,
        out,
        eps,
        WIDTH=width,
        PAD=pad,
        ADD=y is not None,
        num_warps=8 if pad > 1024 else 4,
    )
    return out


def add_layer_norm(x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """x += y in place, then its layer norm, in the dtype of x. x, y [n, width]."""
    rows, width = x.shape
    out = torch.empty_like(x)
    pad = triton.next_power_of_2(width)
    _add_layer_norm[(rows,)](
        x,
        x if y is None else y,
        weight,
        bias,
        out,
        eps,
        WIDTH=width,
        PAD=pad,
        ADD=y is not None,
        num_warps=8 if pad > 1024 else 4,
        **early(x.device),
    )
    return out


def rotate(x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> None:
    """Turn the first `heads` heads of x [n, heads or more, head_dim] in place by f32 tables [n, head_dim / 2], rows equally far apart.

    Rotary positions in HF's order: the two members of a pair are half a head apart. The dims within a row of x are dense.
    """
    half = x.shape[2] // 2
    _rotate[(len(x),)](
        x,
        cos,
        sin,
        x.stride(0),
        cos.stride(0),
        HEADS=heads,
        HEADS_PAD=triton.next_power_of_2(heads),
        HALF=half,
        PAD=triton.next_power_of_2(half),
        num_warps=8,
    )


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rows x [n, heads, head_dim] turned by f32 tables [rows, head_dim], repeated if there are fewer: x · cos + swapped(x) · sin.

    `swapped` exchanges neighbouring dims; the sines carry the signs. The dims within a row of x are dense.
    """
    rows, heads, dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rotate_pairs[(rows,)](
        x,
        cos,
        sin,
        out,
        x.stride(0),
        cos.shape[0],
        HEADS=heads,
        HEADS_PAD=triton.next_power_of_2(heads),
        DIM=dim,
        PAD=triton.next_power_of_2(dim),
        num_warps=4,
    )
    return out


def gelu_mul(pair: Tensor) -> Tensor:
    """gelu(gate) · up by the tanh formula, of rows that hold gate, then up: [n, 2 · width] -> [n, width]."""
    rows, width = len(pair), pair.shape[1] // 2
    out = torch.empty(rows, width, dtype=pair.dtype, device=pair.device)
    _gelu_mul[(rows, triton.cdiv(width, GATE_BLOCK))](pair, out, width, BLOCK=GATE_BLOCK, num_warps=4)
    return out


def silu_mul(pair: Tensor) -> Tensor:
    """silu(gate) · up of rows that hold gate, then up: [n, 2 · width] -> [n, width]."""
    rows, width = len(pair), pair.shape[1] // 2
    out = torch.empty(rows, width, dtype=pair.dtype, device=pair.device)
    _silu_mul[(rows, triton.cdiv(width, GATE_BLOCK))](pair, out, width, BLOCK=GATE_BLOCK, num_warps=4)
    return out
