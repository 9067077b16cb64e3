"""Ports over ipc, TCP and in process: order, epochs, full queues, bad messages, event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq

from mstarc_runtime.abi.messages import Credit, Freed, Items, Message, Peers
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.base import CONDUCTOR, HELD_MAX, PeerTable, Received, Verdict
from mstarc_runtime.transport.common import BATCH, TOKEN_BYTES, BasePort
from mstarc_runtime.transport.endpoint import Endpoints
from mstarc_runtime.transport.local import LocalHub
from mstarc_runtime.transport.port import Port
from mstarc_runtime.transport.ring import RingReader, RingWriter, create

TOKEN = bytes(range(TOKEN_BYTES))
DEADLINE_S = 5.0


class World:
    """Makes ports of one kind that can reach each other, each with rings to and from every other rank of 0..2."""

    def __init__(self, kind: str, hwm: int = 1000) -> None:
        self.kind = kind
        self.hwm = hwm
        self.hub = LocalHub(hwm=hwm)
        self.ends = Endpoints(tcp=kind == "tcp")
        self.rings = {(a, b): create(1 << 16) for a in range(3) for b in range(3) if a != b}
        self.ports: list[BasePort] = []

    def port(self, rank: int, epoch: int = 1, token: bytes = TOKEN) -> BasePort:
        out = {b: RingWriter(fd) for (a, b), fd in self.rings.items() if a == rank}
        into = {a: RingReader(fd) for (a, b), fd in self.rings.items() if b == rank}
        port: BasePort
        if self.kind == "local":
            port = self.hub.port(rank, epoch, rings_out=out, rings_in=into)
        else:
            made = self.ends.listen(rank, epoch)
            port = Port(
                *(rank, epoch, made.endpoint),
                token=token,
                listen_fd=made.fd,
                rings_out=out,
                rings_in=into,
                hwm=self.hwm,
            )
        self.ports.append(port)
        return port

    def two(self) -> tuple[BasePort, BasePort]:
        a, b = self.port(0), self.port(1)
        link(a, b)
        link(b, a)
        return a, b

    def close(self) -> None:
        for port in self.ports:
            port.close()
        for fd in self.rings.values():
            os.close(fd)
        self.ends.close()


def link(a: BasePort, b: BasePort) -> None:
    """a knows b."""
    a.connect(b.rank, b.endpoint, b.epoch)


@pytest.fixture(params=["ipc", "tcp", "local"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.close()


def collect(port: BasePort, count: int) -> list[Received]:
    """Exactly so many messages."""
    found: list[Received] = []
    until = time.monotonic() + DEADLINE_S
    while len(found) < count:
        came = port.poll(0.05)
        found += came
        if not came:
            time.sleep(0.001)  # a local port does not wait
        assert time.monotonic() < until, f"{len(found)} of {count} messages came: {port.describe()}, {port.counters}"
    assert len(found) == count
    return found


def nothing(port: BasePort, until: Callable[[], bool]) -> None:
    """No message comes before `until` is true."""
    end = time.monotonic() + DEADLINE_S
    while not until():
        assert port.poll(0.02) == []
        time.sleep(0.001)
        assert time.monotonic() < end, f"{port.describe()}, {port.counters}"


def garbage(port: BasePort, body: bytes) -> None:
    """The next message to rank 1 is none."""
    assert port._push(1, [port._envelope(port._numbers[1]), body]) is None
    port._numbers[1] += 1


def test_messages_and_arrays_in_order(world: World) -> None:
    a, b = world.two()
    big = np.arange(4000.0)
    for i in range(300):
        assert a.send(1, Items(i, "s", 0, 0, [big[: (i % 5) * 1000] + i]))
    assert b.send(0, Freed(9))
    for i, (peer, message) in enumerate(collect(b, 300)):
        assert peer == 0 and isinstance(message, Items) and message.request == i
        assert np.array_equal(message.values[0], big[: (i % 5) * 1000] + i)
    assert collect(a, 1) == [(1, Freed(9))]
    assert a.codec.ring_bytes > 0 and a.counters.sent == 300 and b.counters.received == 300


# in the body, in the ring or a frame, a frame that zmq need not copy
@pytest.mark.parametrize("size", [100, 1000, 50_000])
def test_what_is_sent_may_change_afterwards(world: World, size: int) -> None:
    a, b = world.two()
    slot = np.zeros(size)
    for i in range(5):
        slot[:] = i
        assert a.send(1, Items(i, "s", 0, 0, [slot]))
    assert [message.values[0][7] for _, message in collect(b, 5) if isinstance(message, Items)] == [0, 1, 2, 3, 4]


def test_poll_is_bounded_and_does_not_forget(world: World) -> None:
    a, b = world.two()
    for i in range(2 * BATCH + 10):
        a.send(1, Freed(i))
    found = collect(b, 2 * BATCH + 10)
    assert [message for _, message in found] == [Freed(i) for i in range(2 * BATCH + 10)]


def test_what_cannot_travel_fails_in_the_sender_only(world: World) -> None:
    a, b = world.two()
    with pytest.raises(WireError):
        a.send(1, Items(1, "s", 0, 0, [np.zeros(9000), object()]))
    assert a.send(1, Freed(2))
    assert collect(b, 1) == [(0, Freed(2))]


def test_messages_of_an_old_epoch_are_dropped(world: World) -> None:
    old, b = world.two()
    old.send(1, Items(1, "s", 0, 0, [np.zeros(9000)]))
    new = world.port(0, epoch=2)
    link(b, new)
    link(new, b)
    old.send(1, Freed(1))
    new.send(1, Items(2, "s", 0, 0, [np.ones(9000)]))
    _, message = collect(b, 1)[0]
    assert isinstance(message, Items) and message.request == 2 and message.values[0].sum() == 9000
    nothing(b, lambda: b.counters.dropped_old == 2)
    assert b.faults() == []
    b.connect(0, old.endpoint, 1)  # a late announcement of the old epoch
    assert b.send(0, Freed(3)) and collect(new, 1) == [(1, Freed(3))]


def test_a_newer_epoch_waits_for_its_endpoint(world: World) -> None:
    old, b = world.two()
    old.send(1, Freed(0))
    collect(b, 1)
    new = world.port(0, epoch=2)
    link(new, b)
    for i in range(3):
        new.send(1, Items(i, "s", 0, 0, [np.full(3000, i)]))
    nothing(b, lambda: "3 messages held" in b.describe())
    link(b, new)
    new.send(1, Freed(7))
    found = collect(b, 4)
    assert [message.request for _, message in found] == [0, 1, 2, 7]  # type: ignore[attr-defined]


def test_a_restarted_reader_gets_a_fresh_ring(world: World) -> None:
    a, b = world.two()
    for i in range(5):  # fills the ring for a reader that never reads
        a.send(1, Items(i, "s", 0, 0, [np.zeros(2500)]))
    inline = a.codec.inline_bytes
    assert inline > 0
    b.close()
    again = world.port(1, epoch=2)
    a.connect_all(Peers({0: ("elsewhere", 9), 1: (again.endpoint, 2)}))
    link(again, a)
    for _ in range(3):  # repeated announcements must not touch the ring
        a.send(1, Items(6, "s", 0, 0, [np.ones(2500)]))
        a.connect_all(Peers({1: (again.endpoint, 2)}))
    found = collect(again, 3)
    assert all(isinstance(message, Items) and message.values[0].sum() == 2500 for _, message in found)
    assert a.codec.inline_bytes == inline


def test_a_disconnected_peer_is_silent_both_ways(world: World) -> None:
    a, b = world.two()
    a.send(1, Freed(1))
    b.disconnect(0)
    assert not b.send(0, Freed(2))
    assert not b.send(2, Freed(2))  # never connected
    nothing(b, lambda: b.counters.dropped_old == 1)
    assert b.counters.dropped_dead == 2 and b.faults() == []


@pytest.mark.parametrize("kind", ["ipc", "tcp", "local"])
def test_a_full_queue_is_a_dead_peer_not_a_wait(kind: str) -> None:
    world = World(kind, hwm=50)
    try:
        a, _ = world.two()
        sent = 0
        while a.send(1, Items(sent, "s", 0, 0, [b"x" * 40_000])):  # the kernel's buffers fill up, too
            sent += 1
            assert sent < 100_000
        assert sent >= 50
        (fault,) = a.faults()
        assert (fault.peer, fault.epoch) == (1, 1) and "full" in fault.reason and "Items" in fault.reason
        assert not a.send(1, Freed(1)) and a.faults() == []
        assert (a.counters.dropped_full, a.counters.dropped_dead) == (1, 1)
        c = world.port(2)
        link(a, c)
        link(c, a)
        assert a.send(2, Freed(5)) and collect(c, 1) == [(0, Freed(5))]  # others are not touched
        new = world.port(1, epoch=2)
        link(a, new)
        link(new, a)
        assert a.send(1, Freed(6)) and collect(new, 1) == [(0, Freed(6))]
    finally:
        world.close()


def test_a_receiver_that_lags_within_its_bound_loses_nothing(world: World) -> None:
    a, b = world.two()
    for i in range(900):
        assert a.send(1, Credit(i, "s", 0, 0))
    assert [message.request for _, message in collect(b, 900)] == list(range(900))  # type: ignore[attr-defined]


def test_a_peer_that_does_not_exist_yet(world: World) -> None:
    a = world.port(0)
    if world.kind == "local":
        b_end = world.hub.endpoint(1)
    elif world.kind == "ipc":
        b_end = f"ipc://{world.ends.folder}/later"
    else:
        listener = world.ends.listen(1, 1)
        os.close(listener.fd)
        b_end = listener.endpoint
    a.connect(1, b_end, 1)
    assert a.send(1, Freed(4))
    time.sleep(0.05)
    b = world.port(1) if world.kind == "local" else Port(1, 1, b_end, token=TOKEN)
    world.ports.append(b)
    link(b, a)
    assert collect(b, 1) == [(0, Freed(4))]


# ---------------------------------------------------------------------------------------------------------- bad messages


def raw(port: BasePort) -> tuple[zmq.Context, zmq.Socket[bytes]]:  # type: ignore[type-arg]
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(port.endpoint)
    return context, socket


def test_strangers_are_ignored() -> None:
    world = World("tcp")
    try:
        a, b = world.two()
        stranger = world.port(2, token=bytes(TOKEN_BYTES))
        link(stranger, b)
        stranger.send(1, Freed(1))
        context, socket = raw(b)
        for frames in ([b""], [b"x"], [b"GET / HTTP/1.1"], [b"x" * 32, b"y"], [b"\0" * 32] * 3):
            socket.send_multipart(frames)
        nothing(b, lambda: b.counters.dropped_bad == 6)
        assert b.faults() == []
        a.send(1, Freed(2))
        assert collect(b, 1) == [(0, Freed(2))]
        socket.close(0)
        context.term()
    finally:
        world.close()


def test_a_peer_that_sends_garbage_is_dead_until_its_next_epoch(world: World) -> None:
    a, b = world.two()
    a.send(1, Freed(1))
    garbage(a, b"\xc1garbage")
    a.send(1, Freed(2))
    assert collect(b, 1) == [(0, Freed(1))]
    nothing(b, lambda: b.counters.dropped_old == 1)  # nothing after the gap
    (fault,) = b.faults()
    assert (fault.peer, fault.epoch) == (0, 1) and "cannot be read" in fault.reason
    assert not b.send(0, Freed(3))
    new = world.port(0, epoch=2)
    link(b, new)
    link(new, b)
    new.send(1, Freed(4))
    assert collect(b, 1) == [(0, Freed(4))]


def test_too_many_held_messages_are_a_fault() -> None:
    table = PeerTable()
    for i in range(HELD_MAX):
        assert table.verdict(3, 5) is Verdict.HOLD
        table.hold(3, 5, Freed(i))
    assert table.faults() == []
    table.hold(3, 5, Freed(0))
    (fault,) = table.faults()
    assert (fault.peer, fault.epoch) == (3, 5)
    assert table.verdict(3, 5) is Verdict.DEAD and table.verdict(3, 6) is Verdict.HOLD


# ------------------------------------------------------------------------------------------------------------ event loop


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


async def test_delivery_into_an_event_loop(world: World) -> None:
    """Bursts larger than a batch, replies from inside `deliver`, an exception in it: nothing is ever left lying."""
    a, b = world.two()
    got: list[Message] = []
    raised = 0

    def deliver(received: list[Received]) -> None:
        nonlocal raised
        for peer, message in received:
            got.append(message)
            b.send(peer, message)
        if raised < 3:
            raised += 1
            raise RuntimeError("a handler's mistake")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    a.send(1, Freed(0))  # before it is attached
    b.attach(deliver)
    for burst in range(20):
        for _ in range(40 if burst % 5 else 40 + BATCH):
            a.send(1, Freed(a.counters.sent))
        await until(lambda: len(got) == a.counters.sent)
        echoes = a.poll(0.01)
        await asyncio.sleep(0)
        assert all(isinstance(message, Freed) for _, message in echoes)
    assert raised == 3
    assert got == [Freed(i) for i in range(len(got))]
    b.detach()
    a.send(1, Freed(-1))
    await asyncio.sleep(0.02)
    assert got[-1] != Freed(-1) and collect(b, 1) == [(0, Freed(-1))]


async def test_a_handler_that_raises_does_not_stop_delivery(world: World) -> None:
    """More than one batch is there when the loop wakes up, so no further edge of the socket follows."""
    a, b = world.two()
    got: list[Message] = []

    def deliver(received: list[Received]) -> None:
        got.extend(message for _, message in received)
        raise RuntimeError("a handler's mistake")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    b.attach(deliver)
    await asyncio.sleep(0)
    for i in range(3 * BATCH):
        a.send(1, Freed(i))
    time.sleep(0.1)  # the event loop stands still while they arrive
    await until(lambda: len(got) == 3 * BATCH)


async def test_faults_and_held_messages_reach_an_event_loop(world: World) -> None:
    a, b = world.two()
    new = world.port(0, epoch=2)
    link(new, b)
    got: list[Received] = []
    faults: list[int] = []

    def deliver(received: list[Received]) -> None:
        got.extend(received)
        faults.extend(fault.peer for fault in b.faults())

    b.attach(deliver)
    garbage(a, b"garbage")
    await until(lambda: faults == [0])
    new.send(1, Freed(8))
    await until(lambda: "1 messages held" in b.describe())
    assert got == []
    link(b, new)
    await until(lambda: got == [(0, Freed(8))])


# ----------------------------------------------------------------------------------------------------------------- rest


@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_poll_returns_for_a_watched_descriptor(kind: str) -> None:
    world = World(kind)
    try:
        a, b = world.two()
        read, write = os.pipe()
        a.watch(read)
        timer = threading.Timer(0.05, os.close, [write])  # end of file, as when a parent dies
        timer.start()
        done = threading.Event()
        threading.Thread(target=lambda: (a.poll(60.0), done.set()), daemon=True).start()
        assert done.wait(DEADLINE_S), "poll did not return at end of file"
        a.unwatch(read)
        os.close(read)
        assert b.send(0, Freed(1)) and collect(a, 1) == [(1, Freed(1))]
    finally:
        world.close()


def test_local_ports_in_threads() -> None:
    hub = LocalHub(threads=True)
    a, b = hub.port(0), hub.port(1)
    link(a, b)
    link(b, a)

    def echo() -> None:
        for _ in range(200):
            for peer, message in b.poll(DEADLINE_S):
                b.send(peer, message)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    for i in range(200):
        a.send(1, Freed(i))
        assert a.poll(DEADLINE_S) == [(1, Freed(i))]
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_local_messages_without_bytes() -> None:
    hub = LocalHub(honest=False, hwm=3)
    a, b = hub.port(CONDUCTOR), hub.port(1)
    b.connect(CONDUCTOR, a.endpoint, 1)
    a.connect(1, b.endpoint, 1)
    marker = object()
    assert a.send(1, Items(1, "s", 0, 0, [marker]))
    ((peer, message),) = b.poll()
    assert peer == CONDUCTOR and isinstance(message, Items) and message.values[0] is marker
    assert [a.send(1, Freed(i)) for i in range(5)] == [True, True, True, False, False]
    assert [fault.peer for fault in a.faults()] == [1]


@pytest.mark.parametrize("kind", ["ipc", "tcp", "local"])
def test_close_leaks_nothing(kind: str) -> None:
    def cycle() -> None:
        world = World(kind)
        a, b = world.two()
        a.send(1, Freed(1))
        collect(b, 1)
        a.send(1, Items(1, "s", 0, 0, [np.zeros(9000)]))  # on its way when all is closed
        world.close()
        a.close()
        assert a.poll(1.0) == []
        assert not world.ends.folder or not os.path.exists(world.ends.folder)

    cycle()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        cycle()
    assert len(os.listdir("/proc/self/fd")) == before


def test_close_can_wait_for_last_words() -> None:
    world = World("ipc")
    try:
        a, b = world.two()
        for i in range(200):
            a.send(1, Items(i, "s", 0, 0, [b"x" * 10_000]))
        closer = threading.Thread(target=a.close, args=(DEADLINE_S,), daemon=True)
        closer.start()
        assert len(collect(b, 200)) == 200
        closer.join(DEADLINE_S)
        assert not closer.is_alive()
    finally:
        world.close()


def test_an_address_that_is_taken_is_an_error() -> None:
    world = World("tcp")
    try:
        a = world.port(0)
        with pytest.raises(OSError, match="cannot listen"):
            Port(1, 1, a.endpoint, token=TOKEN)
    finally:
        world.close()


def test_endpoints_fall_back_to_tcp(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    ends = Endpoints()
    made = ends.listen(2, 7)
    assert made.endpoint == f"ipc://{ends.folder}/r2e7" and os.stat(ends.folder).st_mode & 0o77 == 0
    os.close(made.fd)
    ends.remove(made.endpoint)
    ends.close()
    assert not os.path.exists(ends.folder)

    def full(**_: object) -> str:
        raise OSError(28, "full")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    fallback = Endpoints()
    assert fallback.folder == ""
    made = fallback.listen(2, 7)
    assert made.endpoint.startswith("tcp://127.0.0.1:")
    os.close(made.fd)
