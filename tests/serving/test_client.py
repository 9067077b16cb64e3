"""Over real sockets: the official OpenAI client, clients that leave, clients that do not read, and an orderly end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import sys
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.server import address, listen, serve
from mstarc_runtime.serving.service import Options
from tests.serving import parrot
from tests.serving.parrot import MODEL, RATE, Turn, server

SAY = [{"role": "user", "content": "hello 🦜 there"}]


def client(url: str, key: str = "unused") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=10)


async def until(check: Any) -> None:
    async with asyncio.timeout(5):
        while not check():
            await asyncio.sleep(0.002)


async def test_official_client() -> None:
    async with server() as (url, _, _), client(url) as api:
        assert [model.id async for model in api.models.list()] == [MODEL]
        whole = await api.chat.completions.create(model=MODEL, messages=SAY)
        assert whole.choices[0].message.content == "hello 🦜 there"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None and whole.usage.total_tokens == 32

        text = ""
        chunks = await api.chat.completions.create(
            model=MODEL, messages=SAY, stream=True, stream_options={"include_usage": True}, max_tokens=5
        )
        reasons, usages = [], []
        async for chunk in chunks:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
            usages += [chunk.usage] if chunk.usage else []
        assert (text, reasons) == ("hello", ["length"])
        assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(16, 5)]

        async with api.chat.completions.stream(model=MODEL, messages=SAY) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "hello 🦜 there"


async def test_official_client_with_audio_both_ways() -> None:
    spoken = {"data": base64.b64encode(b"so it is").decode(), "format": "wav"}
    asks: Any = [{"role": "user", "content": [{"type": "input_audio", "input_audio": spoken}]}]
    extra: Any = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
    async with server() as (url, _, _), client(url) as api:
        whole = await api.chat.completions.create(model=MODEL, messages=asks, **extra)
        audio = whole.choices[0].message.audio
        assert audio is not None
        assert audio.transcript == "so it is"
        assert len(base64.b64decode(audio.data)) == 3 * RATE // 10 * 2
        pcm, transcript, ids = b"", "", []
        async for chunk in await api.chat.completions.create(model=MODEL, messages=asks, stream=True, **extra):
            for choice in chunk.choices:
                delta = choice.delta.audio
                if delta is not None:
                    pcm += base64.b64decode(delta.data or "")
                    transcript += delta.transcript or ""
                    ids += [delta.id] if delta.id else []
        assert (pcm, transcript, len(ids)) == (base64.b64decode(audio.data), "so it is", 1)


async def test_official_client_sees_errors() -> None:
    async def breaks(turn: Turn) -> None:
        turn.say("so far")
        turn.fail("the beak broke")

    async with server(breaks, Options(api_key="geheim", grace_s=1)) as (url, _, _), client(url, "geheim") as api:
        with pytest.raises(openai.BadRequestError) as bad:
            await api.chat.completions.create(model=MODEL, messages=SAY, max_tokens=-1)
        assert bad.value.param == "max_tokens"
        with pytest.raises(openai.NotFoundError):
            await api.chat.completions.create(model="gpt-4o", messages=SAY)
        with pytest.raises(openai.InternalServerError):
            await api.chat.completions.create(model=MODEL, messages=SAY)
        with pytest.raises(openai.APIError, match="the beak broke"):
            async for _ in await api.chat.completions.create(model=MODEL, messages=SAY, stream=True):
                pass
        with pytest.raises(openai.AuthenticationError):
            await client(url, "wrong").models.list()


async def chatter(turn: Turn) -> None:
    """Talks until it is stopped."""
    while True:
        turn.say("on and on ")
        await asyncio.sleep(0.005)


async def silent(turn: Turn) -> None:
    await asyncio.Event().wait()


async def leave(url: str, stream: bool, read: int) -> None:
    """Ask for an answer, read `read` bytes of it, and close the connection."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": MODEL, "messages": SAY, "stream": stream}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    if read:
        await reader.readexactly(read)
    else:
        await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.parametrize(
    ("script", "stream", "read"), [(chatter, True, 700), (silent, True, 0), (silent, False, 0), (chatter, False, 0)]
)
async def test_a_client_that_leaves_cancels_its_request(script: Any, stream: bool, read: int) -> None:
    async with server(script) as (url, engine, rank), httpx.AsyncClient(base_url=url) as http:
        await leave(url, stream, read)
        await until(lambda: rank.cancelled)
        await parrot.settled(engine)
        rank.script = parrot.parrot
        after = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": SAY})
        assert after.status_code == 200
        metrics = (await http.get("/metrics")).text
        assert 'mstarc_requests_total{outcome="cancelled",request="chat"} 1.0' in metrics
        assert "mstarc_http_open 0.0" in metrics


async def test_a_client_that_leaves_the_line_makes_room() -> None:
    go = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go.wait()
        turn.end()

    async with server(held) as (url, engine, rank), httpx.AsyncClient(base_url=url, timeout=10) as http:
        body = {"model": MODEL, "messages": SAY}
        running = [asyncio.create_task(http.post("/v1/chat/completions", json=body)) for _ in range(64)]
        await until(lambda: engine.gauges()["running"] == 64)
        await leave(url, False, 0)
        waiting = asyncio.create_task(leave(url, False, 0))
        await until(lambda: engine.gauges()["waiting"] == 1)
        await waiting
        await until(lambda: engine.gauges()["waiting"] == 0)
        assert engine.counters["admitted"] == 64
        assert rank.cancelled == []
        go.set()
        assert {response.status_code for response in await asyncio.gather(*running)} == {200}


async def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc_runtime.serving.sse.EventStream.__init__.__defaults__", (0.3,))

    async def flood(turn: Turn) -> None:
        while True:
            turn.sound(np.zeros(100_000))
            await asyncio.sleep(0)

    audio = {"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "pcm16"}, "stream": True}
    body = json.dumps({"model": MODEL, "messages": SAY, **audio}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    async with server(flood) as (url, engine, rank):
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as deaf:
            deaf.sendall(head.encode() + body)
            await until(lambda: rank.cancelled)
            await parrot.settled(engine)


async def test_shutdown_lets_requests_end_and_refuses_new_ones() -> None:
    made, rank = parrot.engine()
    go = asyncio.Event()

    async def held(turn: Turn) -> None:
        turn.say("begun ")
        await go.wait()
        turn.say("and done")
        turn.end()

    rank.script = held
    listener = listen("127.0.0.1", 0)
    url = address(listener)
    stop, hurry = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(serve(made, listener, Options(grace_s=5), stop, hurry))
    await until(lambda: made.ready)
    async with httpx.AsyncClient(base_url=url, timeout=10) as http:
        running = asyncio.create_task(http.post("/v1/chat/completions", json={"model": MODEL, "messages": SAY}))
        await until(lambda: made.running)
        stop.set()
        await asyncio.sleep(0.4)
        with pytest.raises(httpx.ConnectError):
            await http.get("/ready")
        assert not task.done()
        go.set()
        assert (await running).json()["choices"][0]["message"]["content"] == "begun and done"
    assert await asyncio.wait_for(task, 5) == 0


@pytest.mark.parametrize("twice", [False, True])
async def test_shutdown_stops_what_does_not_end(twice: bool) -> None:
    made, rank = parrot.engine(chatter)
    listener = listen("127.0.0.1", 0)
    stop, hurry = asyncio.Event(), asyncio.Event()
    options = Options(grace_s=60 if twice else 0.2)
    task = asyncio.create_task(serve(made, listener, options, stop, hurry))
    await until(lambda: made.ready)
    body = {"model": MODEL, "messages": SAY, "stream": True, "max_tokens": 1000}
    async with httpx.AsyncClient(base_url=address(listener), timeout=10) as http:
        running = asyncio.create_task(http.post("/v1/chat/completions", json=body))
        await until(lambda: made.running)
        stop.set()
        if twice:
            await asyncio.sleep(0.05)
            hurry.set()
        text = (await running).text
    assert await asyncio.wait_for(task, 5) == 0
    assert rank.stopped
    assert "the server is shutting down" in text
    assert "[DONE]" not in text
    assert len(rank.cancelled) == 1


async def test_an_engine_that_cannot_start(capsys: pytest.CaptureFixture[str]) -> None:
    made, rank = parrot.engine()
    rank.fatal = "no feathers"
    status = await serve(made, listen("127.0.0.1", 0), Options(), asyncio.Event(), asyncio.Event())
    assert status == 1
    found = capsys.readouterr()
    assert "error: `parrot` cannot be served: rank 0: no feathers" in found.err
    assert found.out == ""


async def test_stop_while_loading() -> None:
    made, rank = parrot.engine()
    rank.load = asyncio.Event()
    stop = asyncio.Event()
    task = asyncio.create_task(serve(made, listen("127.0.0.1", 0), Options(), stop, asyncio.Event()))
    await asyncio.sleep(0.05)
    stop.set()
    assert await asyncio.wait_for(task, 5) == 0
    assert not made.ready


async def test_work_that_was_done_when_its_client_left_is_undone() -> None:
    left = asyncio.Event()
    undone: list[str] = []

    async def receive() -> Any:
        await left.wait()
        return {"type": "http.disconnect"}

    async def stubborn() -> str:
        """Has its result in spite of the cancellation."""
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "run"

    watched = Client(receive)
    asyncio.get_running_loop().call_later(0.01, left.set)
    with pytest.raises(RequestFailed, match="the client left"):
        await asyncio.wait_for(watched.race(stubborn(), undone.append), 5)
    assert undone == ["run"]
    called: list[int] = []
    watched.on_gone(lambda: called.append(1))
    assert called == [1]
    await watched.close()


async def test_a_body_that_is_too_large_is_answered_while_it_is_sent() -> None:
    async with (
        server(options=Options(max_bytes=1000, grace_s=1)) as (url, _, _),
        httpx.AsyncClient(base_url=url) as http,
    ):
        big = await http.post(
            "/v1/chat/completions", content=b" " * 5_000_000, headers={"content-type": "application/json"}
        )
        assert big.status_code == 413
        assert (await http.get("/health")).status_code == 200


async def test_threads_take_turns_quickly_while_it_serves() -> None:
    before = sys.getswitchinterval()
    async with server():
        assert sys.getswitchinterval() < before / 5
    assert sys.getswitchinterval() == before
