"""What lies between the large products of the SNAC decoder, as two Triton kernels that read and write their rows once.

Snake is x + sin²(αx) / (α + 1e-9), with an α for each channel. All values are f32 [B, C, T] with dense steps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 512


@triton.jit
def _snake(x, alpha):
    turned = tl.sin(alpha * x)
    return x + turned * turned / (alpha + 1e-9)


@triton.jit
def _snake_all(x, alphas, out, x_row, x_channel, CHANNELS: tl.constexpr, STEPS, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    row, channel = line // CHANNELS, line % CHANNELS
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row.to(tl.int64) * x_row + channel * x_channel + at, mask=at < STEPS, other=0.0)
    tl.store(out + line.to(tl.int64) * STEPS + at, _snake(value, tl.load(alphas + channel)), mask=at < STEPS)


@triton.jit
def _snake_conv_snake(
    x, before, weight, bias, after, out, x_row, x_channel, CHANNELS: tl.constexpr, STEPS, DILATION: tl.constexpr,
    TAPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    row, channel = line // CHANNELS, line % CHANNELS
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = x + row.to(tl.int64) * x_row + channel * x_channel
    alpha = tl.load(before + channel)
    total = tl.zeros((BLOCK,), dtype=tl.float32) + tl.load(bias + channel)
    for tap in tl.static_range(TAPS):
        place = at + (tap - TAPS // 2) * DILATION
        value = tl.load(start + place, mask=(place >= 0) & (place < STEPS), other=0.0)  # the snake of 0 is 0
        total += tl.load(weight + channel * TAPS + tap) * _snake(value, alpha)
    tl.store(out + line.to(tl.int64) * STEPS + at, _snake(total, tl.load(after + channel)), mask=at < STEPS)


def snake(x: Tensor, alpha: Tensor) -> Tensor:
    """Snake of x with alpha [1, C, 1]."""
    rows, channels, steps = x.shape
    out = torch.empty(x.shape, device=x.device)
    _snake_all[(rows * channels, triton.cdiv(steps, _BLOCK))](
        x, alpha, out, x.stride(0), x.stride(1), CHANNELS=channels, STEPS=steps, BLOCK=_BLOCK, num_warps=4
    )
    return out


def snake_conv_snake(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor, after: Tensor, dilation: int) -> Tensor:
    """Snake, a convolution of each channel alone (weight [C, 1, taps], padded to keep the steps), and snake."""
    rows, channels, steps = x.shape
    out = torch.empty(x.shape, device=x.device)
    _snake_conv_snake[(rows * channels, triton.cdiv(steps, _BLOCK))](
        x, before, weight, bias, after, out, x.stride(0), x.stride(1), CHANNELS=channels, STEPS=steps, DILATION=dilation,
        TAPS=weight.shape[2], BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out
