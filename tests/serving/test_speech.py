"""`/v1/audio/speech` on loopback: the official client, streaming, WAV, events, refusals by name, ends in the middle, `mstarc call`."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
import torch
from openai import APIStatusError, AsyncOpenAI
from torch import Tensor

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.engines.component import Checkpoint, Noise
from mstarc_runtime.errors import LoadError
from mstarc_runtime.package import load_conductor
from mstarc_runtime.serving.audio import pcm16
from mstarc_runtime.serving.cli import call_once
from mstarc_runtime.serving.server import address, listen, serve
from mstarc_runtime.serving.service import Options
from mstarc_runtime.serving.surface import speech_surface
from tests.e2e.orpheus_parts import SPEECH, TENSORS, Dictated, linked
from tests.serving.parrot import harness

EMITTED = TENSORS["stream.upstream_emitted"].numpy()
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}
ASKED = {"model": "orpheus", "input": "10", "voice": "tara", **GREEDY}


class Failing:
    """A codec that cannot decode the fourth window of the reference stream."""

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Failing:
        return cls()

    def decode(self, noise: Noise, ids: Tensor) -> Tensor:
        if (ids[:, 0] == SPEECH[21]).any():
            raise ValueError("no such window")
        return torch.full((len(ids), 2048), 0.25)


@asynccontextmanager
async def served(program: Linked) -> AsyncIterator[tuple[str, Engine]]:
    """The server's address, and the engine behind it."""
    torch.set_num_threads(1)
    engine = Engine(program, load_conductor(program), LocalCluster(program))
    listener = listen("127.0.0.1", 0)
    stop = asyncio.Event()
    task = asyncio.create_task(serve(engine, listener, Options(grace_s=2.0), stop, asyncio.Event()))
    try:
        async with asyncio.timeout(30):
            while not engine.ready:
                await asyncio.sleep(0.01)
        yield address(listener), engine
    finally:
        stop.set()
        async with asyncio.timeout(15):
            assert await task == 0


@asynccontextmanager
async def speaking(folder: Path, **parts: type) -> AsyncIterator[tuple[httpx.AsyncClient, Engine]]:
    async with (
        served(linked(folder, 1, llm=Dictated, **parts)) as (url, engine),
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http, engine


async def settled(engine: Engine) -> None:
    """Wait until nothing is held."""
    async with asyncio.timeout(5):
        while any(engine.gauges().values()):
            await asyncio.sleep(0.02)


def near(sound: bytes) -> None:
    """16-bit samples of the reference windows, within one."""
    got, wanted = np.frombuffer(sound, "<i2").astype(int), np.frombuffer(pcm16(EMITTED), "<i2").astype(int)
    assert len(got) == len(wanted) and np.abs(got - wanted).max() <= 1


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]


# --- what a client hears


async def test_the_official_client(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (http, engine):
        client = AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0)
        speech = client.audio.speech
        whole = await speech.create(
            model="orpheus",
            input="10",
            voice="tara",
            response_format="pcm",
            stream_format="audio",
            speed=1.0,
            extra_body=GREEDY,
        )
        near(whole.content)
        assert whole.response.headers["content-type"] == "audio/pcm"
        async with speech.with_streaming_response.create(
            model="orpheus", input="10", voice="leah", response_format="pcm", extra_body=GREEDY
        ) as response:
            pieces = [piece async for piece in response.iter_bytes()]
        near(b"".join(pieces))
        with pytest.raises(APIStatusError, match="voice") as refused:
            await speech.create(model="orpheus", input="10", voice="alloy")
        assert refused.value.status_code == 400 and refused.value.param == "voice"
        await client.close()
        await settled(engine)


async def test_wav_is_the_default_and_readers_take_it(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (http, _):
        found = await http.post("/v1/audio/speech", json=ASKED)
    assert found.status_code == 200 and found.headers["content-type"] == "audio/wav"
    near(found.content[44:])
    samples, rate = soundfile.read(io.BytesIO(found.content), dtype="int16")
    assert rate == 24000 and samples.shape == (7 * 2048,)
    with wave.open(io.BytesIO(found.content)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)


async def test_audio_comes_while_it_is_made(tmp_path: Path) -> None:
    """The first bytes are here while the request runs: its end is far."""
    body = {**ASKED, "response_format": "pcm", "ignore_eos": True, "max_tokens": 8000}
    async with speaking(tmp_path) as (http, engine):
        async with http.stream("POST", "/v1/audio/speech", json=body) as response:
            heard = 0
            async for piece in response.aiter_bytes():
                heard += len(piece)
                if heard >= 3 * 4096:
                    break
            assert engine.gauges()["running"] == 1
        await settled(engine)  # who leaves, cancels
        metrics = (await http.get("/metrics")).text
    assert 'mstarc_requests_total{outcome="cancelled",request="speech"} 1.0' in metrics


async def test_events(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (http, _):
        body = {**ASKED, "stream_format": "sse", "response_format": "pcm"}
        found = await http.post("/v1/audio/speech", json=body)
    assert found.headers["content-type"].startswith("text/event-stream")
    *deltas, done = events_of(found.text)
    assert {event["type"] for event in deltas} == {"speech.audio.delta"}
    near(b"".join(base64.b64decode(event["audio"]) for event in deltas))
    usage = {"input_tokens": 1, "output_tokens": 70, "total_tokens": 71}
    assert done == {"type": "speech.audio.done", "usage": usage}


async def test_many_at_once_are_each_alone(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (http, engine):
        bodies = [{**ASKED, "input": str(4 + k % 7), "response_format": "pcm"} for k in range(16)]
        found = await asyncio.gather(*[http.post("/v1/audio/speech", json=body) for body in bodies])
        await settled(engine)
    wanted = np.frombuffer(pcm16(EMITTED), "<i2").astype(int)
    for k, response in enumerate(found):
        got = np.frombuffer(response.content, "<i2").astype(int)
        assert len(got) == 2048 * (1 + k % 7) and np.abs(got - wanted[: len(got)]).max() <= 1


# --- what is refused


@pytest.mark.parametrize(
    ("change", "param", "text", "status"),
    [
        ({"model": "tts-1"}, "model", "no model `tts-1` here", 404),
        ({"model": None}, "model", "is wrong", 400),
        ({"input": ""}, "input", "is wrong", 400),
        ({"input": 5}, "input", "is wrong", 400),
        ({"voice": "alloy"}, "voice", "must be one of tara, zoe", 400),
        ({"voice": {"id": "nobody"}}, "voice", "must be one of", 400),
        ({"voice": {"name": "tara"}}, "voice.id", "is required", 400),
        ({"voice": ["tara"]}, "voice", "must be text or an object with an `id`", 400),
        ({"voice": ""}, "voice", "is wrong", 400),
        ({"response_format": "mp3"}, "response_format", "must be 'wav' or 'pcm'", 400),
        ({"response_format": "opus"}, "response_format", "must be 'wav' or 'pcm'", 400),
        ({"stream_format": "chunks"}, "stream_format", "must be 'audio' or 'sse'", 400),
        ({"speed": 1.5}, "speed", "must be 1; other values are not supported", 400),
        ({"instructions": "softly"}, "instructions", "is not supported", 400),
        ({"pitch": 1}, "pitch", "is not a field of this request", 400),
        ({"temperature": 3.0}, "temperature", "`temperature`", 400),
        ({"temperature": "hot"}, "temperature", "is wrong", 400),
        ({"top_k": 5}, "top_k", "is not a parameter of `orpheus`", 400),
        ({"max_tokens": 0}, "max_tokens", "`max_tokens`", 400),
        ({"max_tokens": 10**6}, "max_tokens", "`max_tokens`", 400),
        ({"seed": 2**70}, "seed", "is wrong", 400),
    ],
)
async def test_refusals_name_the_field(
    change: dict[str, Any], param: str, text: str, status: int, refusing: httpx.AsyncClient
) -> None:
    found = await refusing.post("/v1/audio/speech", json={**ASKED, **change})
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (status, param) and text in error["message"]


@pytest.fixture
async def refusing(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with speaking(tmp_path) as (http, _):
        yield http


@pytest.mark.parametrize("name", ["model", "input", "voice"])
async def test_what_is_required(refusing: httpx.AsyncClient, name: str) -> None:
    found = await refusing.post("/v1/audio/speech", json={key: value for key, value in ASKED.items() if key != name})
    assert (found.status_code, found.json()["error"]["param"]) == (400, name)


async def test_nulls_are_as_if_left_out(refusing: httpx.AsyncClient) -> None:
    nulls = dict.fromkeys(("instructions", "speed", "response_format", "stream_format", "top_k", "seed"))
    found = await refusing.post("/v1/audio/speech", json={**ASKED, **nulls, "voice": {"id": "zoe"}})
    assert found.status_code == 200 and found.headers["content-type"] == "audio/wav"


async def test_a_model_that_speaks_no_texts() -> None:
    async with harness() as h:
        found = await h.http.post("/v1/audio/speech", json=ASKED)
    assert found.status_code == 404 and "use /v1/walks/<request>" in found.json()["error"]["message"]


# --- what goes wrong


async def test_too_short_for_a_window(tmp_path: Path) -> None:
    async with speaking(tmp_path) as (http, engine):
        found = await http.post("/v1/audio/speech", json={**ASKED, "input": "3"})
        await settled(engine)
    assert found.status_code == 500 and "made no audio" in found.json()["error"]["message"]


async def test_a_failure_in_the_middle_is_no_end(tmp_path: Path) -> None:
    """Bytes: the connection breaks. Events: the error is the last one. The next request is served."""
    async with speaking(tmp_path, snac=Failing) as (http, engine):
        body = {**ASKED, "response_format": "pcm"}
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/v1/audio/speech", json=body)
        found = await http.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
        *deltas, last = events_of(found.text)
        assert deltas and all(event["type"] == "speech.audio.delta" for event in deltas)
        assert last["type"] == "error" and "message" in last["error"]
        short = await http.post("/v1/audio/speech", json={**body, "input": "6"})
        assert short.status_code == 200 and len(short.content) == 3 * 4096
        await settled(engine)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"request": "sing"}, "names `sing`, which is no request that gives audio"),
        ({"input": "messages"}, "names `messages`, which is no text that `speech` takes"),
        ({"voice": "pitch"}, "names `pitch`, which is no param of `orpheus`"),
    ],
)
def test_bindings_that_do_not_fit(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    from msgspec.structs import replace

    program = linked(tmp_path)
    audio = {**program.modalities["audio"], **change}
    with pytest.raises(LoadError, match=text):
        speech_surface(replace(program, modalities={"audio": audio}), load_conductor(program))


# --- mstarc call


def test_call_writes_what_was_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.wav"
    params = {**GREEDY, "voice": "leo"}
    assert call_once(linked(tmp_path, llm=Dictated), text="10", params=params, output=file) == 0
    with wave.open(str(file)) as sound:
        near(sound.readframes(sound.getnframes()))
    assert "first audio" in capfd.readouterr().err
