"""Signal processing of the voice: pulses, their spectrum, noise, the sum of the parts, and the inverse transform.

24 kHz, n_fft 1200, hop 300, periodic Hann window. The spectrum of frame t is

    exp(lh) e^{i pi tanh(theta)} STFT(pulses(f0)) + exp(ln) Z + exp(lr) e^{i phi}

with Z complex normal noise. Formulas: hibari-tts 0.2.1, `hibari/dsp.py`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

RATE, N_FFT, HOP = 24_000, 1200, 300
BINS = N_FFT // 2 + 1
OVERLAP = N_FFT // HOP
VOICED_HZ = 40.0  # below this a frame has no pulses
TOP_HZ = 11_000.0  # no harmonic above this
MAX_LOG = 7.0
_NEAR_ZERO = 2e-3
_WORDS = 604  # random words per frame: BINS rounded up to whole counter steps of 4


@lru_cache(maxsize=4)
def window(device: torch.device) -> Tensor:
    """Periodic Hann window, f32 [N_FFT]."""
    return torch.hann_window(N_FFT, periodic=True, dtype=torch.float64, device=device).float()


def pulses(f0: Tensor) -> Tensor:
    """f0 f32 [F] in Hz -> f32 [HOP * F]: every harmonic below 11 kHz with amplitude 1, zero where not voiced.

    f0 is interpolated linearly, a frame's value standing at its middle. With H harmonics of phase t the sum of cos(h t) is
    sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2 (Dirichlet kernel).
    """
    offset = (torch.arange(HOP, device=f0.device) + 0.5) / HOP - 0.5  # in frames, from the middle of the own frame
    padded = torch.cat([f0[:1], f0, f0[-1:]])
    before, after = padded[:-2, None], padded[2:, None]
    own = f0[:, None]
    frequency = (own + torch.where(offset < 0, own - before, after - own) * offset).reshape(-1)
    voiced = frequency > VOICED_HZ
    frequency = frequency.clamp(min=VOICED_HZ)
    turns = torch.cumsum(frequency, 0, dtype=torch.float64) / RATE
    phase = ((turns - turns.floor()) * (2 * math.pi)).float()
    order = torch.floor(TOP_HZ / frequency) + 0.5
    below = 2.0 * torch.sin(phase * 0.5)
    limit = below.abs() <= _NEAR_ZERO
    kernel = torch.where(limit, order, torch.sin(order * phase) / torch.where(limit, 1.0, below)) - 0.5
    return torch.where(voiced, kernel, 0.0)


def pulse_frames(f0: Tensor) -> Tensor:
    """Overlapping windows of the pulses of f0 [F], f32 [F, N_FFT], as a view; frame t is centred on sample HOP * t."""
    half = N_FFT // 2
    padded: Tensor = torch.nn.functional.pad(pulses(f0)[None, None], (half, half), mode="reflect")[0, 0]
    frames: Tensor = padded.unfold(0, N_FFT, HOP)
    return frames[: f0.shape[0]]


def noise(seed: int, first: int, frames: int) -> Tensor:
    """Complex normal noise, complex64 [frames, BINS], of the frames first, first + 1, ...

    Counter based: the value at a (seed, frame, bin) is a function of these three alone. Word `604 * frame + bin` of Philox4x64-10
    (Salmon et al. 2011) under key `seed`, its halves u and v read as fractions, gives sqrt(-2 ln u) e^{2 pi i v} (Box-Muller).
    """
    words = np.random.Philox(key=seed).advance(first * (_WORDS // 4)).random_raw(frames * _WORDS)
    words = words.reshape(frames, _WORDS)[:, :BINS]
    unit = np.float64(2.0**-32)
    u = torch.from_numpy((((words >> np.uint64(32)) + 0.5) * unit).astype(np.float32))
    v = torch.from_numpy((((words & np.uint64(0xFFFFFFFF)) + 0.5) * unit).astype(np.float32))
    return _polar(torch.sqrt(-2.0 * torch.log(u)), v * (2.0 * math.pi))


def compose(parts: Tensor, frames: Tensor, z: Tensor) -> Tensor:
    """Parts [T, 5, BINS] of the net, windows of the pulses [T, N_FFT], noise [T, BINS] -> spectrum complex64 [T, BINS]."""
    lh, theta, ln, lr, phi = parts.unbind(1)
    # 4 / N_FFT: a cosine of amplitude 1 then peaks at 1, so that exp(lh) is the magnitude of a harmonic
    harmonics = torch.fft.rfft(frames * (window(frames.device) * (4.0 / N_FFT)))
    spectrum: Tensor = harmonics * _polar(_exp(lh), torch.tanh(theta) * math.pi)
    spectrum += z * _exp(ln)
    spectrum += _polar(_exp(lr), phi)
    return spectrum


def _exp(x: Tensor) -> Tensor:
    return torch.exp(x.clamp(max=MAX_LOG))


def _polar(magnitude: Tensor, angle: Tensor) -> Tensor:
    """magnitude * e^{i angle}; on a CPU several times faster than `torch.polar`."""
    return torch.complex(magnitude * torch.cos(angle), magnitude * torch.sin(angle))


def inverse(spectrum: Tensor, block: int) -> Tensor:
    """Spectrum complex64 [F, BINS] -> f32 [HOP * F]: overlap-add, divided by the sum of the squared windows.

    Equal to `torch.istft(..., center=True, length=HOP * F)`, but in blocks of frames, so that memory beyond input and output is
    bounded.
    """
    count = spectrum.shape[0]
    shape = window(spectrum.device)
    total = torch.zeros(count + OVERLAP - 1, HOP, device=spectrum.device)
    norm = torch.zeros_like(total)
    square = (shape * shape).view(OVERLAP, HOP)
    for start in range(0, count, block):
        frames = torch.fft.irfft(spectrum[start : start + block], n=N_FFT) * shape
        frames = frames.view(-1, OVERLAP, HOP)
        for k in range(OVERLAP):
            total[start + k : start + k + frames.shape[0]] += frames[:, k]
    for k in range(OVERLAP):
        norm[k : k + count] += square[k]
    half = OVERLAP // 2
    return (total / norm.clamp(min=1e-11))[half : half + count].reshape(-1)
