"""The two nets of the voice: phoneme ids -> durations, pitch and energy; and those -> the five parts of a spectrum.

Time runs in frames of 12.5 ms (80 Hz, hop 300 at 24 kHz). Durations count pairs of frames (25 ms); F = 2 * sum(durations).
Structure and constants were read off the graph of hibari-tts 0.2.1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mstarc_runtime.models.hibari.layers import NORM_EPS, Block, Int8Dense, TextEncoder

VOCAB = 178
BINS = 601  # of the spectrum: n_fft 1200
FRAMES_PER_STEP = 2  # frames in one unit of duration
F0_UNIT, ENERGY_UNIT, FEATURE_UNIT = 100.0, 5.0, 5.0


class ProsodyNet(nn.Module):
    """How long each phoneme lasts, and the pitch and energy of each frame."""

    def __init__(self) -> None:
        super().__init__()
        channels = 192
        self.text = TextEncoder(VOCAB, channels, rounds=6)
        self.dur = nn.Sequential(nn.Conv1d(channels, channels, 3, padding=1), nn.GELU(), nn.Conv1d(channels, 1, 1))
        self.pro_in = nn.Conv1d(channels, channels, 1)
        self.pro = nn.ModuleList(Block(channels, 2 * channels, 7, dilation) for dilation in (1, 2, 4, 8, 1, 2))
        self.pro_out = nn.Conv1d(channels, 4, 1)

    def forward(self, ids: Tensor, speed: float) -> tuple[Tensor, Tensor, Tensor]:
        """ids i64 [P] -> durations i64 [P] (each at least 1), f0 f32 [F] in Hz (not voiced: below 40), energy f32 [F]."""
        text = self.text(ids)
        log_steps = self.dur(text.t()[None])[0, 0]
        durations = ((log_steps.exp() - 1.0) / speed).round().clamp(min=1.0).long()
        steps = text.repeat_interleave(durations, dim=0)
        x = self.pro_in(steps.t()[None])[0].t()
        for block in self.pro:
            x = block(x)
        # 4 channels a step: f0 of its two frames, energy of its two frames
        f0, energy = self.pro_out(x.t()[None])[0].view(2, FRAMES_PER_STEP, -1).transpose(1, 2).reshape(2, -1)
        return durations, f0 * F0_UNIT, energy * ENERGY_UNIT


class AcousticNet(nn.Module):
    """The spectrum of each frame, in five parts of `BINS` bins."""

    def __init__(self) -> None:
        super().__init__()
        channels = 256
        self.text = TextEncoder(VOCAB, 128, rounds=4)
        self.dec_in = nn.Conv1d(128 + 2, channels, 7, padding=3)
        self.dec = nn.ModuleList(Block(channels, 3 * channels, 7) for _ in range(8))
        self.dec_norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.head = Int8Dense(channels, 5 * BINS)

    def forward(self, ids: Tensor, durations: Tensor, f0: Tensor, energy: Tensor, block: int) -> Iterator[Tensor]:
        """Yields [<= block, 5, BINS] for consecutive frames: log magnitude and phase/pi (before tanh) of the harmonics, log
        magnitude of the noise, log magnitude and phase of the free part.

        The head's output is by far the largest tensor; in blocks it never exists as a whole. The result does not depend on
        `block`, since the head's input is quantised over the whole sequence.
        """
        text = self.text(ids).repeat_interleave(durations * FRAMES_PER_STEP, dim=0)
        pitch = torch.log(1.0 + f0.relu()) / FEATURE_UNIT
        x = torch.cat([text, pitch[:, None], energy[:, None] / FEATURE_UNIT], dim=1)
        x = self.dec_in(x.t()[None])[0].t()
        for layer in self.dec:
            x = layer(x)
        integers, step = self.head.quantise(self.dec_norm(x))
        for part in torch.split(integers, block):
            yield self.head.product(part, step).view(-1, 5, BINS)
