"""Emitted samples -> 16-bit PCM and WAV."""

from __future__ import annotations

import io
import struct
import wave
from typing import Any

import numpy as np

from mstarc_runtime.errors import RequestFailed

FULL_SCALE = 32768.0  # the inverse of how 16-bit input is read: 16-bit samples survive a round trip


def pcm16(samples: Any) -> bytes:
    """Samples (any shape, full scale 1; int16 as they are) -> little-endian 16-bit mono. Rounds to nearest, clips beyond full scale.

    Raises RequestFailed if there is nan or infinity among them.
    """
    array = np.asarray(samples).reshape(-1)
    if array.dtype == np.int16:
        return array.astype("<i2").tobytes()
    scaled = array.astype(np.float64) * FULL_SCALE
    if not np.isfinite(scaled).all():
        raise RequestFailed("the model made audio that is not finite")
    return np.clip(np.rint(scaled), -FULL_SCALE, FULL_SCALE - 1).astype("<i2").tobytes()


def wav(pcm: bytes, rate: int) -> bytes:
    """16-bit mono PCM as a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm)
    return buffer.getvalue()


def wav_opening(rate: int) -> bytes:
    """The header of a WAV stream, 16-bit mono, whose length is not known: both sizes are the largest there are."""
    endless = b"\xff\xff\xff\xff"
    form = struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16)
    return b"RIFF" + endless + b"WAVEfmt " + form + b"data" + endless
