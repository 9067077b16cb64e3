"""What lies between the large products of the SNAC decoder, as Triton kernels that read and write their rows once.

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
    """A sine squared has period π, and is a polynomial within half of it (error 6e-9)."""
    angle = alpha * x
    turns = tl.floor(angle * 0.3183098861837907 + 0.5)
    r = (angle - turns * 3.140625) - turns * 9.67653589793e-4  # π in two parts; the first product is exact
    q = r * r
    sine = r * ((((2.60184447e-6 * q - 1.98073890e-4) * q + 8.33302466e-3) * q - 1.66666567e-1) * q + 1.0)
    return x + sine * sine / (alpha + 1e-9)


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


@triton.jit
def _fold(z, bias, out, z_row, taken, first, STEPS, RATE: tl.constexpr, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    row, channel = line // CHANNELS, line % CHANNELS
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    step, tap = (first + at) // RATE, (first + at) % RATE
    lines = z + row.to(tl.int64) * z_row + (channel * 2 * RATE + tap) * taken
    total = tl.load(bias + channel) + tl.load(lines + step, mask=(step < taken) & (at < STEPS), other=0.0)
    before = (step > 0) & (step <= taken) & (at < STEPS)
    total += tl.load(lines + RATE * taken + step - 1, mask=before, other=0.0)
    tl.store(out + line.to(tl.int64) * STEPS + at, total, mask=at < STEPS)


@triton.jit
def _add(x, z, bias, x_row, x_channel, CHANNELS: tl.constexpr, STEPS, BLOCK: tl.constexpr):
    line = tl.program_id(0)
    row, channel = line // CHANNELS, line % CHANNELS
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = z + line.to(tl.int64) * STEPS + at
    value = tl.load(x + row.to(tl.int64) * x_row + channel * x_channel + at, mask=at < STEPS, other=0.0)
    value += tl.load(place, mask=at < STEPS, other=0.0) + tl.load(bias + channel)
    tl.store(place, value, mask=at < STEPS)


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


def fold(z: Tensor, bias: Tensor, rate: int, first: int, steps: int) -> Tensor:
    """A transposed convolution of stride `rate` from what each input step gives to its 2 · rate outputs: so many steps from `first` on.

    z [B, C · 2 · rate, T], dense; outputs are counted as without padding.
    """
    rows, taken = len(z), z.shape[2]
    channels = z.shape[1] // (2 * rate)
    out = torch.empty(rows, channels, steps, device=z.device)
    _fold[(rows * channels, triton.cdiv(steps, _BLOCK))](
        z, bias, out, z.stride(0), taken, first, STEPS=steps, RATE=rate, CHANNELS=channels, BLOCK=_BLOCK, num_warps=4
    )
    return out


def add(x: Tensor, z: Tensor, bias: Tensor) -> Tensor:
    """x + z + bias [C], in the place of z, which is dense."""
    rows, channels, steps = z.shape
    _add[(rows * channels, triton.cdiv(steps, _BLOCK))](
        x, z, bias, x.stride(0), x.stride(1), CHANNELS=channels, STEPS=steps, BLOCK=_BLOCK, num_warps=4
    )
    return z
