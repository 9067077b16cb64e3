"""`/v1/walks/<request>`: any request of a model over HTTP; here the toy of the runtime's tests, and inputs of every kind."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.conductor.requests import Event
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.package import load_conductor
from mstarc_runtime.program import Entry, Input
from mstarc_runtime.serving.app import make_app
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.walks import read_inputs, shown
from tests.runtime import toy
from tests.serving.parrot import harness, settled
from tests.serving.robot import packed, unpacked


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The toy of two ranks behind the application."""
    linked = toy.linked(tmp_path, ranks=2, fail_at=100)
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    transport = httpx.ASGITransport(make_app(Service(engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as client:
        yield client
    await settled(engine)
    await engine.stop()


async def test_a_request_by_name(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/walks/sums", json={"inputs": {"start": 3}, "params": {"steps": 4}})
    assert response.status_code == 200
    found = response.json()
    assert found["request"] == "sums"
    values: dict[str, list[Any]] = {"tensor": [], "scalar": []}
    for event in found["events"]:
        values[event["modality"]].append(event["value"])
    assert values == {"tensor": [3, 4, 5, 6], "scalar": [7, 11]}
    assert {event["walk"] for event in found["events"] if event["modality"] == "scalar"} == {"add"}
    assert found["outcome"]["causes"] == {"count.counting": "max"}
    assert found["outcome"]["counts"]["count.counting"] == 4


async def test_arrays_become_lists(http: httpx.AsyncClient) -> None:
    found = (await http.post("/v1/walks/gathered", json={"inputs": {"start": 1}, "params": {"steps": 3}})).json()
    assert [event["value"] for event in found["events"]] == [[1, 2, 3]]


async def test_streamed(http: httpx.AsyncClient) -> None:
    asked = {"inputs": {"start": 3}, "params": {"steps": 4}, "stream": True}
    response = await http.post("/v1/walks/sums", json=asked)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    found = [json.loads(line) for line in lines]
    assert [event["value"] for event in found[:-1] if event["modality"] == "tensor"] == [3, 4, 5, 6]
    assert found[-1]["outcome"]["causes"] == {"count.counting": "max"}


async def test_an_error_in_mid_stream_has_no_end(http: httpx.AsyncClient) -> None:
    asked = {"inputs": {"start": 97}, "params": {"steps": 9}, "stream": True}
    response = await http.post("/v1/walks/sums", json=asked)
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert "cannot count past 100" in json.loads(lines[-1])["error"]["message"]
    assert len(lines) > 1


@pytest.mark.parametrize(
    ("name", "body", "param", "status"),
    [
        ("sum", {"inputs": {"start": 1}}, "request", 404),
        ("sums", {}, "start", 400),
        ("sums", {"inputs": {"start": "x"}}, "start", 400),
        ("sums", {"inputs": {"start": 1, "end": 3}}, "end", 400),
        ("sums", {"inputs": {"start": 1}, "params": {"steps": -1}}, "steps", 400),
        ("sums", {"inputs": {"start": 1}, "params": {"stepz": 1}}, "stepz", 400),
        ("sums", {"inputs": {"start": 1}, "wants": ["audio"]}, "modalities", 400),
        ("sums", {"inputs": [1]}, "inputs", 400),
        ("sums", {"input": {"start": 1}}, "input", 400),
        ("sums", {"inputs": {"start": 1}, "seed": 1.5}, "seed", 400),
        ("sums", {"inputs": {"start": 1}, "stream": 1}, "stream", 400),
        ("sums", {"inputs": {"start": 99}, "params": {"steps": 9}}, None, 500),
    ],
)
async def test_refused(http: httpx.AsyncClient, name: str, body: Any, param: str | None, status: int) -> None:
    response = await http.post(f"/v1/walks/{name}", json=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["param"] == param


async def test_chat_by_its_parts() -> None:
    async with harness() as h:
        parts = [{"kind": "text", "text": "one"}, {"kind": "audio", "data": base64.b64encode(b"two").decode()}]
        response = await h.http.post("/v1/walks/chat", json={"inputs": {"messages": parts}, "wants": ["audio"]})
        odd = await h.http.post("/v1/walks/chat", json={"inputs": {"messages": [{"kind": "smell"}]}})
        echo = await h.http.post("/v1/walks/echo", json={"inputs": {"words": "ab"}})
    events = response.json()["events"]
    assert bytes(event["value"] for event in events if event["modality"] == "text") == b"two"
    audio = [event for event in events if event["modality"] == "audio"]
    assert audio[0]["attributes"] == {"rate": 24000}
    assert np.frombuffer(base64.b64decode(audio[0]["value"]), "<i2").tolist() == [16384] * 2400
    assert odd.json()["error"]["param"] == "inputs.messages[0].kind"
    assert [event["value"] for event in echo.json()["events"]] == [97, 98]


def test_inputs_of_every_kind() -> None:
    entry = Entry("x", (Input("a", "audio"), Input("m", "parts", members=("text",)), Input("n", "int")), ())
    found = read_inputs(
        entry, {"a": "YWI=", "m": [{"kind": "text", "text": "t", "role": "system"}], "n": 3, "other": 1}
    )
    assert (found["a"], found["n"], found["other"]) == (b"ab", 3, 1)
    assert vars(found["m"][0]) == {"kind": "text", "text": "t", "role": "system"}
    for wrong, field in (({"a": "?"}, "inputs.a"), ({"a": 3}, "inputs.a"), ({"m": [3]}, "inputs.m[0]")):
        with pytest.raises(BadRequest) as refusal:
            read_inputs(entry, wrong)
        assert refusal.value.field == field


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.array([[1.5, np.nan]], np.float32), [[1.5, None]]),
        (float("inf"), None),
        (np.float64(2.5), 2.5),
        (np.array([True, False]), [True, False]),
        (b"ab", "YWI="),
        ({"a": [1, (2, None)]}, {"a": [1, [2, None]]}),
    ],
)
def test_values_as_json(value: Any, expected: Any) -> None:
    found = shown(Event("tensor", value, {"scale": np.float32(0.5)}, "w", 0.0))
    assert json.loads(json.dumps(found, allow_nan=False)) == {
        "modality": "tensor",
        "value": expected,
        "attributes": {"scale": 0.5},
        "walk": "w",
    }


# --- arrays in and out


MSGPACK = {"content-type": "application/msgpack"}


async def test_msgpack(http: httpx.AsyncClient) -> None:
    """Arrays as bytes in and out; a stream is one map after another; errors are JSON."""
    asked = {"inputs": {"start": np.array(1)}, "params": {"steps": 3}}
    found = await http.post("/v1/walks/gathered", content=packed(asked), headers=MSGPACK)
    assert found.headers["content-type"] == "application/msgpack"
    (event,) = unpacked(found.content)["events"]
    assert event["value"].dtype == np.int64 and event["value"].tolist() == [1, 2, 3]
    streamed = await http.post("/v1/walks/gathered", content=packed({**asked, "stream": True}), headers=MSGPACK)
    parts = [unpacked(part) for part in _maps(streamed.content)]
    assert parts[0]["value"].tolist() == [1, 2, 3] and parts[1]["outcome"]["causes"] == {} and len(parts) == 2
    failed = await http.post("/v1/walks/sums", content=packed({"inputs": {"start": "x"}}), headers=MSGPACK)
    assert (failed.status_code, failed.json()["error"]["param"]) == (400, "start")


def _maps(data: bytes) -> list[bytes]:
    """Messages that stand one behind another."""
    found, start = [], 0
    for end in range(1, len(data) + 1):
        try:
            msgspec.msgpack.decode(data[start:end])
        except msgspec.DecodeError:
            continue
        found.append(data[start:end])
        start = end
    return found


async def test_arrays_as_base64(http: httpx.AsyncClient) -> None:
    start = {"dtype": "int64", "shape": [], "data": base64.b64encode(np.int64(1).tobytes()).decode()}
    asked = {"inputs": {"start": start}, "params": {"steps": 3}, "tensors": "base64"}
    (event,) = (await http.post("/v1/walks/gathered", json=asked)).json()["events"]
    assert (event["value"]["dtype"], event["value"]["shape"]) == ("int64", [3])
    assert np.frombuffer(base64.b64decode(event["value"]["data"]), "<i8").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [("application/json", "application/json"), ("*/*", "application/msgpack"), ("application/x-msgpack, */*", "application/msgpack")],
)  # fmt: skip
async def test_the_answer_is_of_the_kind_that_is_accepted(http: httpx.AsyncClient, accept: str, kind: str) -> None:
    body = packed({"inputs": {"start": 1}})
    found = await http.post("/v1/walks/gathered", content=body, headers={**MSGPACK, "accept": accept})
    assert found.headers["content-type"] == kind


async def test_text_comes_with_the_ids() -> None:
    """The characters that an id completes, and the whole text at the end."""
    async with harness() as h:
        found = (await h.http.post("/v1/walks/echo", json={"inputs": {"words": "né"}})).json()
        streamed = await h.http.post("/v1/walks/echo", json={"inputs": {"words": "né"}, "stream": True})
    assert [event["text"] for event in found["events"]] == ["n", "", "é"] and found["text"] == "né"
    assert json.loads(streamed.text.split("\n\n")[-3].removeprefix("data: "))["text"] == "né"


def test_media_of_every_form() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    written = {"dtype": "uint8", "shape": [2, 2, 3], "data": base64.b64encode(pixels.tobytes()).decode()}
    entry = Entry(
        "x", (Input("v", "video"), Input("i", "parts", members=("image",)), Input("t", "tensor", dtype="f32")), ()
    )
    found = read_inputs(entry, {"v": [written, pixels], "i": ["YWI=", written, b"raw", {"data": "YWI="}], "t": written})
    assert all(np.array_equal(frame, pixels) for frame in found["v"]) and np.array_equal(found["t"], pixels)
    assert [part.kind for part in found["i"]] == ["image"] * 4
    assert [found["i"][k].data for k in (0, 2, 3)] == [b"ab", b"raw", b"ab"]
    assert np.array_equal(found["i"][1].data, pixels)
    for wrong, field in (
        ({"v": [{**written, "shape": [2, 2]}]}, "inputs.v[0].data"),
        ({"v": {"data": 3}}, "inputs.v.data"),
        ({"i": [{**written, "dtype": "complex128"}]}, "inputs.i[0].dtype"),
        ({"t": {**written, "dtype": "float16", "shape": [1.5]}}, "inputs.t.shape"),
    ):
        with pytest.raises(BadRequest) as refusal:
            read_inputs(entry, wrong)
        assert refusal.value.field == field
