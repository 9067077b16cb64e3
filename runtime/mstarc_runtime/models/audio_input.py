"""Bytes of a recording -> mono f32 samples at 16 kHz, and their cut into windows. Whatever is wrong with the bytes is a `BadRequest`.

Containers are told apart by their first bytes before libsndfile sees them, so that its many rare parsers stay out of reach.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from mstarc_runtime.errors import BadRequest

SAMPLE_RATE = 16000
PCM16_RATE = 24000  # raw little-endian mono, as the OpenAI API sends it
FORMATS = ("flac", "mp3", "ogg", "pcm16", "wav")

_LIBRARY_NAMES = {"wav": {"WAV", "WAVEX", "RF64"}, "flac": {"FLAC"}, "ogg": {"OGG"}, "mp3": {"MP3"}}
_MIN_RATE, _MAX_RATE = 4000, 192000  # Hz
_MAX_CHANNELS = 8
_MAX_PEAK = 4.0  # full scale is 1; decoders overshoot a little, integers stored as floats overshoot a lot
_UNKNOWN_BYTES = 0x7FFFF000  # programs that write wav to a pipe give sizes from here on, or 0
_UNKNOWN_LENGTH = 1 << 60  # libsndfile reports about 2**63 where the header does not say


class _Forward(soundfile.SoundFile):  # type: ignore[misc]  # the library carries no types
    """Read front to back only: between reads the library would seek, which fails on a FLAC whose header gives no length."""

    def seekable(self) -> bool:
        return False


def decode_audio(
    data: bytes, format: str | None, *, max_seconds: float = 600.0, field: str | None = "input_audio.data"
) -> NDArray[np.float32]:
    """The recording as f32 [n], mono (mean of the channels), 16 kHz, nominally within [-1, 1], n >= 1.

    `format` is one of FORMATS, or None to tell from the first bytes ("pcm16" must be named: it has no header).
    Raises BadRequest with `field` if the data is empty, broken, cut short, longer than `max_seconds`, of an unknown format
    or another one than named, or holds nan, infinity or values far beyond full scale.
    """
    if not data:
        raise BadRequest("audio is empty", field)
    if format == "pcm16":
        samples = _resampled(_checked(iter([_decode_pcm16(data, max_seconds, field)]), field), PCM16_RATE)
    else:
        samples = _decode_container(data, _container(data, format, field), max_seconds, field)
    if len(samples) == 0:
        raise BadRequest("audio holds no samples, or is cut short", field)
    return samples


def split_windows(
    samples: NDArray[np.float32], seconds: float = 30.0, rate: int = SAMPLE_RATE
) -> list[NDArray[np.float32]]:
    """Cut f32 [n] into windows of at most `seconds`; put together they are the signal again. No samples: no windows.

    While more than a window is left, the cut is at the middle of the quietest 200 ms of the window's last sixth, the latest
    one among equals, so that a word is rarely cut.
    """
    window = int(seconds * rate)
    windows: list[NDArray[np.float32]] = []
    start = 0
    while len(samples) - start > window:
        tail = window - window // 6
        cut = start + tail + _quietest(samples[start + tail : start + window], rate)
        windows.append(samples[start:cut])
        start = cut
    if start < len(samples):
        windows.append(samples[start:])
    return windows


def _quietest(tail: NDArray[np.float32], rate: int) -> int:
    """Index into `tail` of the middle of its quietest 200 ms, at steps of 10 ms; at least 1."""
    width, step = max(1, rate // 5), max(1, rate // 100)
    if len(tail) <= width:
        return len(tail)
    energy = np.concatenate(([0.0], np.cumsum(np.square(tail, dtype=np.float64))))
    starts = np.arange(0, len(tail) - width + 1, step)
    sums = energy[starts + width] - energy[starts]
    last_minimum = len(sums) - 1 - int(np.argmin(sums[::-1]))
    return max(1, int(starts[last_minimum]) + width // 2)


def _container(data: bytes, format: str | None, field: str | None) -> str:
    """The container of `data`, which must be the named one."""
    if format is not None and format not in FORMATS:
        raise BadRequest(f"audio format `{format[:40]}` is not one of {', '.join(FORMATS)}", field)
    found = _sniff(data)
    if found is None:
        raise BadRequest(
            "audio data is none of wav, flac, mp3 or ogg" + (f" (it was sent as {format})" if format else ""), field
        )
    if format is not None and found != format:
        raise BadRequest(f"audio was sent as {format} but the data is {found}", field)
    return found


def _sniff(data: bytes) -> str | None:
    if data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        return "wav"
    if data[:4] == b"fLaC":
        return "flac"
    if data[:4] == b"OggS":
        return "ogg"
    if data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0):
        return "mp3"
    return None


def _decode_pcm16(data: bytes, max_seconds: float, field: str | None) -> NDArray[np.float32]:
    if len(data) % 2:
        raise BadRequest(f"pcm16 audio has an odd number of bytes ({len(data)})", field)
    _check_length(len(data) // 2, PCM16_RATE, max_seconds, field)
    return np.frombuffer(data, dtype="<i2").astype(np.float32) / 32768.0


def _decode_container(data: bytes, container: str, max_seconds: float, field: str | None) -> NDArray[np.float32]:
    """Mono samples at 16 kHz."""
    if container == "wav":
        _check_wav_size(data, field)
    try:
        with _Forward(io.BytesIO(data)) as sound:
            if sound.format not in _LIBRARY_NAMES[container]:
                raise BadRequest(f"audio data starts like {container} but is {sound.format}", field)
            rate, channels = int(sound.samplerate), int(sound.channels)
            if not _MIN_RATE <= rate <= _MAX_RATE:
                raise BadRequest(f"audio has {rate} samples per second; {_MIN_RATE} to {_MAX_RATE} are accepted", field)
            if channels > _MAX_CHANNELS:
                raise BadRequest(f"audio has {channels} channels; up to {_MAX_CHANNELS} are accepted", field)
            return _resampled(_checked(_mono_blocks(sound, rate, max_seconds, field), field), rate)
    except soundfile.SoundFileError as error:
        raise BadRequest(f"audio cannot be decoded as {container}: {_reason(error)}", field) from None


def _check_wav_size(data: bytes, field: str | None) -> None:
    """libsndfile takes a wav that was cut short for a shorter one; its header knows better."""
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        left = len(data) - at - 8
        if name == b"data":
            if left < size < _UNKNOWN_BYTES:
                raise BadRequest(f"audio ends early: {size} bytes were announced, {left} are there", field)
            return
        at += 8 + size + size % 2


def _mono_blocks(
    sound: soundfile.SoundFile, rate: int, max_seconds: float, field: str | None
) -> Iterator[NDArray[np.float32]]:
    """Read second by second: memory follows what is really there, whatever the header claims."""
    promised = int(sound.frames) if 0 <= sound.frames < _UNKNOWN_LENGTH else None
    if promised is not None:
        _check_length(promised, rate, max_seconds, field)
    count = 0
    while len(block := sound.read(rate, dtype="float32", always_2d=True)):
        count += len(block)
        _check_length(count, rate, max_seconds, field)
        yield block.mean(axis=1, dtype=np.float32)
    if promised is not None and count < promised:
        raise BadRequest(f"audio ends early: {promised} frames were announced, {count} could be read", field)


def _checked(blocks: Iterator[NDArray[np.float32]], field: str | None) -> Iterator[NDArray[np.float32]]:
    for block in blocks:
        peak = float(np.abs(block).max(initial=0.0))  # nan and infinity pass through max
        if not np.isfinite(peak):
            raise BadRequest("audio holds samples that are not finite numbers", field)
        if peak > _MAX_PEAK:
            raise BadRequest(f"audio samples reach {peak:.4g}; full scale of floating-point audio is 1.0", field)
        yield block


def _resampled(blocks: Iterator[NDArray[np.float32]], rate: int) -> NDArray[np.float32]:
    """All blocks at 16 kHz, in one array. Block by block, so that a high rate costs no memory."""
    if rate == SAMPLE_RATE:
        return np.concatenate([np.zeros(0, np.float32), *blocks])
    stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32")
    pieces = [stream.resample_chunk(block) for block in blocks]
    return np.concatenate([*pieces, stream.resample_chunk(np.zeros(0, np.float32), last=True)])


def _check_length(frames: int, rate: int, max_seconds: float, field: str | None) -> None:
    if frames > max_seconds * rate:
        raise BadRequest(f"audio is longer than {max_seconds:g} s (at least {frames / rate:.1f} s)", field)


def _reason(error: Exception) -> str:
    """libsndfile's own words, but for the ones it has for an mp3 without a valid frame."""
    text = str(getattr(error, "error_string", error)).strip().rstrip(".").removeprefix("Error : ")
    return "the data is broken" if not text or "does not exist" in text else text
