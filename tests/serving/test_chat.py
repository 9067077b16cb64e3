"""`/v1/chat/completions`, in process: shapes, streaming, stop strings, usage, finish reasons, audio, and what a client may set."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving import parrot
from tests.serving.parrot import RATE, Turn, harness

TRICKY = "naïve 日本 🦜 — done\u2028end"
AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "polly", "format": "pcm16"}}


def events(response: httpx.Response) -> list[Any]:
    """The decoded `data:` lines of a stream, [DONE] as a string."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = [line.removeprefix("data: ") for line in response.content.decode("utf-8", "strict").split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in found]


def deltas(found: list[Any]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in found if isinstance(chunk, dict) and chunk.get("choices")]


async def test_whole_answer() -> None:
    async with harness() as h:
        response = await h.chat(TRICKY)
    assert response.status_code == 200
    found = response.json()
    prompt = len(TRICKY.encode())
    assert found["object"] == "chat.completion"
    assert found["model"] == "parrot"
    assert found["id"].startswith("chatcmpl-")
    assert found["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TRICKY, "refusal": None, "annotations": []},
            "finish_reason": "stop",
            "logprobs": None,
        }
    ]
    assert found["usage"] == {"prompt_tokens": prompt, "completion_tokens": prompt, "total_tokens": 2 * prompt}


async def test_streamed_answer_is_the_whole_answer_in_whole_characters() -> None:
    async with harness() as h:
        response = await h.chat(TRICKY, stream=True)
    assert "\u2028" not in response.text  # some readers take it for the end of a line
    found = events(response)
    assert found[-1] == "[DONE]"
    pieces = deltas(found)
    assert pieces[0] == {"role": "assistant", "refusal": None, "content": ""}
    assert [piece["content"] for piece in pieces[1:-1]] == list(TRICKY)
    assert pieces[-1] == {}
    chunks = found[:-1]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_at_the_end_of_a_stream() -> None:
    async with harness() as h:
        found = events(await h.chat("abc", stream=True, stream_options={"include_usage": True}))
    assert found[-2]["choices"] == []
    assert found[-2]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert all(chunk["usage"] is None for chunk in found[:-2])


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_length(name: str) -> None:
    async with harness() as h:
        found = (await h.chat("hello there", **{name: 4})).json()
    assert found["choices"][0]["message"]["content"] == "hell"
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"] == {"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15}


async def test_unfinished_character_at_the_end_is_not_lost() -> None:
    async with harness() as h:
        whole = (await h.chat("é🦜", max_tokens=4)).json()
        streamed = events(await h.chat("é🦜", max_tokens=4, stream=True))
    assert whole["choices"][0]["message"]["content"] == "é\ufffd"
    assert "".join(delta.get("content", "") for delta in deltas(streamed)) == "é\ufffd"


@pytest.mark.parametrize(
    ("stop", "text", "shown", "reason"),
    [
        ("there", "hello there, you", "hello ", "stop"),
        (["zzz", "lo th"], "hello there", "hel", "stop"),
        (["there", "th"], "hello there", "hello ", "stop"),
        ("日本", "naïve 日本", "naïve ", "stop"),
        ("there!", "hello there", "hello there", "stop"),
        ("hello", "hello", "", "stop"),
        ([], "hello", "hello", "stop"),
        ("ab", "aab", "a", "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings(stop: Any, text: str, shown: str, reason: str, stream: bool) -> None:
    async with harness() as h:
        response = await h.chat(text, stop=stop, stream=stream)
    if stream:
        found = events(response)
        assert found[-1] == "[DONE]"
        assert "".join(delta.get("content", "") for delta in deltas(found)) == shown
        assert found[-2]["choices"][0]["finish_reason"] == reason
    else:
        assert response.json()["choices"][0]["message"]["content"] == shown
        assert response.json()["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_cancels_the_rest(stream: bool) -> None:
    async def endless(turn: Turn) -> None:
        while True:
            turn.say("on and ")
            await asyncio.sleep(0.001)

    async with harness(endless) as h:
        async with asyncio.timeout(5):
            response = await h.chat("go", stop=["and on"], stream=stream)
        await parrot.settled(h.engine)
        assert len(h.rank.cancelled) == 1
        assert await h.metric('mstarc_requests_total{outcome="ok",request="chat"}') == 1
    shown = (
        "".join(delta.get("content", "") for delta in deltas(events(response)))
        if stream
        else response.json()["choices"][0]["message"]["content"]
    )
    assert shown == "on "


async def test_audio_whole() -> None:
    async with harness() as h:
        as_wav = (await h.chat("a bc", modalities=["text", "audio"], audio={"voice": "x", "format": "wav"})).json()
        as_pcm = (await h.chat("a bc", **AUDIO)).json()
    message = as_wav["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"]["transcript"] == "a bc"
    with wave.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2)
        frames = file.readframes(file.getnframes())
    assert np.frombuffer(frames, "<i2").tolist() == [16384] * (RATE // 5)
    assert base64.b64decode(as_pcm["choices"][0]["message"]["audio"]["data"]) == frames


async def test_audio_streamed() -> None:
    async with harness() as h:
        found = events(await h.chat("a bc", stream=True, **AUDIO))
        assert await h.metric("mstarc_first_audio_seconds_count") == 1
        assert await h.metric("mstarc_chunk_lateness_seconds_count") == 2
        assert await h.metric("mstarc_audio_seconds_total") == pytest.approx(0.2)
    assert found[-1] == "[DONE]"
    pieces = deltas(found)
    audio = [piece["audio"] for piece in pieces if "audio" in piece]
    assert "".join(piece.get("transcript", "") for piece in audio) == "a bc"
    pcm = b"".join(base64.b64decode(piece["data"]) for piece in audio if "data" in piece)
    assert np.frombuffer(pcm, "<i2").tolist() == [16384] * (RATE // 5)
    assert [piece["id"].startswith("audio_") for piece in audio if "id" in piece] == [True]
    assert list(audio[-1]) == ["expires_at"]
    assert not any(piece.get("content") for piece in pieces)
    order = ["data" if "data" in piece else piece.get("transcript") for piece in audio]
    assert order.index("data") < order.index("c")  # audio comes while text is still written


async def test_stalls_are_counted() -> None:
    async def stutters(turn: Turn) -> None:
        for _ in range(3):
            turn.sound(np.zeros(RATE // 1000))
            await asyncio.sleep(0.02)  # longer than the chunk plays
        turn.end()

    async with harness(stutters) as h:
        assert (await h.chat("a", **AUDIO)).status_code == 200
        assert await h.metric("mstarc_playback_stalls_total") == 2
        assert await h.metric('mstarc_chunk_lateness_seconds_bucket{le="0.01"}') == 1
        assert await h.metric('mstarc_chunk_lateness_seconds_bucket{le="+Inf"}') == 3


async def test_usage_after_a_stop_string() -> None:
    """The ranks say what they counted when they let go of the request: what was made but not shown is no prompt."""

    async def endless(turn: Turn) -> None:
        while True:
            turn.say("ab")
            await asyncio.sleep(0)

    async with harness(endless) as h:
        usage = (await h.chat("abc", stop="ba")).json()["usage"]
    assert usage["prompt_tokens"] == 3
    assert usage["completion_tokens"] >= 2


async def test_usage_is_null_where_it_is_not_known() -> None:
    async with harness(text={"decoder": "tests.serving.parrot.Utf8Stream"}) as h:
        assert (await h.chat("a")).json()["usage"] is None


async def test_text_only_makes_no_audio() -> None:
    wanted: list[Any] = []

    async def look(turn: Turn) -> None:
        wanted.append(turn.wants)
        await parrot.parrot(turn)

    async with harness(look) as h:
        found = (await h.chat("a", modalities=["text"])).json()
    assert "audio" not in found["choices"][0]["message"]
    assert wanted == [["text"]]


async def test_messages_become_parts_in_order() -> None:
    parrot.seen.clear()
    recording = base64.b64encode(b"RIFF?").decode()
    conversation = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "yes", "refusal": None, "audio": None, "tool_calls": None, "annotations": []},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is"},
                {"type": "input_audio", "input_audio": {"data": recording, "format": "wav"}},
                {"type": "text", "text": "this?"},
            ],
        },
    ]
    async with harness() as h:
        response = await h.http.post(
            "/v1/chat/completions", json={"model": "parrot", "messages": conversation, "tools": None, "user": "u"}
        )
    assert response.status_code == 200
    parts = [vars(part) for part in parrot.seen[0]]
    assert parts == [
        {"kind": "text", "role": "system", "text": "be brief", "message": 0},
        {"kind": "text", "role": "user", "text": "one\ntwo", "message": 1},
        {"kind": "text", "role": "assistant", "text": "yes", "message": 2},
        {"kind": "text", "role": "user", "text": "what is", "message": 3},
        {"kind": "audio", "role": "user", "data": b"RIFF?", "format": "wav", "message": 3},
        {"kind": "text", "role": "user", "text": "this?", "message": 3},
    ]


async def test_params_and_seed_reach_the_model() -> None:
    found: list[Any] = []

    async def look(turn: Turn) -> None:
        found.append((turn.params, turn.seed))
        await parrot.parrot(turn)

    async with harness(look) as h:
        await h.chat("a", temperature=1, top_p=0.5, seed=7, max_completion_tokens=9, ignore_eos=True, n=1)
    assert found == [({"max_tokens": 9, "temperature": 1.0, "top_p": 0.5, "ignore_eos": True}, 7)]


@pytest.mark.parametrize("stream", [False, True])
async def test_failure_before_the_first_piece_has_its_status(stream: bool) -> None:
    async def broken(turn: Turn) -> None:
        turn.fail("the beak is stuck", 503)

    async with harness(broken) as h:
        response = await h.chat("a", stream=stream)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert response.json()["error"] == {
        "message": "the beak is stuck",
        "type": "server_error",
        "param": None,
        "code": "unavailable",
    }


async def test_failure_in_mid_stream_is_an_error_and_no_end() -> None:
    async def breaks(turn: Turn) -> None:
        turn.say("so far")
        turn.fail("the beak broke")

    async with harness(breaks) as h:
        found = events(await h.chat("a", stream=True))
        whole = await h.chat("a")
        assert await h.metric('mstarc_requests_total{outcome="failed",request="chat"}') == 2
    assert found[-1]["error"]["message"] == "the beak broke"
    assert "[DONE]" not in found
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in found[:-1])
    assert whole.status_code == 500


@pytest.mark.parametrize(
    ("samples", "rate", "message"),
    [([np.nan], RATE, "not finite"), ([0.1], 16000, "16000 Hz where 24000 Hz is declared")],
)
async def test_wrong_audio_of_the_model_is_an_error(samples: Any, rate: int, message: str) -> None:
    async def wrong(turn: Turn) -> None:
        turn.sound(samples, rate)
        turn.end()

    async with harness(wrong) as h:
        response = await h.chat("a", **AUDIO)
    assert response.status_code == 500
    assert message in response.json()["error"]["message"]


async def test_an_end_without_a_cause_is_no_stop() -> None:
    async with harness(text={"decoder": "tests.serving.parrot.Utf8Stream", "finish": "answer.singing"}) as h:
        response = await h.chat("a")
    assert response.status_code == 500
    assert "answer.singing" in response.json()["error"]["message"]
