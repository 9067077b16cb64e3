"""A byte ring in shared memory, one writer process and one reader process, for the bytes of arrays.

`create(capacity) -> fd` makes the file: anonymous (no name, so nothing is left behind when every process is killed),
inherited by children through `pass_fds`. `RingWriter(fd).write(view) -> Slot | None` copies bytes in, None if there is no
room now. The `Slot` travels in the message; `RingReader(fd).read(slot, out)` copies the bytes out and `release(slot)`
gives the room back, in order. Nothing ever waits.

The header has two words, each written by one side only, each (generation mod 2^16) << 48 | (position mod 2^48):
the writer's holds its head, the reader's its tail. A tail of another generation counts as 0, so a reader that dies or
lags behind a `reset` cannot disturb the writer. `reset` starts a new generation; a slot of an old one is `StaleRing`.
A killed writer leaves at worst bytes after its head; a killed reader leaves a tail that the next `reset` outdates. So a
new process on either side may take over, provided that a new writer resets, and that the writer resets when it learns
that the reader is new: what was on its way to the old reader is never read.

That the bytes are there when a slot arrives is guaranteed by the socket that carries the slot.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass
from typing import Any

from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.copies import Pair
from mstarc_runtime.transport.memfile import anonymous_file

HEADER = 4096  # one page, so that the data is page aligned
MAGIC = 0x6D73_7472_696E_6731
_POSITIONS = 1 << 48
_GENERATIONS = 1 << 16
_WRITER, _READER = 8, 16  # word index: 64 bytes apart, on cache lines of their own
_LOCK = threading.Lock()


class StaleRing(WireError):
    """The slot belongs to a generation that has ended: its sender was restarted, or took this process for restarted."""


@dataclass(frozen=True, slots=True)
class Slot:
    """`size` bytes at position `start` of a generation."""

    generation: int
    start: int
    size: int


def create(capacity: int) -> int:
    """A new ring file of `capacity` data bytes (a power of two). Gives its descriptor, close-on-exec, owned by the caller."""
    if capacity < 4096 or capacity & (capacity - 1):
        raise ValueError(f"the capacity of a ring is a power of two from 4096, not {capacity}")
    fd = anonymous_file(HEADER + capacity)
    with mmap.mmap(fd, HEADER) as header, memoryview(header).cast("Q") as words:
        words[1] = capacity
        words[_WRITER] = 1 << 48
        words[0] = MAGIC
    return fd


def _fence() -> None:
    """Order memory accesses before and after it, also on CPUs that reorder them. A lock taken twice is a full barrier."""
    for _ in range(2):
        with _LOCK:
            pass


class _Mapping:
    """The mapping that both sides have. The descriptor stays the caller's."""

    def __init__(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size <= HEADER:
            raise WireError(f"the ring file has {size} bytes: it is no ring")
        self._map = mmap.mmap(fd, size)
        self._view = memoryview(self._map)
        self._words: memoryview[Any] = self._view[:HEADER].cast("Q")
        self.capacity = int(self._words[1])
        if self._words[0] != MAGIC or self.capacity != size - HEADER:
            self.close()
            raise WireError("the file behind the descriptor is no ring of this version")
        self._data = self._view[HEADER:]

    def _load(self, word: int) -> tuple[int, int]:
        value = int(self._words[word])
        return value >> 48, value % _POSITIONS

    def _store(self, word: int, generation: int, position: int) -> None:
        self._words[word] = (generation % _GENERATIONS) << 48 | position % _POSITIONS

    def _pairs(self, slot: Slot, data: memoryview) -> list[Pair]:
        """The region with as many bytes of `data`: one run, or two if it wraps."""
        at = slot.start % self.capacity
        first = min(slot.size, self.capacity - at)
        pairs = [(self._data[at : at + first], data[:first])]
        return pairs if first == slot.size else [*pairs, (self._data[: slot.size - first], data[first:])]

    def _tail(self, generation: int) -> int:
        tail_generation, tail = self._load(_READER)
        return tail if tail_generation == generation else 0

    def close(self) -> None:
        """Unmap. Idempotent."""
        for name in ("_data", "_words", "_view"):
            view = self.__dict__.pop(name, None)
            if view is not None:
                view.release()
        self._map.close()


def _copy(later: list[Pair] | None, pairs: list[Pair]) -> None:
    if later is not None:
        later += pairs
        return
    for target, source in pairs:
        target[:] = source


class RingWriter(_Mapping):
    """The writing side. Starts a new generation: what an earlier writer left is void."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.generation, self._head = self._load(_WRITER)
        self.reset()

    @property
    def free(self) -> int:
        """Bytes that can be written now."""
        return self.capacity - (self._head - self._tail(self.generation)) % _POSITIONS

    def write(self, data: memoryview, later: list[Pair] | None = None) -> Slot | None:
        """Copy `data` (one-dimensional bytes) in; None if there is no room for all of it now. With `later` the copies are added to it,
        to be made before the slot is sent."""
        size = data.nbytes
        if size > self.free:
            return None
        _fence()  # the reader's last copy is over before the room is used again
        slot = Slot(self.generation, self._head, size)
        _copy(later, self._pairs(slot, data))
        self._move((self._head + size) % _POSITIONS)
        return slot

    def mark(self) -> int:
        """Where the writer is, for `rewind`; before the first write of a message.

        An empty ring begins anew: the memory that caches hold is used again, and of a large ring only what was ever on its way at once
        is touched.
        """
        if self._head and self.free == self.capacity:  # the reader has given back all: nothing is on its way
            self.reset()
        return self._head

    def rewind(self, mark: int) -> None:
        """Take back what was written since `mark`: no slot of it has been sent."""
        self._move(mark)

    def reset(self) -> None:
        """Start a new generation, empty. Call it when the reader's process is a new one."""
        self.generation = (self.generation + 1) % _GENERATIONS
        self._move(0)
        _fence()  # a reader that sees bytes of the new generation sees that the old one is over

    def _move(self, head: int) -> None:
        self._head = head
        self._store(_WRITER, self.generation, head)


class RingReader(_Mapping):
    """The reading side. It keeps no state of its own, so a new process goes on where the old one was."""

    def read(self, slot: Slot, out: memoryview, later: list[Pair] | None = None) -> None:
        """Copy the bytes of `slot` into `out` (slot.size bytes). StaleRing; WireError for a region never published.

        With `later` the copies are added to it; once they are made, `confirm` says whether they are good.
        """
        self._check(slot)
        if out.nbytes != slot.size:
            raise WireError(f"the slot holds {slot.size} bytes, the array takes {out.nbytes}")
        _copy(later, [(target, source) for source, target in self._pairs(slot, out)])
        if later is None:
            self.confirm(slot)

    def confirm(self, slot: Slot) -> None:
        """After copies of `slot` and what was before it: StaleRing if the writer may have written over them meanwhile."""
        _fence()
        if self._load(_WRITER)[0] != slot.generation:
            raise StaleRing("the sender reset the ring while it was read")

    def release(self, slot: Slot) -> None:
        """Give back the room of `slot` and of everything before it. Nothing happens if its generation has ended."""
        if self._load(_WRITER)[0] != slot.generation:
            return
        self._check(slot)
        _fence()  # the copy is over before the writer can see the room
        self._store(_READER, slot.generation, slot.start + slot.size)

    def _check(self, slot: Slot) -> None:
        generation, head = self._load(_WRITER)
        if slot.generation != generation:
            raise StaleRing(f"the slot is of generation {slot.generation}, the ring of {generation}")
        tail = self._tail(generation)
        used = (head - tail) % _POSITIONS
        ahead = (slot.start - tail) % _POSITIONS
        if slot.size < 0 or not 0 <= slot.start < _POSITIONS or used > self.capacity or ahead + slot.size > used:
            raise WireError(
                f"{slot.size} bytes at {slot.start} are not between tail {tail} and head {head} of the ring"
            )
