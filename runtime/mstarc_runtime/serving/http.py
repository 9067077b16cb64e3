"""uvicorn's HTTP protocol, but large bodies pass neither h11 nor the event loop: see `bulk`.

Large pieces of an answer are sent as they are, not joined with the bytes that frame them. A large request body of known length is read
when the application asks for it, by `scope["extensions"][BODY]`, into memory of its size.

A connection whose client reads nothing for `WRITE_S` is cut off. Closing it would wait until the client has read the rest, for ever.
So is one whose request has no whole head `HEAD_S` after it could come or has begun, or after its last request was answered before all of
its body was here; between requests uvicorn has its own limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from mstarc_runtime.memory import room
from mstarc_runtime.serving.bulk import LARGE, BulkTransport
from mstarc_runtime.serving.sse import WRITE_S

BODY = "mstarc.body"  # an extension of a scope
# What a function makes of the whole body, in a thread; once. Raises OSError if the client leaves before, and what the function raises.
ReadBody: TypeAlias = Callable[[Callable[[memoryview], Any]], Awaitable[Any]]
_APART = 2**16  # bytes of a piece beyond which a copy costs more than a write of its own
_HEAD_MAX = 2**16  # bytes of a request line and its headers
HEAD_S = 30.0  # they must be here by then


def _tried(work: Callable[[memoryview], Any], body: memoryview) -> Callable[[], Any]:
    """What gives or raises what `work` does."""
    try:
        found = work(body)
    except Exception as error:
        failed = error

        def fail() -> Any:
            raise failed

        return fail
    return lambda: found


class _Connection(h11.Connection):
    write: Callable[[Any], None]  # of the transport

    def send(self, event: Any) -> Any:
        """As in h11; of a large piece nothing is left to send."""
        if not isinstance(event, h11.Data) or len(event.data) < _APART:
            return super().send(event)
        for part in self.send_with_data_passthrough(event) or ():
            self.write(part)
        return b""


class Http(H11Protocol):
    """What `uvicorn.Config(http=...)` takes."""

    transport: BulkTransport  # type: ignore[assignment]
    write_s = WRITE_S
    head_s = HEAD_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: _Connection = _Connection(h11.SERVER, _HEAD_MAX)
        self._watch: asyncio.TimerHandle | None = None
        self._late: asyncio.TimerHandle | None = None  # for a head
        self._past = False  # a body has gone past h11, which does not know where the next request begins
        self._beyond = bytearray()  # what came behind that body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(BulkTransport(transport, self.pause_writing, self.resume_writing))  # type: ignore[arg-type]
        self.conn.write = self.transport.write
        self._expect_head()

    # --------------------------------------------------------------------------------------------------------- requests

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; of the next one, while one is answered whose body has gone past h11."""
        if self._past:
            self._beyond += data
            self.flow.pause_reading()
        else:
            super().data_received(data)
            self._expect_head()

    def _expect_head(self) -> None:
        """While a head is awaited, or what is left of a body before it, the time runs, whatever has come of them."""
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._stop_late()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _stop_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def handle_events(self) -> None:
        """What h11 makes of the bytes. A large body of a request that begins with them can be read past it."""
        before = self.cycle
        super().handle_events()
        cycle = self.cycle
        if cycle is before or not cycle.more_body or cycle.waiting_for_100_continue:
            return
        headers = dict(self.headers)
        declared = headers.get(b"content-length", b"")
        chunked = b"transfer-encoding" in headers  # then h11 does not go by the length
        if declared.isdigit() and not chunked and int(declared) >= len(cycle.body) + LARGE:
            read: ReadBody = partial(self._read_body, cycle, int(declared))
            cycle.scope["extensions"] = {BODY: read}  # type: ignore[dict-item]

    async def _read_body(self, cycle: RequestResponseCycle, size: int, read: Callable[[memoryview], Any]) -> Any:
        """See `ReadBody`."""
        self.flow.pause_reading()
        self._past = True
        body, had = room(size).data, len(cycle.body)
        body[:had] = cycle.body
        cycle.body.clear()
        try:
            found = await self.transport.bulk.receive(body[had:], partial(_tried, read, body))
        except BaseException:
            cycle.keep_alive = False
            raise
        finally:
            self.flow.resume_reading()
        cycle.more_body = False
        return found()

    def on_response_complete(self) -> None:
        """The next request may come."""
        if self._past:
            self._past = False
            self.conn = _Connection(h11.SERVER, _HEAD_MAX)
            self.conn.write = self.transport.write
        super().on_response_complete()
        beyond, self._beyond = bytes(self._beyond), bytearray()
        if beyond and not self.transport.is_closing():
            self.data_received(beyond)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The transport goes to another protocol, as it was."""
        self.transport = self.transport.plain  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)

    # ---------------------------------------------------------------------------------------------------------- answers

    def pause_writing(self) -> None:
        """The client is behind."""
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        """The client has nearly caught up."""
        self._stop_watch()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._stop_watch()
        self._stop_late()
        self.transport.bulk.close()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._stop_watch()
        self._watch = self.loop.call_later(self.write_s, self._look, self.transport.get_write_buffer_size())

    def _look(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._look_again()
        else:
            self.transport.abort()

    def _stop_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
