"""First audio, stalls and lateness of chunks, and samples as bytes."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.serving.audio import pcm16, wav
from mstarc_runtime.serving.playback import Playback


def test_chunks_in_time_do_not_stall() -> None:
    playback = Playback(10.0)
    assert playback.add(12.0, 1000, 1000) == 0  # plays 12..13
    assert playback.add(12.1, 500, 1000) == 0  # 13..13.5
    assert playback.add(13.5, 500, 1000) == 0  # just in time
    report = playback.report()
    assert (report.first_s, report.audio_s, report.stalls, report.lateness) == (2.0, 2.0, 0, (0.0, 0.0, 0.0))
    assert (report.stalled_s, report.worst_s) == (0.0, 0.0)


def test_a_late_chunk_stalls_once_and_shifts_what_follows() -> None:
    playback = Playback(0.0)
    playback.add(1.0, 1000, 1000)  # plays 1..2
    assert playback.add(2.5, 1000, 1000) == 0.5  # plays 2.5..3.5
    assert playback.add(3.4, 1000, 1000) == 0.0  # late for 1 + 2 s of audio, but playback had moved
    assert playback.add(5.0, 1000, 1000) == 0.5
    report = playback.report()
    assert (report.stalls, report.stalled_s, report.worst_s) == (2, 1.0, 0.5)


def test_nothing_to_hear() -> None:
    playback = Playback(0.0)
    assert playback.report().first_s is None
    assert playback.add(3.0, 0, 24000) == 0.0
    report = playback.report()
    assert (report.first_s, report.audio_s, report.stalls, report.lateness) == (None, 0.0, 0, ())


def test_chunks_of_different_rates() -> None:
    playback = Playback(0.0)
    playback.add(0.0, 24000, 24000)
    assert playback.add(1.5, 8000, 16000) == 0.5
    assert playback.report().audio_s == 1.5


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=30))
def test_against_a_listener_that_plays_tick_by_tick(chunks: list[tuple[int, int]]) -> None:
    """One sample a tick. The listener notes each tick at which it has started, is not through, and has nothing to play."""
    arrivals = list(np.cumsum([gap for gap, _ in chunks]))
    playback = Playback(0.0)
    for arrival, (_, samples) in zip(arrivals, chunks, strict=True):
        playback.add(float(arrival), samples, 1)
    buffered = silent = 0
    for tick in range(arrivals[0], arrivals[-1] + 1):
        buffered += sum(samples for arrival, (_, samples) in zip(arrivals, chunks, strict=True) if arrival == tick)
        if buffered:
            buffered -= 1
        else:
            silent += 1
    assert playback.report().stalled_s == silent
    assert playback.report().first_s == arrivals[0]


def test_pcm16_rounds_and_clips() -> None:
    samples = np.array([0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -9.0, 1.4 / 32768, 1.6 / 32768, -1.6 / 32768], np.float32)
    found = np.frombuffer(pcm16(samples), "<i2").tolist()
    assert found == [0, 16384, -16384, 32767, -32768, 32767, -32768, 1, 2, -2]


def test_pcm16_keeps_16_bit_samples() -> None:
    every = np.arange(-32768, 32768, dtype=np.int16)
    assert pcm16(every) == every.astype("<i2").tobytes()
    assert pcm16(every.astype(np.float32) / 32768) == every.astype("<i2").tobytes()
    assert pcm16(np.zeros((2, 3), np.float64)) == bytes(12)
    assert pcm16([]) == b""


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pcm16_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(RequestFailed, match="not finite"):
        pcm16(np.array([0.0, bad]))


def test_wav_is_read_by_others() -> None:
    pcm = pcm16(np.linspace(-1, 1, 999))
    samples, rate = soundfile.read(io.BytesIO(wav(pcm, 24000)), dtype="int16")
    assert rate == 24000
    assert samples.astype("<i2").tobytes() == pcm
    with wave.open(io.BytesIO(wav(b"", 16000))) as file:
        assert (file.getnframes(), file.getframerate()) == (0, 16000)
