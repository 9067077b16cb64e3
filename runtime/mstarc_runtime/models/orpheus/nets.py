"""The decoder of SNAC (Siuzdak et al., "SNAC: Multi-Scale Neural Audio Codec", 2024): codes of several rates -> samples.

All convolutions see a whole window; nothing is causal. Shapes: B requests, T time steps of a stage, C channels. A *span* is a range of
time steps, low to high without high: what is asked for of a window tells which steps of each stage it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mstarc_runtime.models.orpheus.config import SnacConfig

_DILATIONS = (1, 3, 9)
_KERNEL = 7
_REACH = _KERNEL // 2
Span: TypeAlias = tuple[int, int]


def widened(span: Span, by: int, steps: int) -> Span:
    """A span with so many more steps on both sides, inside 0..steps."""
    return max(0, span[0] - by), min(steps, span[1] + by)


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
        if x.is_cuda:
            from mstarc_runtime.models.orpheus import fused

            return fused.snake(x, self.alpha)
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class Residual(nn.Module):
    """Two activations and convolutions beside a straight line; the first convolution works on each channel alone."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        padding = dilation * (_KERNEL - 1) // 2
        self.dilation = dilation
        self.snake1 = Snake(channels)
        self.deep = nn.Conv1d(channels, channels, _KERNEL, dilation=dilation, padding=padding, groups=channels)
        self.snake2 = Snake(channels)
        self.wide = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            from mstarc_runtime.models.orpheus import fused

            deep, bias = self.deep, self.deep.bias
            assert bias is not None
            inner = fused.snake_conv_snake(x, self.snake1.alpha, deep.weight, bias, self.snake2.alpha, self.dilation)
            assert self.wide.bias is not None
            return fused.add(x, F.conv1d(inner, self.wide.weight), self.wide.bias)
        out: Tensor = x + self.wide(self.snake2(self.deep(self.snake1(x))))
        return out


class Upsample(nn.Module):
    """A stage: `rate` times as many steps, half as many channels, noise, residuals. [B, C, T] -> [B, C/2, rate · T]."""

    reach = _REACH * sum(_DILATIONS)  # steps on each side that the residuals look at

    def __init__(self, channels: int, rate: int) -> None:
        super().__init__()
        half = channels // 2
        self.rate, self.padding = rate, (rate + 1) // 2
        self.snake = Snake(channels)
        self.up = nn.ConvTranspose1d(
            channels, half, 2 * rate, stride=rate, padding=self.padding, output_padding=rate % 2
        )
        self._by_output: Tensor | None = None
        self.noise = nn.Conv1d(half, half, 1, bias=False)
        self.residuals = nn.ModuleList(Residual(half, dilation) for dilation in _DILATIONS)

    def source(self, span: Span, steps: int) -> Span:
        """The input steps, of `steps`, on which the upsampled steps `span` depend."""
        low, high = span[0] + self.padding - 2 * self.rate + 1, span[1] - 1 + self.padding
        return max(0, -(-low // self.rate)), min(steps, high // self.rate + 1)

    def forward(self, x: Tensor, noise: Tensor | None, start: int, span: Span) -> Tensor:
        """x: the input steps from `start` on -> the output steps `span`, and wrong ones no further than `reach` from a cut.

        `noise` [B, high - low] is the same for all channels; None leaves it out.
        """
        x = self._upsampled(self.snake(x), span[0] - start * self.rate, span[1] - span[0])
        if noise is not None:
            x = torch.addcmul(x, noise[:, None], self.noise(x))
        for residual in self.residuals:
            x = residual(x)
        return x

    def _upsampled(self, x: Tensor, first: int, steps: int) -> Tensor:
        """The transposed convolution of x, so many steps from `first` on. On a GPU as a product, which is faster, and a sum."""
        if not x.is_cuda:
            whole: Tensor = self.up(x)
            return whole[:, :, first : first + steps]
        from mstarc_runtime.models.orpheus import fused

        if self._by_output is None:
            self._by_output = self.up.weight.permute(1, 2, 0).flatten(0, 1)[..., None].contiguous()
        assert self.up.bias is not None
        return fused.fold(F.conv1d(x, self._by_output), self.up.bias, self.rate, first + self.padding, steps)


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
            projection(codebook(level))[..., None].expand(-1, -1, -1, stride).flatten(2)
            for level, stride, codebook, projection in zip(
                codes, self.strides, self.codebooks, self.projections, strict=True
            )
        ]
        return torch.stack(levels).sum(0)

    def forward(
        self, codes: Sequence[Tensor], noise: Sequence[Tensor] | None = None, heard: Span | None = None
    ) -> Tensor:
        """Samples of the span `heard` (None: all). `noise`: standard normals [B, time steps] for each stage; None leaves it out.

        Only what these samples depend on is computed.
        """
        x = self.wide(self.deep(self.latents(codes)))
        lengths = [x.shape[2]]
        for stage in self._stages():
            lengths.append(lengths[-1] * stage.rate)
        heard = heard or (0, lengths[-1])
        start = 0
        for n, (stage, (source, made, kept)) in enumerate(
            zip(self._stages(), self._spans(lengths, heard), strict=True)
        ):
            x = x[:, :, source[0] - start : source[1] - start]
            x = stage(x, None if noise is None else noise[n][:, made[0] : made[1]], source[0], made)
            x, start = x[:, :, kept[0] - made[0] : kept[1] - made[0]], kept[0]
        samples = torch.tanh(self.out(self.snake(x)))[:, 0]
        return samples[:, heard[0] - start : heard[1] - start]

    def _stages(self) -> list[Upsample]:
        return [stage for stage in self.stages if isinstance(stage, Upsample)]

    def _spans(self, lengths: Sequence[int], heard: Span) -> list[tuple[Span, Span, Span]]:
        """For each stage the steps of its input, those that it makes, and those of them that are right and needed."""
        spans = []
        kept = widened(heard, _REACH, lengths[-1])
        for stage, before, after in reversed(list(zip(self._stages(), lengths[:-1], lengths[1:], strict=True))):
            made = widened(kept, stage.reach, after)
            source = stage.source(made, before)
            spans.append((source, made, kept))
            kept = source
        return spans[::-1]
