"""The way beside the queues: what it takes, what it leaves to them, and that both together keep the order."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from mstarc_runtime.abi.messages import Freed, Items
from mstarc_runtime.transport import common, port, wire
from mstarc_runtime.transport.base import HELD_MAX, Fault, Received
from mstarc_runtime.transport.common import BATCH
from mstarc_runtime.transport.lane import LANE_MAX, Lane, lanes
from mstarc_runtime.transport.order import Order, Way
from mstarc_runtime.transport.port import Port
from mstarc_runtime.transport.wire import Frame, WireError
from tests.transport.test_port import World, collect, until

LONG = np.arange(LANE_MAX, dtype=np.uint8)  # too long for the lane; two of them fill a ring of these tests


def test_order_of_any_arrival() -> None:
    """Each way keeps its order; what comes by one may overtake anything of the other."""
    for seed in range(50):
        draw = random.Random(seed)
        ways: tuple[list[int], ...] = tuple([] for _ in Way)
        for number in range(20):
            draw.choice(ways).append(number)
        order, got = Order(), list[int]()
        for came in range(20):
            way = draw.choice([way for way in Way if ways[way]])
            number = ways[way].pop(0)
            order.put(number, number, way)
            while (due := order.next()) is not None:
                got.append(due)
            assert sum(order.waiting(way) for way in Way) + len(got) == came + 1
        assert got == list(range(20))


@pytest.fixture
def pair() -> Iterator[tuple[Lane, Lane]]:
    made = lanes()
    assert made is not None
    ends = Lane(made[0]), Lane(made[1])
    yield ends
    for end in ends:
        end.close()


def test_frames_arrive_as_they_were(pair: tuple[Lane, Lane]) -> None:
    a, b = pair
    assert b.receive() is None and not b.pending()
    frames: list[Frame] = [b"envelope", b"", memoryview(np.arange(5000, dtype=np.uint8).data)]
    assert a.send(frames) and b.pending()
    got = b.receive()
    assert got is not None and [bytes(frame) for frame in got] == [bytes(frame) for frame in frames]
    assert not a.send([bytes(LANE_MAX)]) and b.receive() is None
    assert not a.send([b""] * (1 << 16)) and b.receive() is None


def test_a_lane_never_waits(pair: tuple[Lane, Lane]) -> None:
    a, b = pair
    sent = 0
    while a.send([sent.to_bytes(4, "little"), bytes(1000)]):
        sent += 1
    assert 10 < sent < BATCH
    got = [b.receive() for _ in range(sent)]
    assert [int.from_bytes(frames[0], "little") for frames in got if frames] == list(range(sent))
    assert b.receive() is None and a.send([b"there is room again"])


def test_a_lane_holds_some_hundred_messages_whatever_the_buffers_of_the_host(pair: tuple[Lane, Lane]) -> None:
    """What is in the queue behind them waits for no more than that."""
    sent = 0
    while pair[0].send([b""]):
        sent += 1
    assert 10 < sent < 2 * BATCH


def test_the_other_end_is_gone(pair: tuple[Lane, Lane]) -> None:
    a, b = pair
    a.send([b"last words"])
    a.close()
    assert b.receive() == [b"last words"]
    assert b.pending()
    with pytest.raises(EOFError):
        b.receive()
    assert not b.send([b"to nobody"])


def test_last_words_of_an_end_that_was_closed_before_it_had_read_all(pair: tuple[Lane, Lane]) -> None:
    a, b = pair
    b.send([b"never read"])
    a.send([b"last"])
    a.send([b"words"])
    a.close()
    assert b.receive() == [b"last"]
    assert b.receive() == [b"words"]
    with pytest.raises(EOFError):
        b.receive()


@pytest.mark.parametrize("junk", [b"x", b"\x02\x00\x01\x00\x00\x00", b"\x01\x00\x05\x00\x00\x00four", b"\x00\x00tail"])
def test_what_is_no_message_has_no_frames(junk: bytes) -> None:
    raw, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lane = Lane(end)
    raw.send(junk)
    assert lane.receive() == []
    raw.close()
    lane.close()


class Two:
    """Ports 0 and 1 with a lane between them."""

    def __init__(self, world: World) -> None:
        a, b, ends = world.port(0), world.port(1), lanes()
        assert ends is not None and isinstance(a, Port) and isinstance(b, Port)
        self.a, self.b = a, b
        a.connect(1, b.endpoint, 1, ends[0])
        b.connect(0, a.endpoint, 1, ends[1])


@pytest.fixture
def two() -> Iterator[Two]:
    world = World("ipc", hwm=20_000)
    yield Two(world)
    world.close()


def test_short_and_long_messages_stay_in_order(two: Two) -> None:
    """Those through the queue take longer: what comes behind them waits."""
    for i in range(400):
        assert two.a.send(1, Items(i, "s", 0, 0, [LONG] if i % 7 == 0 else [i] if i % 2 else [LONG[:3000]] * 3))
    assert two.b.send(0, Freed(3))
    assert [message.request for _, message in collect(two.b, 400) if isinstance(message, Items)] == list(range(400))
    assert collect(two.a, 1) == [(1, Freed(3))]


def test_a_full_lane_loses_nothing(two: Two) -> None:
    for i in range(3000):
        assert two.a.send(1, Freed(i))
    assert not two.a._lanes[1].send([bytes(20_000)])  # full
    assert collect(two.b, 3000) == [(0, Freed(i)) for i in range(3000)]


def test_a_lane_that_is_ahead_of_a_long_queue_waits_for_it(two: Two) -> None:
    """A peer that was busy finds thousands of messages queued, and reads them while as many more come."""
    sent = 0
    got: list[Received] = []
    for burst in [3 * HELD_MAX, *[300] * 60]:
        for _ in range(burst):
            assert two.a.send(1, Freed(sent))
            sent += 1
        got += two.b.poll(0.2 if burst > HELD_MAX else 0.0)
        assert two.b._ahead(0) <= BATCH
    assert two.b.faults() == []
    got += collect(two.b, sent - len(got))
    assert got == [(0, Freed(i)) for i in range(sent)]


def test_the_queue_takes_over_from_a_lane_that_ended(two: Two) -> None:
    two.a.send(1, Freed(1))
    assert collect(two.b, 1) == [(0, Freed(1))]
    two.b._shut_lane(0)
    two.a.send(1, Freed(2))
    two.b.send(0, Freed(3))
    assert collect(two.b, 1) == [(0, Freed(2))]
    assert collect(two.a, 1) == [(1, Freed(3))]
    assert not two.a._lanes  # its end was found when it was read


def test_a_message_that_never_comes_is_a_fault(two: Two) -> None:
    two.a._numbers[1] = 1  # number 0 is lost
    for i in range(HELD_MAX + BATCH):
        assert two.b.faults() == []
        two.a.send(1, Freed(i))
        assert two.b.poll() == []
    faults: list[Fault] = []
    for i in range(1000):  # what the lane has no room for goes by the queue
        two.a.send(1, Freed(i))
        two.b.poll(0.01)
        faults += two.b.faults()
        if faults:
            break
    (fault,) = faults
    assert fault.peer == 0 and "wait for one from it that has not come" in fault.reason
    assert two.b.poll() == [] and not two.b._orders


@pytest.mark.parametrize("more", [1, 2 * BATCH])
async def test_a_gap_is_a_fault_after_a_while(two: Two, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the lane is not read on."""
    monkeypatch.setattr(common, "GAP_S", 0.05)
    got: list[Received] = []
    two.b.attach(got.extend)
    two.a._numbers[1] = 1  # number 0 is lost
    for i in range(more):
        two.a.send(1, Freed(i))
    for _ in range(200):
        await asyncio.sleep(0.01)
        two.a.send(1, Freed(more))
        if faults := two.b.faults():
            break
        two.b.pump()
    assert [fault.peer for fault in faults] == [0] and "for 0.05 s" in faults[0].reason and not got


def test_what_is_too_long_for_a_frame_is_refused_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ ends the connection over such a frame: those behind it would wait for it for ever."""
    for module in (wire, port):
        monkeypatch.setattr(module, "FRAME_MAX", 1 << 16)
    world = World("ipc")
    two = Two(world)
    try:
        two.a.send(1, Freed(1))
        for value in (np.zeros(1 << 17, np.uint8), bytes(1 << 17)):
            with pytest.raises(WireError, match="can travel"):
                two.a.send(1, Items(2, "s", 0, 0, [value]))
        two.a.send(1, Items(3, "s", 0, 0, [LONG]))
        two.a.send(1, Freed(4))
        assert [message.request for _, message in collect(two.b, 3) if hasattr(message, "request")] == [1, 3, 4]
    finally:
        world.close()


async def test_delivery_into_an_event_loop(two: Two) -> None:
    got: list[Received] = []
    two.b.attach(got.extend)
    two.a.send(1, Freed(1))
    await until(lambda: len(got) == 1)
    two.a.send(1, Items(2, "s", 0, 0, [LONG]))
    two.a.send(1, Freed(3))
    await until(lambda: len(got) == 3)
    two.b.detach()
    two.a.send(1, Freed(4))
    await asyncio.sleep(0.02)
    assert len(got) == 3 and two.b._pending()
    two.b.attach(got.extend)
    await until(lambda: len(got) == 4)
    two.a.close()
    await until(lambda: not two.b._lanes)


async def test_a_lane_of_a_peer_that_comes_later() -> None:
    """As a worker that is restarted: the port is attached already, and what the old lane still held is of an epoch that is over."""
    world = World("ipc")
    two = Two(world)
    got: list[Received] = []
    try:
        two.b.attach(got.extend)
        two.a.send(1, Freed(1))
        await until(lambda: len(got) == 1)
        two.a.send(1, Freed(2))
        two.b.disconnect(0)
        new, ends = world.port(0, epoch=2), lanes()
        assert ends is not None
        new.connect(1, two.b.endpoint, 1, ends[0])
        new.send(1, Freed(3))
        two.b.connect(0, new.endpoint, 2, ends[1])
        await until(lambda: len(got) == 2)
        assert got == [(0, Freed(1)), (0, Freed(3))]
    finally:
        world.close()


def test_an_end_that_nobody_needs_is_closed(two: Two) -> None:
    ends = lanes()
    assert ends is not None
    two.a.connect(1, two.b.endpoint, 1, ends[0])  # that epoch is open already
    assert ends[0].fileno() == -1
    ends[1].close()
