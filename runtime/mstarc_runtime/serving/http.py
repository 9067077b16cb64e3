"""uvicorn's HTTP protocol, but large pieces of an answer are written as they are, not joined with the bytes that frame them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: _Connection = _Connection(h11.SERVER, _HEAD_MAX)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn.write = transport.write
