"""Pauses between restarts and life signs, on a clock of their own."""

from __future__ import annotations

import pytest

from mstarc_runtime.launch.backoff import Backoff
from mstarc_runtime.launch.child import thread_env
from mstarc_runtime.launch.lifesign import LifeSign, Silence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pauses_double_up_to_ten_seconds() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    pauses = []
    for _ in range(8):
        backoff.healthy()
        clock.now += 59.0  # not yet healthy for long enough
        pauses.append(backoff.pause())
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])


def test_a_minute_of_health_forgets() -> None:
    clock = Clock()
    backoff = Backoff(clock)
    assert [backoff.pause() for _ in range(3)] == pytest.approx([0.2, 0.4, 0.8])
    clock.now += 1000.0  # time alone is not health: it never was ready
    assert backoff.pause() == pytest.approx(1.6)
    backoff.healthy()
    clock.now += 30.0
    backoff.healthy()  # counts from the first
    clock.now += 30.0
    assert backoff.pause() == pytest.approx(0.2)
    assert backoff.pause() == pytest.approx(0.4)


def test_silence() -> None:
    clock = Clock()
    life = LifeSign(5.0, clock)
    life.heard(1)
    life.heard(0)
    clock.now += 5.0
    assert life.silent() == []
    life.heard(0)
    clock.now += 1.0
    assert life.silent() == [Silence(1, 6.0)] == life.silent()
    life.heard(1)
    assert life.silent() == []
    clock.now += 10.0
    life.forget(1)
    life.forget(2)
    assert life.silent() == [Silence(0, 11.0)]
    with pytest.raises(ValueError, match="above 0"):
        LifeSign(0.0)


def test_thread_counts() -> None:
    assert thread_env(3)["OMP_NUM_THREADS"] == thread_env(3)["MKL_NUM_THREADS"] == "3"
    assert set(thread_env(0).values()) == {"1"}
