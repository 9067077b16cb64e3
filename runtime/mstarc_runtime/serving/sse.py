"""Server-sent events and other long answers: sent as they come, never waiting for ever for a client that does not read."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger("mstarc.serving")

DONE = b"data: [DONE]\n\n"
WRITE_S = 60.0  # a client that reads nothing for so long is treated as gone
_SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})  # line ends for some readers


def encode(value: Any) -> bytes:
    """A value as UTF-8 JSON on one line, whatever a reader takes for a line end. Half a surrogate pair becomes `?`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate(_SEPARATORS).encode("utf-8", "replace")


def data(value: Any) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"


class JsonResponse(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)


class PiecedResponse(Response):
    """A body of known length in parts. Each leaves when the one before is nearly sent, so none is copied into one long body."""

    def __init__(self, pieces: Sequence[bytes | memoryview], media_type: str, write_s: float = WRITE_S) -> None:
        self.media_type = media_type
        self._pieces = pieces
        self._write_s = write_s
        self.status_code = 200
        self.background = None
        self.init_headers({"content-length": str(sum(len(piece) for piece in pieces))})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            for piece in self._pieces:
                async with asyncio.timeout(self._write_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (OSError, TimeoutError) as error:
            log.info("a client stopped reading: %s", error or "write timeout")
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Broken(Exception):
    """The body of an answer ends before its end, and the client must notice."""


class EventStream(Response):
    """Sends what `events` gives; the generator turns its own errors into events. At the end, whichever it is, awaits `close`."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes | memoryview, None],
        close: Callable[[], Awaitable[None]],
        write_s: float = WRITE_S,
        media_type: str | None = None,
    ) -> None:
        self.media_type = media_type or self.media_type
        self._events = events
        self._close = close
        self._write_s = write_s
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                async with asyncio.timeout(self._write_s):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except (OSError, TimeoutError) as error:
            log.info("a client stopped reading: %s", error or "write timeout")
            return
        except Broken:
            return  # without a last piece: the server closes the connection
        finally:
            try:
                await self._events.aclose()
            finally:
                await self._close()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class ByteStream(EventStream):
    """Bytes of one media type as they come."""

    def __init__(
        self, pieces: AsyncGenerator[bytes | memoryview, None], close: Callable[[], Awaitable[None]], media_type: str
    ) -> None:
        self.media_type = media_type
        super().__init__(pieces, close)
