"""Audio bytes -> samples: formats, rates and channels agree with the signal that was written; whatever is broken is a BadRequest."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.models.audio_input import decode_audio, split_windows

CONTAINERS = ("wav", "flac", "ogg", "mp3")


def tone(seconds: float, rate: int, hertz: float = 440.0) -> NDArray[np.float32]:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encoded(samples: NDArray[np.float32], rate: int, format: str, subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format.upper(), subtype=subtype)
    return buffer.getvalue()


def refusal(data: bytes, format: str | None = None, **options: float) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_audio(data, format, field="messages[0].content[1].input_audio.data", **options)
    assert caught.value.field == "messages[0].content[1].input_audio.data"
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize("format", CONTAINERS)
@pytest.mark.parametrize("named", [True, False])
def test_every_container_gives_the_signal_back(format: str, named: bool) -> None:
    wanted = tone(1.0, 16000)
    got = decode_audio(encoded(tone(1.0, 48000), 48000, format), format if named else None)
    assert got.dtype == np.float32 and got.ndim == 1 and got.flags.c_contiguous
    assert abs(len(got) - 16000) <= 1
    inner = slice(1600, 14400)  # lossy codecs fade at the ends
    assert np.abs(got[inner] - wanted[inner]).max() < (0.02 if format in ("ogg", "mp3") else 1e-3)


def test_speech_rate_passes_through_unchanged() -> None:
    samples = tone(0.3, 16000)
    assert np.array_equal(decode_audio(encoded(samples, 16000, "wav", "FLOAT"), "wav"), samples)


def test_channels_are_averaged() -> None:
    left = tone(0.2, 16000)
    got = decode_audio(encoded(np.stack([left, np.zeros_like(left)], axis=1), 16000, "wav", "FLOAT"), None)
    assert np.allclose(got, left / 2, atol=1e-7)


def test_a_tone_above_8_khz_is_filtered_out_not_folded_back() -> None:
    got = decode_audio(encoded(tone(1.0, 48000, 11000.0), 48000, "wav"), "wav")
    assert np.abs(got[800:-800]).max() < 1e-2


def test_pcm16_is_little_endian_24_khz() -> None:
    data = (tone(1.0, 24000) * 32768).astype("<i2").tobytes()
    got = decode_audio(data, "pcm16")
    assert len(got) == 16000
    assert np.abs(got[800:-800] - tone(1.0, 16000)[800:-800]).max() < 1e-3


def test_a_wav_without_a_length_as_a_pipe_writes_it_is_read_to_its_end() -> None:
    data = bytearray(encoded(tone(0.5, 16000), 16000, "wav"))
    data[4:8] = data[40:44] = struct.pack("<I", 0xFFFFFFFF)
    assert len(decode_audio(bytes(data), "wav")) == 8000


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3", "pcm16", None])
def test_empty(format: str | None) -> None:
    assert refusal(b"", format) == "audio is empty"


def test_a_header_without_samples() -> None:
    assert "no samples" in refusal(encoded(np.zeros(0, np.float32), 16000, "wav"), "wav")


def test_unknown_and_wrong_formats_are_named() -> None:
    wav = encoded(tone(0.1, 16000), 16000, "wav")
    assert "`aiff` is not one of" in refusal(wav, "aiff")
    assert refusal(wav, "mp3") == "audio was sent as mp3 but the data is wav"
    assert "none of wav, flac, mp3 or ogg" in refusal(b"<html>not found</html>", "wav")
    aiff = encoded(tone(0.1, 16000), 16000, "aiff")
    assert "none of wav" in refusal(aiff)


def test_odd_pcm16() -> None:
    assert "odd number of bytes (3)" in refusal(b"\0\0\0", "pcm16")


@pytest.mark.parametrize("format", CONTAINERS)
def test_too_long(format: str) -> None:
    data = encoded(tone(2.0, 16000), 16000, format)
    assert "longer than 1.5 s" in refusal(data, format, max_seconds=1.5)
    assert len(decode_audio(data, format, max_seconds=2.2)) > 0


def test_too_long_pcm16() -> None:
    assert "longer than 1 s (at least 1.5 s)" in refusal(bytes(72000), "pcm16", max_seconds=1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(value: float) -> None:
    samples = tone(0.2, 48000)
    samples[100] = value
    assert "not finite" in refusal(encoded(samples, 48000, "wav", "FLOAT"), "wav")


def test_integers_stored_as_floats() -> None:
    assert "full scale" in refusal(encoded(tone(0.2, 16000) * 32768, 16000, "wav", "FLOAT"), "wav")


def test_absurd_rates_and_channels() -> None:
    assert "192000 are accepted" in refusal(encoded(tone(0.1, 16000), 1_000_000, "wav"), "wav")
    assert "9 channels" in refusal(encoded(np.zeros((100, 9), np.float32), 16000, "wav"), "wav")


def test_flac_cut_in_the_middle() -> None:
    rng = np.random.default_rng(0)
    data = encoded(rng.uniform(-0.5, 0.5, 32000).astype(np.float32), 16000, "flac")
    message = refusal(data[: len(data) // 2], "flac")
    assert message.startswith(("audio cannot be decoded as flac", "audio ends early"))


def test_mp3_cut_in_the_middle() -> None:
    data = encoded(tone(2.0, 16000), 16000, "mp3")
    assert "ends early: 32000 frames were announced" in refusal(data[: len(data) // 2], "mp3")


def test_flac_without_a_length_as_a_pipe_writes_it() -> None:
    data = bytearray(encoded(tone(2.0, 16000), 16000, "flac"))
    data[21] &= 0xF0  # the 36 bits of the total in STREAMINFO
    data[22:26] = bytes(4)
    assert np.abs(decode_audio(bytes(data), "flac") - tone(2.0, 16000)).max() < 1e-3
    assert "longer than 1.5 s" in refusal(bytes(data), "flac", max_seconds=1.5)


def test_a_container_in_disguise() -> None:
    tag = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)
    assert refusal(tag + encoded(tone(0.1, 16000), 16000, "flac")) == "audio data starts like mp3 but is FLAC"
    assert len(decode_audio(tag + encoded(tone(0.5, 16000), 16000, "mp3"), "mp3")) == 8000


def test_blocks_are_resampled_without_a_seam() -> None:
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, 3 * 44100 + 17).astype(np.float32)
    got = decode_audio(encoded(samples, 44100, "wav", "FLOAT"), "wav")
    at_once = soxr.resample(samples, 44100, 16000)
    assert len(got) == len(at_once)
    assert np.abs(got - at_once).max() < 1e-5


@pytest.mark.parametrize("format", CONTAINERS)
@pytest.mark.parametrize("length", [4, 12, 30, 44, 100])
def test_heads_of_files_never_raise_anything_else(format: str, length: int) -> None:
    try:
        got = decode_audio(encoded(tone(1.0, 16000), 16000, format)[:length], format)
    except BadRequest as error:
        assert error.field == "input_audio.data"
    else:
        assert len(got) <= length


FILES = {format: encoded(tone(0.25, 22050), 22050, format) for format in CONTAINERS}


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(CONTAINERS),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_damaged_files_decode_or_are_refused(format: str, edits: list[tuple[float, int]], keep: float) -> None:
    data = bytearray(FILES[format])
    for place, value in edits:
        data[int(place * (len(data) - 1))] = value
    try:
        got = decode_audio(bytes(data[: 16 + int(keep * len(data))]), None, max_seconds=5.0)
    except BadRequest as error:
        assert str(error) and error.field
    else:
        assert got.dtype == np.float32 and np.isfinite(got).all() and 0 < len(got) <= 5 * 16000 + 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5000), st.integers(0, 2**32 - 1), st.sampled_from([0.25, 1.0, 3.0]))
def test_windows_are_the_signal_cut(count: int, seed: int, seconds: float) -> None:
    samples = np.random.default_rng(seed).standard_normal(count).astype(np.float32)
    windows = split_windows(samples, seconds=seconds, rate=1000)
    assert all(0 < len(window) <= seconds * 1000 for window in windows)
    assert np.array_equal(np.concatenate([np.zeros(0, np.float32), *windows]), samples)
    assert len(windows) == 1 or count > seconds * 1000 or count == 0


def test_a_window_is_cut_in_the_pause() -> None:
    samples = tone(50.0, 16000)
    samples[27 * 16000 : 27 * 16000 + 8000] = 0
    first, second = split_windows(samples)
    assert 27 * 16000 < len(first) < 27 * 16000 + 8000
    assert len(first) + len(second) == len(samples)


def test_a_window_that_fits_is_not_cut() -> None:
    assert [len(window) for window in split_windows(tone(30.0, 16000))] == [480000]
    assert split_windows(np.zeros(0, np.float32)) == []


def test_silence_makes_the_fewest_windows() -> None:
    assert [len(window) for window in split_windows(np.zeros(16000 * 65, np.float32))] == [
        480000 - 1600,
        480000 - 1600,
        83200,
    ]
