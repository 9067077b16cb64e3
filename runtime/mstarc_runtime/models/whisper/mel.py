"""Samples -> the log-mel features Whisper was trained on. numpy only: a serving process uses it without importing torch.

Source of the formulas: the Whisper paper (Radford et al. 2022, section 2.2) and the Slaney auditory toolbox for the mel scale.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 16000
N_FFT = 400  # 25 ms
HOP = 160  # 10 ms

_LINEAR_HZ = 200.0 / 3.0  # Hz per mel below the break
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _LINEAR_HZ
_LOG_STEP = np.log(6.4) / 27.0  # 27 mels from 1 kHz to 6.4 kHz
_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0  # log10 units below the loudest value


def log_mel(samples: NDArray[np.float32], n_mels: int, n_frames: int) -> NDArray[np.float32]:
    """f32 [n] mono at 16 kHz -> f32 [n_mels, n_frames]; the signal is padded with zeros to n_frames hops.

    The Hann window is periodic, frames are centred with reflected edges, the last of the n_frames + 1 frames is dropped.
    Raises ValueError if the signal does not fit, so that no sample is lost silently (see `audio_input.split_windows`).
    """
    room = n_frames * HOP
    if samples.ndim != 1 or len(samples) > room:
        raise ValueError(
            f"log_mel takes up to {room} mono samples for {n_frames} frames, got an array of shape {samples.shape}"
        )
    silent_from = min(n_frames, (len(samples) + N_FFT // 2) // HOP + 1)  # later frames see only padding
    padded = np.zeros(room, dtype=np.float64)
    padded[: len(samples)] = samples
    padded = np.pad(padded, N_FFT // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[: silent_from * HOP : HOP]
    spectrum = np.fft.rfft(frames * _hann(), axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    logs = np.full((n_mels, n_frames), np.log10(_FLOOR))
    logs[:, :silent_from] = np.log10(np.maximum(mel_filters(n_mels) @ power.T, _FLOOR))
    logs = np.maximum(logs, logs.max() - _DYNAMIC_RANGE)
    features: NDArray[np.float32] = ((logs + 4.0) / 4.0).astype(np.float32)
    return features


@lru_cache(maxsize=4)
def mel_filters(n_mels: int) -> NDArray[np.float64]:
    """Triangular filters [n_mels, N_FFT // 2 + 1] from 0 Hz to 8 kHz on the Slaney scale, each of unit area (in Hz)."""
    bins = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(SAMPLE_RATE / 2), n_mels + 2))
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (bins - low) / (centre - low)
    falling = (high - bins) / (high - centre)
    filters: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (high - low))
    filters.setflags(write=False)
    return filters


@lru_cache(maxsize=1)
def _hann() -> NDArray[np.float64]:
    return 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(N_FFT) / N_FFT)


def _hz_to_mel(hertz: float) -> float:
    if hertz < _BREAK_HZ:
        return hertz / _LINEAR_HZ
    return float(_BREAK_MEL + np.log(hertz / _BREAK_HZ) / _LOG_STEP)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    hertz: NDArray[np.float64] = np.where(
        mel < _BREAK_MEL, mel * _LINEAR_HZ, _BREAK_HZ * np.exp(_LOG_STEP * (mel - _BREAK_MEL))
    )
    return hertz
