"""The decoder of SNAC (Siuzdak et al., "SNAC: Multi-Scale Neural Audio Codec", 2024): codes of several rates -> samples.

All convolutions see a whole window; nothing is causal. Shapes: B requests, T time steps of a stage, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mstarc_runtime.models.orpheus.config import SnacConfig

_DILATIONS = (1, 3, 9)
_KERNEL = 7


class Codebook(nn.Module):
    """Codes [B, T] -> their vectors [B, dim, T]."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, dim))

    def forward(self, codes: Tensor) -> Tensor:
        return F.embedding(codes, self.weight).transpose(1, 2)


class Snake(nn.Module):
    """x + sin²(αx) / α, with an α for each channel (Ziyin et al., 2020)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class Residual(nn.Module):
    """Two activations and convolutions beside a straight line; the first convolution works on each channel alone."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (_KERNEL - 1) // 2
        self.snake1 = Snake(channels)
        self.deep = nn.Conv1d(channels, channels, _KERNEL, dilation=dilation, padding=padding, groups=channels)
        self.snake2 = Snake(channels)
        self.wide = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.wide(self.snake2(self.deep(self.snake1(x))))
        return out


class Upsample(nn.Module):
    """A stage: `rate` times as many steps, half as many channels, noise, residuals. [B, C, T] -> [B, C/2, rate · T]."""

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        self.snake = Snake(channels)
        self.up = nn.ConvTranspose1d(
            channels, half, 2 * rate, stride=rate, padding=(rate + 1) // 2, output_padding=rate % 2
        )
        self.noise = nn.Conv1d(half, half, 1, bias=False)
        self.residuals = nn.ModuleList(Residual(half, dilation) for dilation in _DILATIONS)

    def forward(self, x: Tensor, noise: Tensor | None) -> Tensor:
        """`noise` [B, rate · T] is the same for all channels; None leaves it out."""
        x = self.up(self.snake(x))
        if noise is not None:
            x = x + noise[:, None] * self.noise(x)
        for residual in self.residuals:
            x = residual(x)
        return x


class SnacDecoder(nn.Module):
    """Codes [B, frames · codes of the level] per level -> samples [B, frames · samples of a frame], each in (-1, 1)."""

    def __init__(self, config: SnacConfig) -> None:
        super().__init__()
        latent, width = config.latent_dim, config.decoder_dim
        self.strides = config.vq_strides
        self.codebooks = nn.ModuleList(Codebook(config.codebook_size, config.codebook_dim) for _ in self.strides)
        self.projections = nn.ModuleList(nn.Conv1d(config.codebook_dim, latent, 1) for _ in self.strides)
        self.deep = nn.Conv1d(latent, latent, _KERNEL, padding=_KERNEL // 2, groups=latent)
        self.wide = nn.Conv1d(latent, width, 1)
        self.stages = nn.ModuleList(Upsample(width >> n, rate) for n, rate in enumerate(config.decoder_rates))
        last = width >> len(config.decoder_rates)
        self.snake = Snake(last)
        self.out = nn.Conv1d(last, 1, _KERNEL, padding=_KERNEL // 2)

    def latents(self, codes: Sequence[Tensor]) -> Tensor:
        """The sum of what the levels say, each repeated to the finest rate [B, latent, T]."""
        levels = [
            projection(codebook(level)).repeat_interleave(stride, dim=2)
            for level, stride, codebook, projection in zip(
                codes, self.strides, self.codebooks, self.projections, strict=True
            )
        ]
        return torch.stack(levels).sum(0)

    def forward(self, codes: Sequence[Tensor], noise: Sequence[Tensor] | None = None) -> Tensor:
        """`noise`: standard normals [B, time steps] for each stage; None leaves the noise out."""
        x = self.wide(self.deep(self.latents(codes)))
        for n, stage in enumerate(self.stages):
            x = stage(x, None if noise is None else noise[n])
        return torch.tanh(self.out(self.snake(x)))[:, 0]
