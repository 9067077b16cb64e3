"""uvicorn's HTTP protocol, but large pieces of an answer are written as they are, not joined with the bytes that frame them.

A connection whose client reads nothing for `WRITE_S` is cut off. Closing it would wait until the client has read the rest, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from mstarc_runtime.serving.sse import WRITE_S

_APART = 2**16  # bytes of a piece beyond which a copy costs more than a write of its own
_HEAD_MAX = 2**16  # bytes of a request line and its headers


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

    write_s = WRITE_S

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: _Connection = _Connection(h11.SERVER, _HEAD_MAX)
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn.write = transport.write

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
        super().connection_lost(exc)

    def _look_again(self) -> None:
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
