"""Large answers through a real socket: the bytes that were given, whole or in chunks, to a client that reads slowly too."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import numpy as np
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mstarc_runtime.serving.bulk import LARGE as LARGE_BODY
from mstarc_runtime.serving.http import BODY as WHOLE
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
LARGE = 64 << 20  # bytes, more than sockets hold


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    async def given() -> AsyncIterator[bytes | memoryview]:
        for piece in PIECES:
            yield piece

    async def closed() -> None:
        pass

    if scope["path"] == "/large":
        await Response(bytes(LARGE))(scope, receive, send)
    elif scope["path"] == "/pieces":
        await PiecedResponse([bytes(LARGE // 32)] * 32, "application/msgpack")(scope, receive, send)
    elif scope["path"] == "/whole":
        await PiecedResponse(PIECES, "application/msgpack")(scope, receive, send)
    else:
        await EventStream(given(), closed)(scope, receive, send)  # type: ignore[arg-type]


@asynccontextmanager
async def served(http: type[Http] = Http, app: ASGIApp = app) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=http, log_config=None, lifespan="off"))
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


class Impatient(Http):
    write_s = 0.3


@pytest.mark.parametrize("path", ["/large", "/pieces"])
async def test_a_client_that_does_not_read_is_cut_off(path: str) -> None:
    """Also one whose answer has been given to the connection as a whole."""
    async with served(Impatient) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**10)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await asyncio.sleep(1.0)  # three times as long as it may read nothing
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(5):
                await reader.readexactly(LARGE)
        writer.close()


async def test_a_slow_client_is_not_cut_off() -> None:
    async with served(Impatient) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**10)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        size, began = 0, asyncio.get_running_loop().time()
        while piece := await reader.read(1 << 20):
            size += len(piece)
            if asyncio.get_running_loop().time() < began + 1.0:
                await asyncio.sleep(0.02)
        assert size > LARGE
        writer.close()


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the body: read at once if that is offered and the path asks for it, else as it comes."""
    whole = scope.get("extensions", {}).get(WHOLE)
    if whole is not None and scope["path"] == "/whole":
        body = await whole(bytes)
    else:
        body = await Request(scope, receive).body()
    watched = asyncio.ensure_future(receive())
    await asyncio.sleep(0.01)
    await Response(body, headers={"read": "whole" if whole is not None else "parts"})(scope, receive, send)
    watched.cancel()


@pytest.mark.parametrize("path", ["/whole", "/parts"])
async def test_large_bodies(path: str) -> None:
    """Several on one connection, the next after the answer or with it, and small ones between."""
    async with served(app=echo) as url, httpx.AsyncClient(base_url=url) as http:
        for body in (BODY, b"small", b"", BODY[::-1]):
            found = await http.post(path, content=body)
            assert found.content == body
            assert found.headers["read"] == ("whole" if len(body) > LARGE_BODY else "parts")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**26)
        for size in (len(BODY), 5):  # both are written before the first is answered
            writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + BODY[:size])
        for size in (len(BODY), 5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            assert await reader.readexactly(size) == BODY[:size]
        writer.close()


async def test_a_client_that_leaves_while_it_sends() -> None:
    met: list[BaseException] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await scope["extensions"][WHOLE](bytes)
        except OSError as error:
            met.append(error)
        await Response(b"")(scope, receive, send)

    async with served(app=reads) as url:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + bytes(1000))
        await asyncio.sleep(0.1)
        assert met == []
        writer.close()
        async with asyncio.timeout(5):
            while not met:
                await asyncio.sleep(0.01)


async def test_reading_can_be_given_up() -> None:
    """The application answers, and the connection is closed, since nobody knows where the next request begins."""

    async def gives_up(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await scope["extensions"][WHOLE](bytes)
        await Response(b"late")(scope, receive, send)

    async with served(app=gives_up) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + bytes(1000))
        async with asyncio.timeout(5):
            assert (await reader.read()).endswith(b"late")
        writer.close()


async def test_what_reading_raises_leaves_the_connection_as_it_is() -> None:
    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        def read(body: memoryview) -> None:
            raise ValueError(f"{len(body)} bytes")

        try:
            await scope["extensions"][WHOLE](read)
        except ValueError as error:
            await Response(str(error))(scope, receive, send)

    async with served(app=refuses) as url, httpx.AsyncClient(base_url=url) as http:
        made = [(await http.post("/", content=BODY)).text for _ in range(2)]
    assert made == [f"{len(BODY)} bytes"] * 2


class Hasty(Http):
    head_s = 0.3


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then until the server has closed the connection. Raises TimeoutError if it does not."""
    async with asyncio.timeout(5):
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.02)
    writer.close()


@pytest.mark.parametrize("before", [None, b"", BODY])
async def test_a_head_that_does_not_come_to_an_end(before: bytes | None) -> None:
    """The first of a connection, or one behind a request; what a client adds to it wins no time. Answers may take longer."""

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.5)
        await echo(scope, receive, send)

    async with served(Hasty, app=slow) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**26)
        if before is not None:
            head = f"POST /whole HTTP/1.1\r\nhost: x\r\ncontent-length: {len(before)}\r\n\r\n"
            writer.write(head.encode() + before)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(before)) == before
        await drip(reader, writer)


async def test_a_body_that_does_not_come_to_an_end_behind_its_answer() -> None:
    """A request may be refused before its body is here; then the rest of it has the time of a head."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with served(Hasty, app=refuse) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n")
        assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
        await drip(reader, writer)


async def test_a_client_that_ends_while_an_answer_waits_for_it_and_the_next_body_is_here() -> None:
    """Both ways have moved: the one that still waits ends, and leaves no descriptor to the connections after it."""

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/large":
            await app(scope, receive, send)
        else:
            size = await scope["extensions"][WHOLE](len)
            read.set()
            await Response(str(size))(scope, receive, send)

    async with served(app=both) as url, httpx.AsyncClient(base_url=url) as http:
        before = len(os.listdir("/dev/fd"))
        writers = []
        for _ in range(4):
            read = asyncio.Event()
            _, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**10)
            writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            await asyncio.sleep(0.1)
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3000000\r\n\r\n" + bytes(3000000))
            async with asyncio.timeout(5):
                await read.wait()
            writer.write_eof()
            writers.append(writer)
        async with asyncio.timeout(5):
            while any("BulkTransport" in repr(task) for task in asyncio.all_tasks()):
                await asyncio.sleep(0.01)
        for writer in writers:
            writer.close()
        assert (await http.get("/large")).content == bytes(LARGE)
        assert (await http.post("/", content=BODY)).text == str(len(BODY))
        assert len(os.listdir("/dev/fd")) <= before + 2 + len(writers)


async def sequence(url: str, seed: int) -> None:
    """Random requests on one connection, written ahead of their answers in random pieces; some clients leave in the middle."""
    rng = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**26)
    sent, bodies = b"", list[bytes]()
    for _ in range(rng.randrange(1, 6)):
        size = rng.choice([0, 5, 70_000, LARGE_BODY - 1, LARGE_BODY + rng.randrange(300_000), len(BODY)])
        bodies.append(BODY[:size])
        path, length = rng.choice(["/whole", "/parts"]), f"content-length: {size}\r\n"
        match rng.randrange(5):
            case 0:
                framed = b"%x\r\n%b\r\n" % (size, bodies[-1]) if size else b""
                framed, length = framed + b"0\r\n\r\n", rng.choice(["", length]) + "transfer-encoding: chunked\r\n"
            case 1:
                framed, length = bodies[-1], "expect: 100-continue\r\n" + length
            case _:
                framed = bodies[-1]
        sent += f"POST {path} HTTP/1.1\r\nhost: x\r\n{length}\r\n".encode() + framed
    leaves = rng.random() < 0.2

    async def write() -> None:
        at, end = 0, rng.randrange(len(sent)) if leaves else len(sent)
        while at < end:
            size = rng.choice([1, 17, 3000, 65536, 300_000, len(sent)])
            writer.write(sent[at : min(end, at + size)])
            at += size
            await writer.drain()
            await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01]))

    async def read() -> None:
        for body in bodies:
            head = await reader.readuntil(b"\r\n\r\n")
            while b" 100 " in head:
                head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            assert await reader.readexactly(len(body)) == body

    reading = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await write()
        if leaves:
            reading.cancel()
        else:
            await reading
    writer.transport.abort()


async def test_random_sequences_of_requests() -> None:
    before = len(os.listdir("/dev/fd"))
    async with served(app=echo) as url:
        for first in range(0, 60, 6):
            await asyncio.gather(*[sequence(url, seed) for seed in range(first, first + 6)])
    assert len(os.listdir("/dev/fd")) <= before + 2
