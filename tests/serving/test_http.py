"""Large answers through a real socket: the bytes that were given, whole or in chunks, to a client that reads slowly too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from mstarc_runtime.serving.http import Http
from mstarc_runtime.serving.server import address, listen
from mstarc_runtime.serving.sse import EventStream, PiecedResponse

PIECES: list[bytes | memoryview] = [
    b"head",
    np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8).data,
    np.random.default_rng(2).integers(0, 256, 2**16, np.uint8).data,
    b"tail",
]
BODY = b"".join(PIECES)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    async def given() -> AsyncIterator[bytes | memoryview]:
        for piece in PIECES:
            yield piece

    async def closed() -> None:
        pass

    if scope["path"] == "/whole":
        await PiecedResponse(PIECES, "application/msgpack")(scope, receive, send)
    else:
        await EventStream(given(), closed)(scope, receive, send)  # type: ignore[arg-type]


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=Http, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve([listener]))
    try:
        yield address(listener)
    finally:
        server.should_exit = True
        await running


@pytest.mark.parametrize("path", ["/whole", "/chunks"])
async def test_large_answers(path: str) -> None:
    async with served() as url, httpx.AsyncClient(base_url=url) as http:
        for _ in range(2):  # on one connection
            found = await http.get(path)
            assert found.content == BODY
            assert ("content-length" in found.headers) == (path == "/whole")
        async with http.stream("GET", path) as slow:
            await asyncio.sleep(0.2)  # the server has long filled what the socket holds
            assert b"".join([piece async for piece in slow.aiter_raw()]) == BODY
