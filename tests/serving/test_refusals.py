"""Bad requests: each is refused with the right status, an error in OpenAI's shape, and the name of the field."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from mstarc_runtime.serving.service import Options
from tests.serving import parrot
from tests.serving.parrot import MODEL, Turn, harness

USER = [{"role": "user", "content": "hi"}]
GOOD: dict[str, Any] = {"model": MODEL, "messages": USER}
WAV = base64.b64encode(b"RIFF").decode()
DROP = object()


def message(**fields: Any) -> list[Any]:
    return [{"role": "user", "content": "hi", **fields}]


def part(**fields: Any) -> list[Any]:
    return message(content=[{"type": "text", "text": "hear"}, fields])


#: (changes to a good body, field that is named, words of the message, status)
TABLE: list[tuple[dict[str, Any], str, str, int]] = [
    ({"model": DROP}, "model", "required", 400),
    ({"model": "gpt-4o"}, "model", "no model `gpt-4o`", 404),
    ({"model": 3}, "model", "string", 400),
    ({"messages": DROP}, "messages", "required", 400),
    ({"messages": []}, "messages", "at least 1", 400),
    ({"messages": "hi"}, "messages", "list", 400),
    ({"messages": ["hi"]}, "messages[0]", "", 400),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "required", 400),
    ({"messages": [*USER, {"role": "tool", "content": "x"}]}, "messages[1].role", "'assistant'", 400),
    ({"messages": message(content="")}, "messages[0].content", "is empty", 400),
    ({"messages": message(content=[])}, "messages[0].content", "is empty", 400),
    ({"messages": message(content=None)}, "messages[0].content", "text or a list", 400),
    ({"messages": message(content=5)}, "messages[0].content", "text or a list", 400),
    ({"messages": message(name="bob")}, "messages[0].name", "not supported", 400),
    ({"messages": message(colour="red")}, "messages[0].colour", "not a field", 400),
    (
        {"messages": part(type="image_url", image_url={"url": "file:///x"})},
        "messages[0].content[1].type",
        "'text'",
        400,
    ),
    ({"messages": part(type="text")}, "messages[0].content[1].text", "required", 400),
    ({"messages": part(type="text", text=["a"])}, "messages[0].content[1].text", "string", 400),
    ({"messages": part(type="text", text="a", bold=True)}, "messages[0].content[1].bold", "not a field", 400),
    ({"messages": part(type="input_audio")}, "messages[0].content[1].input_audio", "required", 400),
    (
        {"messages": part(type="input_audio", input_audio={"data": WAV, "format": "aiff"})},
        "messages[0].content[1].input_audio.format",
        "'wav'",
        400,
    ),
    (
        {"messages": part(type="input_audio", input_audio={"data": "not base64!", "format": "wav"})},
        "messages[0].content[1].input_audio.data",
        "not base64",
        400,
    ),
    (
        {
            "messages": part(
                type="input_audio", input_audio={"data": base64.b64encode(b"noise").decode(), "format": "wav"}
            )
        },
        "messages",
        "none of wav",
        400,
    ),
    (
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}],
                }
            ]
        },
        "messages[0].content[0].type",
        "assistant",
        400,
    ),
    ({"max_tokens": -1}, "max_tokens", "1..1024", 400),
    ({"max_tokens": 0}, "max_tokens", "1..1024", 400),
    ({"max_completion_tokens": 5000}, "max_completion_tokens", "`max_completion_tokens` must be in 1..1024", 400),
    ({"max_tokens": 4, "max_completion_tokens": 4}, "max_tokens", "exclude", 400),
    ({"max_tokens": "12"}, "max_tokens", "integer", 400),
    ({"max_tokens": 1.5}, "max_tokens", "int", 400),
    ({"max_tokens": True}, "max_tokens", "integer", 400),
    ({"temperature": 3}, "temperature", "0.0..2.0", 400),
    ({"temperature": "hot"}, "temperature", "number", 400),
    ({"temperature": [1]}, "temperature", "number", 400),
    ({"top_p": -0.1}, "top_p", "0.0..1.0", 400),
    ({"top_k": 5}, "top_k", "not a parameter of `parrot`", 400),
    ({"repetition_penalty": 1.1}, "repetition_penalty", "not a parameter of `parrot`", 400),
    ({"ignore_eos": "yes"}, "ignore_eos", "boolean", 400),
    ({"seed": "abc"}, "seed", "integer", 400),
    ({"seed": 2**64}, "seed", "less than", 400),
    ({"n": 2}, "n", "must be 1", 400),
    ({"frequency_penalty": 0.5}, "frequency_penalty", "must be 0", 400),
    ({"presence_penalty": -1}, "presence_penalty", "must be 0", 400),
    ({"logprobs": True}, "logprobs", "False", 400),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4", 400),
    ({"stop": ""}, "stop", "at least 1", 400),
    ({"stop": ["a", 3]}, "stop[1]", "string", 400),
    ({"stop": 3}, "stop", "text or a list", 400),
    ({"stream": "yes"}, "stream", "boolean", 400),
    ({"stream_options": {"include_usage": True}}, "stream_options", "needs `stream`", 400),
    ({"stream": True, "stream_options": {"speed": 1}}, "stream_options.speed", "not a field", 400),
    ({"modalities": ["text", "image"]}, "modalities[1]", "'audio'", 400),
    ({"modalities": ["audio"], "audio": {"voice": "x", "format": "wav"}}, "modalities", "text", 400),
    ({"modalities": []}, "modalities", "at least 1", 400),
    ({"modalities": ["text", "audio"]}, "audio", "required", 400),
    ({"audio": {"voice": "x", "format": "wav"}}, "audio", "modalities", 400),
    ({"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "opus"}}, "audio.format", "'pcm16'", 400),
    ({"modalities": ["text", "audio"], "audio": {"format": "wav"}}, "audio.voice", "required", 400),
    (
        {"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}, "stream": True},
        "audio.format",
        "pcm16",
        400,
    ),
    (
        {"modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}, "stop": "a"},
        "stop",
        "not supported together with audio",
        400,
    ),
    ({"tools": [{"type": "function"}]}, "tools", "is not supported", 400),
    ({"response_format": {"type": "json_object"}}, "response_format", "is not supported", 400),
    ({"logit_bias": {"5": 100}}, "logit_bias", "is not supported", 400),
    ({"temprature": 1.0}, "temprature", "did you mean `temperature`?", 400),
    ({"metadata": {"a": 1}}, "metadata.a", "string", 400),
    ({"messages": message(content="x" * 2000)}, "messages", "context `main`", 400),
]


@pytest.mark.parametrize(
    ("changes", "field", "words", "status"), TABLE, ids=[f"{i}-{row[1]}" for i, row in enumerate(TABLE)]
)
async def test_refused_by_name(changes: dict[str, Any], field: str, words: str, status: int) -> None:
    body = {name: value for name, value in {**GOOD, **changes}.items() if value is not DROP}
    async with harness() as h:
        response = await h.http.post("/v1/chat/completions", json=body)
        good = await h.http.post("/v1/chat/completions", json=GOOD)
        assert await h.metric('mstarc_requests_total{outcome="refused",request="chat"}') == 1
        assert h.rank.cancelled == []
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == field
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert "pydantic" not in error["message"]
    assert good.status_code == 200


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        (b"", "not valid JSON", None),
        (b"{", "not valid JSON", None),
        (b"[]", "must be a JSON object", None),
        (b"3", "must be a JSON object", None),
        (b'"hi"', "must be a JSON object", None),
        (b"\xff\xfe{}", "UTF-8", None),
        (b'{"model": "parrot", "messages": [{"role": "user", "content": "\xe9"}]}', "UTF-8", None),
        (b'{"model": "parrot", "messages": [{"role": "user", "content": "\\ud83e"}]}', "UTF-8", None),
        (b'{"\\ud83e": 1, "\\ud83e": 1}', "`?` is there twice", "?"),
        (b'{"model": "parrot", "temperature": NaN}', "NaN", None),
        (b'{"model": "parrot", "temperature": -Infinity}', "-Infinity", None),
        (
            b'{"model": "parrot", "messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
            "finite",
            "temperature",
        ),
        (b'{"model": "parrot", "seed": ' + b"9" * 5000 + b"}", "not valid JSON", None),
        (b'{"model": "parrot", "model": "parrot"}', "twice", "model"),
        (b"[" * 200_000, "nested too deeply", None),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply", None),
    ],
)
async def test_wrong_json(body: bytes, words: str, param: str | None) -> None:
    async with harness() as h:
        response = await h.http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == param


async def test_content_type() -> None:
    """A page in a browser cannot send JSON to a server on loopback without asking; text it can."""
    async with harness() as h:
        body = json.dumps(GOOD)
        plain = await h.http.post("/v1/chat/completions", content=body, headers={"content-type": "text/plain"})
        json_too = await h.http.post(
            "/v1/chat/completions", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}
        )
    assert (plain.status_code, json_too.status_code) == (415, 200)


@pytest.mark.parametrize("declared", [True, False])
async def test_too_large_is_found_while_reading(declared: bool) -> None:
    sent = 0

    async def body() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 1000
            yield b" " * 1000

    headers = {"content-type": "application/json"} | ({"content-length": "100000"} if declared else {})
    async with harness(options=Options(max_bytes=5000)) as h:
        response = await h.http.post("/v1/chat/completions", content=body(), headers=headers)
        small = await h.chat("a")
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "5000" in response.json()["error"]["message"]
    assert sent == 0 if declared else sent <= 7000
    assert small.status_code == 200


async def test_voices_of_the_model() -> None:
    audio = {"modalities": ["text", "audio"]}
    async with harness(audio={"rate": parrot.RATE, "voices": ["polly"]}) as h:
        wrong = await h.chat("a", **audio, audio={"voice": "alloy", "format": "wav"})
        right = await h.chat("a", **audio, audio={"voice": "polly", "format": "wav"})
    assert wrong.json()["error"]["param"] == "audio.voice"
    assert right.status_code == 200


async def test_a_model_that_takes_no_audio() -> None:
    async with harness(chat={"request": "chat", "input": "messages"}) as h:
        response = await h.chat([{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0].type"


async def test_a_model_without_chat() -> None:
    async with harness(chat=None) as h:
        response = await h.chat("a")
    assert response.status_code == 404
    assert "/v1/walks" in response.json()["error"]["message"]


async def test_paths_and_methods() -> None:
    async with harness() as h:
        missing = await h.http.get("/v2/chat")
        method = await h.http.get("/v1/chat/completions")
        docs = [(await h.http.get(path)).status_code for path in ("/docs", "/openapi.json")]
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"
    assert docs == [404, 404]


async def test_api_key() -> None:
    async with harness(options=Options(api_key="geheim")) as h:
        for header in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "geheim"},
            {"authorization": b"Bearer \xff"},
        ):
            h.http.headers = header
            answers = [await h.chat("a"), await h.http.get("/v1/models"), await h.http.get("/metrics")]
            assert [answer.status_code for answer in answers] == [401, 401, 401]
            assert answers[0].json()["error"]["code"] == "invalid_api_key"
            assert (await h.http.get("/health")).status_code == 200
        h.http.headers = {"authorization": "Bearer geheim"}
        assert (await h.chat("a")).status_code == 200


async def test_sixty_four_at_once_and_the_rest_waits_or_is_told_to_retry() -> None:
    go = asyncio.Event()

    async def held(turn: Turn) -> None:
        await go.wait()
        await parrot.parrot(turn)

    async with harness(held) as h:
        tasks = [asyncio.create_task(h.chat(f"number {i}")) for i in range(132)]
        async with asyncio.timeout(10):
            while h.engine.gauges()["running"] < 64 or h.engine.counters["busy"] < 4:
                await asyncio.sleep(0.005)
        assert await h.metric("mstarc_waiting") == 64
        go.set()
        found = await asyncio.gather(*tasks)
        assert await h.metric('mstarc_requests_total{outcome="busy",request="chat"}') == 4
    served = [response for response in found if response.status_code == 200]
    busy = [response for response in found if response.status_code == 429]
    assert (len(served), len(busy)) == (128, 4)
    assert all(int(response.headers["retry-after"]) >= 1 for response in busy)
    assert busy[0].json()["error"]["code"] == "overloaded"
    said = [response.json()["choices"][0]["message"]["content"] for response in served]
    assert len(set(said)) == 128
