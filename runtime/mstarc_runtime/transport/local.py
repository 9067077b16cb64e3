"""Ports without sockets, for the conductor and workers in one process: `LocalHub().port(rank, epoch)`.

Same interface and rules as `port.Port`. Messages still go through bytes, so what cannot travel fails here as well;
`honest=False` hands the message objects over instead (for speed; the receiver must then not write to arrays in them).

A hub is for one thread: `poll` never waits, as nothing could arrive meanwhile. With `threads=True` each port may live in
a thread of its own, and `poll` waits as told.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from mstarc_runtime.abi.messages import Message
from mstarc_runtime.transport.base import Verdict
from mstarc_runtime.transport.common import BATCH, HWM, BasePort
from mstarc_runtime.transport.ring import RingReader, RingWriter
from mstarc_runtime.transport.wire import Frame

_Entry: TypeAlias = "list[Frame] | tuple[int, int, Message]"  # frames, or (sender, its epoch, message)


class LocalHub:
    """The ports of one process, by endpoint. `hwm`: messages that may wait at one port."""

    def __init__(self, *, honest: bool = True, threads: bool = False, hwm: int = HWM) -> None:
        self.honest = honest
        self.threads = threads
        self.hwm = hwm
        self.changed = threading.Condition()
        self.boxes: dict[str, deque[_Entry]] = {}
        self.owners: dict[str, LocalPort] = {}

    def port(
        self,
        rank: int,
        epoch: int = 1,
        *,
        rings_out: Mapping[int, RingWriter] | None = None,
        rings_in: Mapping[int, RingReader] | None = None,
    ) -> LocalPort:
        """A new port, listening on `endpoint(rank, epoch)`."""
        return LocalPort(self, rank, epoch, rings_out=rings_out, rings_in=rings_in)

    def endpoint(self, rank: int, epoch: int = 1) -> str:
        """Where the port of that rank and epoch listens, or will."""
        return f"local://r{rank}e{epoch}"

    def put(self, endpoint: str, entry: _Entry) -> bool:
        """Queue at a port, whether it exists yet or not; False if too much waits there."""
        with self.changed:
            box = self.boxes.setdefault(endpoint, deque())
            if len(box) >= self.hwm:
                return False
            box.append(entry)
            self.changed.notify_all()
            owner = self.owners.get(endpoint)
        if owner is not None:
            owner.wake()
        return True


class LocalPort(BasePort):
    """A port of a `LocalHub`."""

    def __init__(
        self,
        hub: LocalHub,
        rank: int,
        epoch: int,
        *,
        rings_out: Mapping[int, RingWriter] | None = None,
        rings_in: Mapping[int, RingReader] | None = None,
    ) -> None:
        super().__init__(rank, epoch, hub.endpoint(rank, epoch), rings_out=rings_out, rings_in=rings_in, hwm=hub.hwm)
        self._hub = hub
        self._ways: dict[int, str] = {}
        with hub.changed:
            if self.endpoint in hub.owners:
                raise ValueError(f"{self.endpoint} is taken")
            self._box = hub.boxes.setdefault(self.endpoint, deque())
            hub.owners[self.endpoint] = self

    def watch(self, fd: int) -> None:
        """Nothing: a port in a test's process has no parent to watch."""

    def unwatch(self, fd: int) -> None:
        """Nothing."""

    def wake(self) -> None:
        """Something was queued, perhaps by another thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.pump)

    def send(self, peer: int, message: Message) -> bool:
        """As `BasePort.send`; without bytes if the hub is not honest."""
        if self._hub.honest or not self._table.live(peer):
            return super().send(peer, message)
        if not self._hub.put(self._ways[peer], (self.rank, self.epoch, message)):
            self.counters.dropped_full += 1
            self._kill(
                peer, self._table.epoch(peer) or 0, f"a {type(message).__name__} could not be queued: {self._hwm} wait"
            )
            return False
        self.counters.sent += 1
        return True

    def _open(self, peer: int, endpoint: str, lane: socket.socket | None) -> None:
        self._ways[peer] = endpoint
        if lane is not None:
            lane.close()  # there is no shorter way than a queue of the process

    def _shut(self, peer: int) -> None:
        self._ways.pop(peer, None)

    def _push(self, peer: int, frames: list[Frame]) -> str | None:
        if self._hub.put(self._ways[peer], [bytes(frame) for frame in frames]):
            return None
        return f"its queue of {self._hwm} messages is full, so it has stopped reading"

    def _pull(self, timeout_s: float) -> None:
        if self._hub.threads and timeout_s > 0:
            with self._hub.changed:
                self._hub.changed.wait_for(lambda: bool(self._box), timeout_s)
        for _ in range(BATCH):
            if not self._box:
                return
            entry = self._box.popleft()
            if isinstance(entry, list):
                self._accept(entry)
            else:
                self._take(*entry)

    def _take(self, peer: int, epoch: int, message: Message) -> None:
        verdict = self._table.verdict(peer, epoch)
        if verdict is Verdict.NOW:
            self.counters.received += 1
            self._ready.append((peer, message))
        elif verdict is Verdict.HOLD:
            self._table.hold(peer, epoch, message)
        else:
            self.counters.dropped_old += 1

    def _pending(self) -> bool:
        return bool(self._box)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """`wake` finds the loop by itself."""

    def _unlisten(self, loop: asyncio.AbstractEventLoop) -> None:
        """`wake` finds no loop any more."""

    def _close(self, linger_s: float) -> None:
        with self._hub.changed:
            self._hub.owners.pop(self.endpoint, None)
            self._hub.boxes.pop(self.endpoint, None)
