"""Large bodies between a socket and memory: in threads, so that those of several connections move at once, and without copies in between.

A thread moves what it can and leaves when the other side has kept it waiting for `PATIENCE_MS`; the event loop then waits for the socket.
So a client that is slow holds no thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_MS = 5
LARGE = 2**19  # bytes beyond which a turn of a thread costs less than the event loop's time
_TOGETHER = 64  # parts that a call is given; the system takes a thousand
_THREADS = ThreadPoolExecutor(8, "bulk")


class Bulk:
    """The socket of one connection. Each way moves for one caller at a time, and nobody else may use that way meanwhile."""

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None  # a descriptor of its own, which stays open while a thread uses it
        self._moving = 0  # ways that bytes move: what is left of an answer, and the body of the next request
        self._closed = False

    def close(self) -> None:
        """The connection is over. What moves ends with an OSError."""
        self._closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if not self._moving:
                self._socket.close()

    async def receive(self, memory: memoryview, then: Callable[[], T]) -> T:
        """Fill `memory`, one-dimensional bytes, and give what `then` gives, in the thread that received the last of them. Raises OSError
        if the client leaves before."""
        found: list[T] = []

        def work(connection: socket.socket, parts: deque[memoryview]) -> None:
            _receive(connection, parts)
            if not parts:
                found.append(then())

        await self._move(deque([memory]), work, self._loop.add_reader, self._loop.remove_reader)
        return found[0]

    async def send(self, parts: deque[memoryview]) -> None:
        """Send all parts, one-dimensional bytes; they leave the deque as they are sent. Raises OSError if the client leaves before."""
        await self._move(parts, _send, self._loop.add_writer, self._loop.remove_writer)

    async def _move(
        self,
        parts: deque[memoryview],
        work: Callable[[socket.socket, deque[memoryview]], None],
        watch: Callable[..., None],
        unwatch: Callable[[int], bool],
    ) -> None:
        if self._socket is None:
            self._socket = self._transport.get_extra_info("socket").dup()
        self._moving += 1
        try:
            while parts:
                if self._closed:
                    raise ConnectionResetError("the connection is closed")
                await self._in_thread(work, self._socket, parts)
                if parts:
                    await self._ready(self._socket.fileno(), watch, unwatch)
        finally:
            self._moving -= 1
            if self._closed and not self._moving:
                self._socket.close()

    async def _in_thread(self, work: Callable[..., None], *args: Any) -> None:
        """If this is cancelled, `work` ends all the same before the socket is used again."""
        moved = self._loop.run_in_executor(_THREADS, work, *args)
        try:
            await asyncio.shield(moved)
        except asyncio.CancelledError:
            await asyncio.wait({moved})
            raise

    async def _ready(self, fd: int, watch: Callable[..., None], unwatch: Callable[[int], bool]) -> None:
        ready = asyncio.Event()
        watch(fd, ready.set)
        try:
            await ready.wait()
        finally:
            unwatch(fd)


def _receive(connection: socket.socket, parts: deque[memoryview]) -> None:
    """Receive into the parts, until the other side is slow. Raises OSError, also at the end of the stream."""
    while parts:
        try:
            count = connection.recv_into(parts[0])
        except BlockingIOError:
            if not _wait(connection, select.POLLIN):
                return
            continue
        if not count:
            raise ConnectionResetError("the client has left")
        _advance(parts, count)


def _send(connection: socket.socket, parts: deque[memoryview]) -> None:
    """Send until the other side is slow. Raises OSError."""
    while parts:
        try:
            count = connection.sendmsg(islice(parts, _TOGETHER))
        except BlockingIOError:
            if not _wait(connection, select.POLLOUT):
                return
            continue
        _advance(parts, count)


def _advance(parts: deque[memoryview], count: int) -> None:
    """Take the first `count` bytes away."""
    while parts and count >= len(parts[0]):
        count -= len(parts.popleft())
    if count:
        parts[0] = parts[0][count:]


def _wait(connection: socket.socket, event: int) -> bool:
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(PATIENCE_MS))


class BulkTransport:
    """A transport of asyncio that sends large data in threads. To its protocol (`pause`, `resume`) large data is a full buffer."""

    def __init__(self, transport: asyncio.Transport, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self.bulk = Bulk(transport)
        self.plain, self._pause, self._resume = transport, pause, resume
        self._parts: deque[memoryview] = deque()  # on their way
        self._next: deque[memoryview] = deque()  # behind them
        self._sending: asyncio.Task[None] | None = None
        self._closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)

    def write(self, data: bytes | memoryview) -> None:
        """As a transport does; `data` must not change until it is sent."""
        if self._sending is None and (len(data) < LARGE or self.is_closing() or self.plain.get_write_buffer_size()):
            self.plain.write(data)
        elif len(data):
            self._next.append(memoryview(data).cast("B"))
            if self._sending is None:
                self._pause()
                self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        try:
            while self._next:
                self._parts, self._next = self._next, deque()
                await self.bulk.send(self._parts)
        except OSError:
            self._parts, self._next = deque(), deque()
            self.plain.abort()
        finally:
            self._sending = None
            self._resume()
            if self._closing:
                self.plain.close()

    def close(self) -> None:
        """Close when all is sent."""
        self._closing = True
        if self._sending is None:
            self.plain.close()

    def is_closing(self) -> bool:
        """Whether nothing more will be sent than what has been written."""
        return self._closing or self.plain.is_closing()

    def get_write_buffer_size(self) -> int:
        """Bytes that have been written and not sent; near enough while a thread sends."""
        waiting = sum(map(len, list(self._parts))) + sum(map(len, self._next))
        return self.plain.get_write_buffer_size() + waiting
