"""Values at the edges of their types, from HTTP and the command line: refused by name, or served."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from mstarc_runtime.conductor.params import check_inputs
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.models.audio_input import decode_audio
from mstarc_runtime.program import Entry, Input, Part
from mstarc_runtime.sampling.philox import DrawKey
from mstarc_runtime.sampling.sampler import History, Row, Settings, draw
from mstarc_runtime.serving.call import Telling
from mstarc_runtime.serving.cli import call_once
from tests.runtime import toy
from tests.serving.parrot import harness

MESSAGE = {"kind": "text", "role": "user", "text": "hi"}


@pytest.mark.parametrize("name", ["temperature", "top_p"])
@pytest.mark.parametrize("value", ["1" + "0" * 400, "-1" + "0" * 400, "1e999", "-1e999", "1e300"])
async def test_numbers_that_no_float_holds(name: str, value: str) -> None:
    body = f'{{"inputs": {{"messages": [{json.dumps(MESSAGE)}]}}, "params": {{"{name}": {value}}}}}'
    async with harness() as h:
        response = await h.http.post("/v1/walks/chat", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"self": 1}, ""),
        ({"__dict__": {}}, ""),
        ({"text": None}, ".text"),
        ({"text": 5}, ".text"),
        ({"text": ["a"]}, ".text"),
        ({"role": 5}, ".role"),
        ({"role": []}, ".role"),
        ({"kind": "audio", "data": "YWI=", "format": 7}, ".format"),
    ],
)
async def test_parts_of_wrong_fields(change: dict[str, Any], field: str) -> None:
    part = {name: value for name, value in (MESSAGE | change).items() if value is not None}
    async with harness() as h:
        response = await h.http.post("/v1/walks/chat", json={"inputs": {"messages": [part]}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"inputs.messages[0]{field}"


def test_a_part_keeps_its_kind() -> None:
    assert Part("text", kind="audio", text="a").kind == "text"


async def test_a_prompt_of_empty_texts_is_empty() -> None:
    async with harness() as h:
        response = await h.chat([{"type": "text", "text": ""}, {"type": "text", "text": ""}])
        served = await h.chat([{"type": "text", "text": ""}, {"type": "text", "text": "a"}])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].content")
    assert served.status_code == 200


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("12", "text"),
        (1.5, "floating"),
        (True, "true or false"),
        (math.nan, "floating"),
        (2**63, "range"),
        (10**30, "range"),
        ([1, 2], "has 1 dims; it must have 0"),
        ([[1], [2, 3]], "is ragged: one item has the shape \\[1\\], another \\[2\\]"),
        ([1, True], "true or false"),
        ([1, [2]], "is ragged: a list holds numbers and lists"),
        (None, "needs"),
        ({"a": 1}, "another kind"),
    ],
)
def test_a_number_that_is_none(value: Any, why: str) -> None:
    entry = Entry("r", (Input("start", "tensor", dtype="i64", dims=()),), ())
    with pytest.raises(BadRequest, match=why) as refusal:
        check_inputs(entry, {"start": value}, None)
    assert refusal.value.field == "start"
    assert check_inputs(entry, {"start": -(2**63)}, None).start == -(2**63)


def test_floats_keep_what_fits() -> None:
    entry = Entry("r", (Input("x", "tensor", dtype="f32", dims=("N",)),), ())
    assert check_inputs(entry, {"x": [1, 2.5]}, None).x.tolist() == [1.0, 2.5]
    assert check_inputs(entry, {"x": []}, None).x.shape == (0,)
    for wrong in ([1e300], [math.inf], ["1"], 1.0):
        with pytest.raises(BadRequest):
            check_inputs(entry, {"x": wrong}, None)


def test_text_that_is_no_unicode() -> None:
    with pytest.raises(BadRequest, match="not valid UTF-8"):
        check_inputs(Entry("r", (Input("t", "text"),), ()), {"t": "a\udcff"}, None)


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-39, 1e-30])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_temperatures_next_to_zero_take_the_best(temperature: float, more: dict[str, Any]) -> None:
    logits = torch.tensor([[0.0, 3.0, -1.0, 2.999]])
    rows = [Row(Settings(temperature=temperature, **more), History(), DrawKey(seed, "w/s", 0)) for seed in range(8)]
    assert draw(logits.expand(8, 4), rows).tolist() == [1] * 8


def sound(seconds: float) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(int(16000 * seconds)), 16000, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


@pytest.mark.parametrize("lost", [1, 2, 1000, 16000])
def test_a_wav_that_was_cut_short(lost: int) -> None:
    with pytest.raises(BadRequest, match="audio ends early: 32000 bytes were announced") as refusal:
        decode_audio(sound(1.0)[:-lost], "wav", field="messages")
    assert refusal.value.field == "messages"


@pytest.mark.parametrize("size", [0, 0x7FFFF000, 0xFFFFFFFF])
def test_a_wav_from_a_pipe_does_not_say_how_long_it_is(size: int) -> None:
    data = bytearray(sound(1.0))
    assert data[36:40] == b"data"
    data[40:44] = size.to_bytes(4, "little")
    if size:
        assert len(decode_audio(bytes(data), "wav")) == 16000
    else:
        with pytest.raises(BadRequest, match="no samples"):
            decode_audio(bytes(data), "wav")


# ---------------------------------------------------------------------------------------------------------------- mstarc call


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No worker may be started."""

    async def refuse(*args: Any) -> None:
        raise AssertionError("the workers were started for a call that cannot work")

    monkeypatch.setattr("mstarc_runtime.conductor.engine.Engine.start", refuse)
    yield


@pytest.mark.usefixtures("unstarted")
@pytest.mark.parametrize(
    ("call", "why"),
    [
        ({"request": "none"}, "no request `none`"),
        ({"request": "sums"}, "needs the input `start`"),
        ({"request": "sums", "inputs": {"start": "x"}}, "must be i64"),
        ({"request": "sums", "inputs": {"start": 1}, "output": "."}, "is a folder"),
        ({"request": "sums", "inputs": {"start": 1}, "output": "a.wav"}, "gives no audio"),
        ({"request": "sums", "audio": "no.wav"}, "0 inputs of kind audio"),
    ],
)
def test_calls_that_fail_before_anything_is_loaded(
    call: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("output", "audio"):
        if name in call:
            call = call | {name: tmp_path / call[name]}
    assert call_once(toy.linked(tmp_path), **call) == 2
    assert why in capsys.readouterr().err


class Full(io.StringIO):
    """A standard output on a full disk."""

    def flush(self) -> None:
        raise OSError(28, "No space left on device")


def test_an_answer_that_cannot_be_written() -> None:
    with pytest.raises(RequestFailed, match="standard output: No space left"):
        Telling(None, Full())._write("a")


DIMS = Entry(
    "r",
    (
        Input("a", "tensor", dtype="f32", dims=("T", 7)),
        Input("b", "tensor", dtype="f32", dims=("T", "width"), optional=True),
        Input("c", "tensor", dtype="f32", dims=(None, "T"), optional=True),
    ),
    (),
)


@pytest.mark.parametrize(
    ("shapes", "field", "message"),
    [
        ({"a": (4, 7), "b": (4, 3), "c": (9, 4)}, None, ""),
        ({"a": (0, 7)}, None, ""),
        ({"a": (4, 6)}, "a", "input `a` has the length 6 in dim 1; it must be 7"),
        ({"a": (4,)}, "a", "has 1 dims; it must have 2"),
        ({"a": (4, 7), "b": (4, 7)}, "b", "input `b` has the length 7 in dim 1; it must be 3"),
        ({"a": (4, 7), "b": (5, 3)}, "b", "input `b` has the length 5 in dim 0, but `a` says that T is 4"),
        ({"a": (4, 7), "c": (4, 1)}, "c", "input `c` has the length 1 in dim 1, but `a` says that T is 4"),
    ],
)
def test_dims_of_inputs(shapes: dict[str, tuple[int, ...]], field: str | None, message: str) -> None:
    """Numbers, config values and lengths that inputs share are checked before anything runs."""
    given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    config = SimpleNamespace(width=3)
    if field is None:
        check_inputs(DIMS, given, config)
        return
    with pytest.raises(BadRequest, match=re.escape(message)) as caught:
        check_inputs(DIMS, given, config)
    assert caught.value.field == field
