"""The loop of a worker process: how long it waits for a message, and when it tells what no request waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mstarc_runtime.abi.messages import Finish, Freed, Message, Shutdown, Stats
from mstarc_runtime.worker import __main__ as process
from mstarc_runtime.worker.__main__ import IDLE_S, UNHURRIED_S, Worker


class Clock:
    """Time passes only where something waits or works."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Port:
    """What comes and when; a poll ends with it, or after its time."""

    def __init__(self, clock: Clock, comes: list[tuple[float, Message]]) -> None:
        self.clock, self.comes = clock, comes
        self.waited: list[float] = []
        self.sent: list[tuple[float, Message]] = []
        self.prepared = 0
        self.codec = SimpleNamespace(prepare=self._prepare)

    def _prepare(self) -> None:
        self.prepared += 1

    def poll(self, timeout_s: float) -> list[tuple[int, Message]]:
        self.waited.append(timeout_s)
        end = min([self.clock.now + timeout_s, *(max(at, self.clock.now) for at, _ in self.comes)])
        self.clock.now = end
        there = [message for at, message in self.comes if at <= end]
        self.comes = [(at, message) for at, message in self.comes if at > end]
        return [(-1, message) for message in there]

    def send(self, peer: int, message: Message) -> None:
        if not isinstance(message, Stats):
            self.sent.append((self.clock.now, message))

    def faults(self) -> list[Any]:
        return []


class Rank:
    """Works in turns of a millisecond until `until`."""

    def __init__(self, clock: Clock, port: Port, until: float) -> None:
        self.clock, self.port, self.until = clock, port, until
        self.unhurried: list[Message] = []

    def idle(self) -> bool:
        return self.clock.now >= self.until

    def turn(self) -> None:
        self.clock.now += 0.001 * (not self.idle())

    def handle(self, message: Message) -> None:
        assert isinstance(message, Finish)
        self.unhurried.append(Freed(message.request, {}))

    def tell(self) -> None:
        for message in self.unhurried:
            self.port.send(-1, message)
        self.unhurried.clear()

    def gauges(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("busy", [0.0, 0.050])
def test_what_nobody_waits_for_is_told_soon(monkeypatch: pytest.MonkeyPatch, busy: float) -> None:
    clock = Clock()
    monkeypatch.setattr(process, "time", clock)
    begin = clock.now
    comes = [
        (begin + 0.010, Finish(1)),
        (begin + 0.011, Finish(2)),
        (begin + 0.1, Finish(3)),
        (begin + 3.0, Shutdown()),
    ]
    port = Port(clock, comes)
    rank = Rank(clock, port, begin + busy)
    assert Worker(SimpleNamespace(rank=0), port, rank).run() == 0  # type: ignore[arg-type]
    assert [message.request for _, message in port.sent if isinstance(message, Freed)] == [1, 2, 3]
    late = [at - came for (at, _), came in zip(port.sent, (begin + 0.010, begin + 0.011, begin + 0.1), strict=True)]
    assert all(0 <= each <= UNHURRIED_S + 0.0011 for each in late)
    assert set(port.waited) == {0.0, UNHURRIED_S, IDLE_S} - (set() if busy else {0.0})
    assert port.prepared == sum(each > 0 for each in port.waited)
    assert len(port.waited) < 12 + 1000 * busy  # it sleeps where nothing is to be done
