"""`Port`: the ZeroMQ sockets of one process. Takes messages per peer, gives what arrived; `base.Transport` is its interface.

    port = Port(rank, epoch, endpoint, token=..., listen_fd=..., rings_out=..., rings_in=...)
    port.connect(peer, endpoint, epoch); port.send(peer, message) -> bool
    port.poll(timeout_s) -> [(peer, message)]            # a worker's loop
    port.attach(deliver)                                  # or an event loop calls deliver([(peer, message)])
    port.faults() -> [Fault]                              # peers to which data was lost

One PULL socket is bound per process and one PUSH socket is connected per peer. So each way has a queue of its own, a slow
or dead peer holds up no other, and a peer's messages keep their order.

Queues hold 16384 messages a side. Streams are bounded by credits and requests by admission, so a full queue means that
the peer has stopped reading; waiting for it would hang this process too. So the message is dropped and counted, and the
peer is declared dead (`base`).

Event loop: the descriptor of the PULL socket is watched with `add_reader`. ZeroMQ signals it only on the edge from
nothing to something, which is safe here because this socket is used for nothing but receiving, and because every wake-up
receives until nothing is left (or schedules itself again). zmq.asyncio would do the same with a future per message.

Between the conductor and a worker short messages take a pair of sockets beside ZeroMQ (`lane`), unless it is full. Such a descriptor is
signalled as long as it holds something, so the loop is given one message at a time: who waits for it comes before those behind it.

A listening socket that the parent made (`listen_fd`, see `endpoint`) is adopted, so peers can connect before this
process is up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import zmq

from mstarc_runtime.transport.base import LOG
from mstarc_runtime.transport.common import BATCH, HWM, TOKEN_BYTES, BasePort
from mstarc_runtime.transport.lane import Lane
from mstarc_runtime.transport.order import Way
from mstarc_runtime.transport.ring import RingReader, RingWriter
from mstarc_runtime.transport.wire import FRAME_MAX, Frame

__all__ = ["Port"]

RECONNECT_MS = (20, 500)  # first and longest pause between tries to reach a peer that does not listen


class Port(BasePort):
    """ZeroMQ over ipc or loopback TCP. With `listen_fd` the port owns that descriptor, also if this raises OSError."""

    def __init__(
        self,
        rank: int,
        epoch: int,
        endpoint: str,
        *,
        token: bytes = bytes(TOKEN_BYTES),
        listen_fd: int | None = None,
        rings_out: Mapping[int, RingWriter] | None = None,
        rings_in: Mapping[int, RingReader] | None = None,
        hwm: int = HWM,
    ) -> None:
        super().__init__(rank, epoch, endpoint, token=token, rings_out=rings_out, rings_in=rings_in, hwm=hwm)
        self._context = zmq.Context()
        self._pushes: dict[int, zmq.Socket[bytes]] = {}
        self._lanes: dict[int, Lane] = {}
        self._pull_socket: zmq.Socket[bytes] = self._context.socket(zmq.PULL)
        self._pull_socket.setsockopt(zmq.LINGER, 0)
        self._pull_socket.setsockopt(zmq.RCVHWM, hwm)
        self._pull_socket.setsockopt(zmq.MAXMSGSIZE, FRAME_MAX)
        if listen_fd is not None:
            self._pull_socket.setsockopt(zmq.USE_FD, listen_fd)
        try:
            self._pull_socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"cannot listen on {endpoint}: {error}") from error
        if listen_fd is None:  # the address may have been a pattern, such as a TCP port of 0
            self.endpoint = self._pull_socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._poller = zmq.Poller()
        self._poller.register(self._pull_socket, zmq.POLLIN)

    def watch(self, fd: int) -> None:
        """Let `poll` return when `fd` is readable or its other end is closed."""
        self._poller.register(fd, zmq.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        self._poller.unregister(fd)

    def _open(self, peer: int, endpoint: str, lane: socket.socket | None) -> None:
        push: zmq.Socket[bytes] = self._context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 0)
        push.setsockopt(zmq.SNDHWM, self._hwm)
        push.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        push.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        self._pushes[peer] = push
        if lane is not None:
            self._lanes[peer] = Lane(lane)
            self._poller.register(lane.fileno(), zmq.POLLIN)
            if self._loop is not None:
                self._loop.add_reader(lane.fileno(), self._pump_lane, peer)
        try:
            push.connect(endpoint)
        except zmq.ZMQError as error:
            self._kill(peer, self._table.epoch(peer) or 0, f"cannot connect to {endpoint}: {error}")

    def _shut(self, peer: int) -> None:
        push = self._pushes.pop(peer, None)
        if push is not None:
            push.close(0)
        self._shut_lane(peer)

    def _shut_lane(self, peer: int) -> None:
        lane = self._lanes.pop(peer, None)
        if lane is None:
            return
        self._poller.unregister(lane.fileno())
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(lane.fileno())
        lane.close()

    def _push(self, peer: int, frames: list[Frame]) -> str | None:
        lane = self._lanes.get(peer)
        if lane is not None and lane.send(frames):
            return None
        try:
            self._pushes[peer].send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return f"its queue of {self._hwm} messages is full, so it has stopped reading"
        except zmq.ZMQError as error:
            return str(error)
        return None

    def _pull(self, timeout_s: float) -> None:
        if self._drain() or timeout_s <= 0:
            return
        self._poller.poll(max(1, round(timeout_s * 1000)))
        self._drain()

    def _drain(self) -> int:
        """Accept up to BATCH messages of each way; how many there were."""
        by_lanes = sum(self._drain_lane(peer, BATCH) for peer in list(self._lanes))
        queued = self._drain_queue()
        if queued < BATCH:
            self._check_gaps()
        return by_lanes + queued

    def _drain_queue(self) -> int:
        for count in range(BATCH):
            try:
                frames: list[bytes] = self._pull_socket.recv_multipart(zmq.NOBLOCK, copy=True)
            except zmq.Again:
                return count
            self._accept(frames)
        return BATCH

    def _drain_lane(self, peer: int, most: int) -> int:
        """What is there now. What comes while it is decoded does not hold it up.

        What the lane brings while much is still in the queue has to wait here: no more than a batch is taken, and soon the lane is full.
        """
        came: list[list[Frame]] = []
        most = min(most, BATCH - self._ahead(peer))
        try:
            while len(came) < most and (frames := self._lanes[peer].receive()) is not None:
                came.append(frames)
        except EOFError:
            self._shut_lane(peer)
        for frames in came:
            self._accept(frames, Way.LANE)
        return len(came)

    def _pump_lane(self, peer: int) -> None:
        if self._drain_lane(peer, 1):
            self._hand_over(self._taken())
        else:  # it has ended, or waits for the queue
            self.pump()

    def _pending(self) -> bool:
        queued = int(self._pull_socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN
        return bool(queued) or any(lane.pending() for lane in self._lanes.values())

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._pull_socket.fileno(), self.pump)
        for peer, lane in self._lanes.items():
            loop.add_reader(lane.fileno(), self._pump_lane, peer)

    def _unlisten(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            for fd in (self._pull_socket.fileno(), *(lane.fileno() for lane in self._lanes.values())):
                loop.remove_reader(fd)

    def _close(self, linger_s: float) -> None:
        self._pull_socket.close(0)
        for push in self._pushes.values():
            push.close(max(0, round(linger_s * 1000)))
        self._pushes.clear()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._context.term()  # waits for the linger at most
        LOG.debug("port of rank %d epoch %d closed: %s", self.rank, self.epoch, self.counters)
