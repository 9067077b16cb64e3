"""The ring: wrap-around, order, generations, and either side killed at any point."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport import memfile
from mstarc_runtime.transport.ring import HEADER, RingReader, RingWriter, Slot, StaleRing, create

CAPACITY = 1 << 14


def data(seed: int, size: int) -> memoryview:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).data


def take(reader: RingReader, slot: Slot) -> bytes:
    out = bytearray(slot.size)
    reader.read(slot, memoryview(out))
    reader.release(slot)
    return bytes(out)


def pair() -> tuple[RingWriter, RingReader]:
    fd = create(CAPACITY)
    try:
        return RingWriter(fd), RingReader(fd)
    finally:
        os.close(fd)  # mappings outlive the descriptor


def test_against_a_queue() -> None:
    """5000 random writes, reads, skipped messages and resets agree with a model of a queue with room for CAPACITY bytes."""
    writer, reader = pair()
    rng = random.Random(3)
    queue: deque[tuple[Slot, bytes]] = deque()
    for turn in range(5000):
        if rng.random() < 0.005:
            writer.reset()
            queue.clear()
        elif rng.random() < 0.55:
            content = data(turn, rng.choice([0, 1, 100, 5000, CAPACITY]))
            used = sum(slot.size for slot, _ in queue)
            slot = writer.write(content)
            assert (slot is not None) == (used + content.nbytes <= CAPACITY)
            if slot is not None:
                queue.append((slot, bytes(content)))
        elif queue:
            for _ in range(rng.choice([0, 0, 0, len(queue) - 1])):
                queue.popleft()  # lost messages: the next release covers them
            slot, expected = queue.popleft()
            assert take(reader, slot) == expected
    writer.close()
    reader.close()


def test_positions_wrap() -> None:
    writer, reader = pair()
    writer._move((1 << 48) - 10_000)
    reader._store(16, writer.generation, (1 << 48) - 10_000)
    assert writer.free == CAPACITY
    for turn in range(20):
        slot = writer.write(data(turn, 3000))
        assert slot is not None
        assert take(reader, slot) == bytes(data(turn, 3000))
    assert slot.start < 1 << 20


def test_rewind() -> None:
    writer, reader = pair()
    mark = writer.mark()
    assert writer.write(data(0, 9000)) is not None
    writer.rewind(mark)
    slot = writer.write(data(1, 16000))
    assert slot is not None and take(reader, slot) == bytes(data(1, 16000))


def test_an_empty_ring_begins_anew() -> None:
    """Whatever passes, memory beyond what is on its way at once is not touched; what is on its way is never outdated."""
    writer, reader = pair()
    for turn in range(200):
        writer.mark()
        one, two = writer.write(data(turn, 900)), writer.write(data(turn + 1, 900))
        assert one is not None and two is not None and two.start + two.size <= 3 * 900
        assert take(reader, one) == bytes(data(turn, 900))
        writer.mark()
        three = writer.write(data(turn + 2, 900))
        assert three is not None and take(reader, two) == bytes(data(turn + 1, 900))
        assert take(reader, three) == bytes(data(turn + 2, 900))
    writer.close()
    reader.close()


def test_a_reset_outdates_slots_and_late_releases() -> None:
    writer, reader = pair()
    old = writer.write(data(0, 12000))
    assert old is not None
    writer.reset()
    assert writer.free == CAPACITY
    with pytest.raises(StaleRing):
        reader.read(old, memoryview(bytearray(12000)))
    new = writer.write(data(1, 8000))
    assert new is not None
    reader.release(old)  # changes nothing
    assert writer.free == CAPACITY - 8000
    # a reader that was between its check and its store when the reset came
    reader._store(16, old.generation, 12000)
    assert writer.free == CAPACITY - 8000
    assert take(reader, new) == bytes(data(1, 8000))
    assert writer.free == CAPACITY


def test_a_reset_during_the_copy_is_noticed() -> None:
    writer, reader = pair()
    slot = writer.write(data(0, 4000))
    assert slot is not None
    check = reader._check

    def check_then_reset(found: Slot) -> None:
        check(found)
        writer.reset()

    reader._check = check_then_reset  # type: ignore[method-assign]
    with pytest.raises(StaleRing):
        reader.read(slot, memoryview(bytearray(4000)))


def test_regions_that_were_never_published() -> None:
    writer, reader = pair()
    slot = writer.write(data(0, 100))
    assert slot is not None
    for start, size in ((0, 101), (1, 100), (100, 1), (-1, 1), (CAPACITY, 1), (0, -1), (1 << 60, 50)):
        with pytest.raises(WireError):
            reader.read(Slot(slot.generation, start, size), memoryview(bytearray(max(size, 0))))
        with pytest.raises(WireError):
            reader.release(Slot(slot.generation, start, size))
    assert take(reader, slot) == bytes(data(0, 100))


def test_not_a_ring(tmp_path: object) -> None:
    for size in (100, HEADER, HEADER + 4096):
        fd = memfile.anonymous_file(size)
        with pytest.raises(WireError, match="ring"):
            RingReader(fd)
        os.close(fd)
    with pytest.raises(ValueError, match="power of two"):
        create(5000)


def test_files_have_no_name_and_no_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(os.listdir("/proc/self/fd"))
    shm = set(os.listdir("/dev/shm"))
    for memfd in (True, False):
        if not memfd:
            monkeypatch.delattr(os, "memfd_create")
        fd = create(CAPACITY)
        assert "(deleted)" in os.readlink(f"/proc/self/fd/{fd}")
        assert not os.get_inheritable(fd)
        writer, reader = RingWriter(fd), RingReader(fd)
        slot = writer.write(data(0, 500))
        assert slot is not None and take(reader, slot) == bytes(data(0, 500))
        for _ in range(2):
            writer.close()
            reader.close()
        os.close(fd)
    assert set(os.listdir("/proc/self/fd")) == before
    assert set(os.listdir("/dev/shm")) == shm


# ---------------------------------------------------------------------------------------------------------- killed sides

SLOT = struct.Struct("<qqqq")  # generation, start, size, seed
CHILD = """
import os, struct, sys
import numpy as np
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.ring import RingReader, RingWriter, Slot
S = struct.Struct("<qqqq")
role, ring, pipe = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
def content(seed, size): return ((np.arange(size, dtype=np.int64) * 31 + seed) % 251).astype(np.uint8)
if role == "write":
    writer, seed = RingWriter(ring), 0
    while True:
        size = 1 + seed * 977 % 6000
        slot = writer.write(content(seed, size).data)
        if slot is not None:
            os.write(pipe, S.pack(slot.generation, slot.start, size, seed))
            seed += 1
else:
    reader = RingReader(ring)
    while True:
        generation, start, size, seed = S.unpack(os.read(pipe, S.size))
        slot, out = Slot(generation, start, size), np.empty(size, np.uint8)
        reader.read(slot, out.data)
        assert (out == content(seed, size)).all()
        reader.release(slot)
        os.write(1, b".")
"""


def content(seed: int, size: int) -> np.ndarray:  # type: ignore[type-arg]
    return ((np.arange(size, dtype=np.int64) * 31 + seed) % 251).astype(np.uint8)


def child(role: str, ring: int, pipe: int) -> subprocess.Popen[bytes]:
    out = subprocess.PIPE if role == "read" else None
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, role, str(ring), str(pipe)], pass_fds=(ring, pipe), stdout=out
    )


def test_a_killed_writer_is_replaced() -> None:
    """The reader reads on while writers are killed at random points; every byte it gets is right."""
    fd = create(CAPACITY)
    reader = RingReader(fd)
    rng = random.Random(11)
    for _ in range(4):
        read, write = os.pipe()
        process = child("write", fd, write)
        os.close(write)
        limit = rng.randint(5, 400)
        for count in range(10**9):
            record = os.read(read, SLOT.size)
            if not record:
                break
            generation, start, size, seed = SLOT.unpack(record)
            out = np.empty(size, np.uint8)
            slot = Slot(generation, start, size)
            reader.read(slot, out.data)
            assert np.array_equal(out, content(seed, size))
            reader.release(slot)
            if count == limit:
                process.send_signal(signal.SIGKILL)  # the rest of the pipe is still read and checked
        assert process.wait(5) == -signal.SIGKILL
        os.close(read)
    os.close(fd)


def test_a_killed_reader_is_replaced() -> None:
    """The writer resets when it starts a new reader, as ports do; nothing of the dead one holds room."""
    fd = create(CAPACITY)
    writer = RingWriter(fd)
    seed = 0
    for limit in (3, 40, 150):
        read, write = os.pipe()
        process = child("read", fd, read)
        os.close(read)
        writer.reset()
        assert writer.free == CAPACITY
        assert process.stdout is not None
        written = 0
        for _ in range(limit):
            size = 1 + seed * 977 % 6000
            slot = writer.write(content(seed, size).data)
            while slot is None:
                assert process.stdout.read(1) == b".", f"the reader ended with {process.wait(5)} at message {seed}"
                slot = writer.write(content(seed, size).data)
            os.write(write, SLOT.pack(slot.generation, slot.start, size, seed))
            seed += 1
            written += 1
        process.send_signal(signal.SIGKILL)
        assert process.wait(5) == -signal.SIGKILL
        process.stdout.close()
        os.close(write)
    assert written == 150
    os.close(fd)
