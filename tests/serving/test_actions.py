"""`/v1/actions` over HTTP and WebSocket: a fake policy for every rule, and pi0.5 with the reference weights behind a real server."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.abi.messages import Freed
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.serving.service import Options
from tests.serving.parrot import ParrotRank, harness, linked
from tests.serving.robot import ACTION, Robot, Socket, flow, packed, policy, unpacked

OBSERVED = {"prompt": "fold", "state": np.array([1, 2], np.float32), "image": np.zeros((4, 5, 3), np.uint8)}


async def acted(http: Any, body: dict[str, Any]) -> Any:
    return await http.post("/v1/actions", json=body)


# --- HTTP


async def test_json() -> None:
    async with policy() as h:
        body = {"prompt": "fold", "state": [1, 2], "params": {"flow_steps": 4}, "seed": 9}
        plain = await acted(h.http, body)
        asked = body | {
            "state": {
                "dtype": "float32",
                "shape": [2],
                "data": base64.b64encode(np.float32([1, 2]).tobytes()).decode(),
            },
            "tensors": "base64",
        }
        whole = (await acted(h.http, asked)).json()["actions"]
    assert plain.status_code == 200 and plain.json()["actions"] == [[3, 4, 9]]
    assert plain.json()["server_timing"]["infer_ms"] > 0
    assert (whole["dtype"], whole["shape"]) == ("float32", [1, 3])
    assert np.frombuffer(base64.b64decode(whole["data"]), "<f4").tolist() == [3, 4, 9]


async def test_msgpack_over_http() -> None:
    kind = {"content-type": "application/msgpack"}
    async with policy() as h:
        found = await h.http.post("/v1/actions", content=packed({**OBSERVED, "seed": 1}), headers=kind)
        as_json = await h.http.post(
            "/v1/actions", content=packed(OBSERVED), headers=kind | {"accept": "application/json"}
        )
    assert found.headers["content-type"] == "application/msgpack"
    assert unpacked(found.content)["actions"].tolist() == [[3, 10, 1]]
    assert as_json.json()["actions"][0][:2] == [3, 10]


@pytest.mark.parametrize(
    ("body", "param", "status"),
    [
        ({}, "prompt", 400),
        ({"prompt": "fold", "params": {"steps": 3}}, "steps", 400),
        ({"prompt": "fold", "params": {"flow_steps": 0}}, "flow_steps", 400),
        ({"prompt": "fold", "params": [1]}, "params", 400),
        ({"prompt": "fold", "seed": "x"}, "seed", 400),
        ({"prompt": "fold", "tensors": "json"}, "tensors", 400),
        ({"prompt": "fold", "state": ["x"]}, "state", 400),
        ({"prompt": "fold", "image": [1]}, "image", 400),
        ({"prompt": "fold", "image": {"dtype": "uint8", "shape": [2], "data": "AA=="}}, "image.data", 400),
        ({"prompt": "fold", "image": {"dtype": "object", "shape": [1], "data": "AA=="}}, "image.dtype", 400),
        ({"prompt": "fold", "image": {"dtype": "uint8", "shape": [-1], "data": ""}}, "image.shape", 400),
        ({"prompt": "fold", "image": {"data": "?"}}, "image.data", 400),
        ({"prompt": "fail"}, None, 500),
        ({"prompt": "nothing"}, None, 500),
    ],
)
async def test_refused(body: dict[str, Any], param: str | None, status: int) -> None:
    async with policy() as h:
        response = await acted(h.http, body)
        again = await acted(h.http, {"prompt": "fold"})
    assert (response.status_code, response.json()["error"]["param"]) == (status, param), response.text
    assert again.status_code == 200


async def test_a_model_without_actions() -> None:
    async with harness() as h:
        assert (await acted(h.http, {"prompt": "fold"})).status_code == 404
        socket = Socket(h.app)
        assert (await socket.message())["type"] == "websocket.accept"
        closed = await socket.message()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008) and "gives no actions" in closed["reason"]


# --- WebSocket


@pytest.mark.parametrize("path", ["/v1/actions", "/"])
async def test_a_conversation(path: str) -> None:
    """Metadata first; then an answer for each observation, with times, the second also of the turn before."""
    async with policy() as h:
        socket = Socket(h.app, path)
        assert await socket.accepted() == {"model": "parrot", "request": "act", "cameras": ["image"], "action_dim": 3}
        first = await socket.answer(packed({**OBSERVED, "seed": 5}))
        second = await socket.answer(packed({"prompt": np.str_("fold").item(), "seed": np.int64(6)}))
        await socket.leave()
    assert first["actions"].tolist() == [[3, 10, 5]] and first["actions"].dtype == np.float32
    assert second["actions"].tolist() == [[0, 10, 6]]
    assert set(first["server_timing"]) == {"infer_ms"} and set(second["server_timing"]) == {"infer_ms", "prev_total_ms"}


@pytest.mark.parametrize(
    ("message", "param", "words"),
    [
        (packed({"prompt": "fail"}), None, "the arm is stuck"),
        (packed({}), "prompt", "needs a `prompt`"),
        (packed({"prompt": "fold", "params": {"flow_steps": 1000}}), "flow_steps", "must be in 1"),
        (packed({"prompt": "fold", "seed": 1.5}), "seed", "seed"),
        (b"\xc1", None, "not valid msgpack"),
        (b"", None, "not valid msgpack"),
        (packed([1]), None, "must be a msgpack map"),
        ('{"prompt": "fold"}', None, "binary message"),
        (
            packed({"image": {"__ndarray__": True, "dtype": "<f4", "shape": [2], "data": b"1"}}),
            "image.data",
            "has 1 bytes",
        ),
        (packed({"image": {"__ndarray__": True, "dtype": "|O", "shape": [1], "data": b"1"}}), "image.dtype", "dtype"),
    ],
)
async def test_a_failure_leaves_the_connection(message: Any, param: str | None, words: str) -> None:
    async with policy() as h:
        socket = Socket(h.app)
        await socket.accepted()
        found = json.loads(await socket.answer(message))["error"]
        good = await socket.answer(packed(OBSERVED))
        await socket.leave()
    assert found["param"] == param and words in found["message"]
    assert good["actions"].shape == (1, 3)


async def test_a_deadline_leaves_the_connection() -> None:
    async with policy(Options(deadline_s=0.1)) as h:
        socket = Socket(h.app)
        await socket.accepted()
        found = json.loads(await socket.answer(packed({"prompt": "slow"})))["error"]
        good = await socket.answer(packed(OBSERVED))
        await socket.leave()
    assert found["code"] == "deadline_exceeded" and good["actions"].shape == (1, 3)


async def test_leaving_cancels() -> None:
    async with policy() as h:
        socket = Socket(h.app)
        await socket.accepted()
        socket.send(packed({"prompt": "slow"}))
        async with asyncio.timeout(5):
            while not h.rank.turns:
                await asyncio.sleep(0.001)
            await socket.leave()
            while not h.rank.cancelled:
                await asyncio.sleep(0.001)


async def test_robots_do_not_disturb_each_other() -> None:
    """Messages sent ahead are answered in order; one slow robot and one that fails leave the others alone."""
    async with policy() as h:
        slow, bad, good = (Socket(h.app) for _ in range(3))
        for socket in (slow, bad, good):
            await socket.accepted()
        slow.send(packed({"prompt": "slow"}))
        bad.send(packed({"prompt": "fail"}))
        for seed in range(8):
            good.send(packed({"prompt": "fold", "seed": seed}))
        seeds = [unpacked((await good.message())["bytes"])["actions"][0, 2] for _ in range(8)]
        assert "stuck" in (await bad.message())["text"]
        for socket in (slow, bad, good):
            await socket.leave()
    assert seeds == list(range(8))


async def test_too_many_messages_ahead_close_the_connection() -> None:
    async with policy() as h:
        socket = Socket(h.app)
        await socket.accepted()
        for _ in range(20):
            socket.send(packed({"prompt": "slow"}))
        closed = await socket.message()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        async with asyncio.timeout(5):
            await socket.task


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Api-Key wrong"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Api-Key secret", "origin": "http://elsewhere"}, 403),
    ],
)
async def test_the_door(headers: dict[str, str], status: int) -> None:
    async with policy(Options(api_key="secret")) as h:
        shut = Socket(h.app, headers=headers)
        denied = await shut.message()
        assert (denied["type"], denied["status"]) == ("websocket.http.response.start", status)
        for known in (
            {"authorization": "Api-Key secret"},
            {"authorization": "Bearer secret", "origin": "http://robot"},
        ):
            socket = Socket(h.app, headers=known)
            await socket.accepted()
            await socket.leave()


# --- pi0.5 behind a real server


@pytest.mark.skipif(importlib.util.find_spec("websockets") is None, reason="websockets is not installed")
async def test_pi05_over_a_real_socket(tmp_path: Any) -> None:
    """A client of the library that robots use: the actions are those that the same request gives over HTTP."""
    import httpx
    import websockets

    from tests.serving.pi05 import served

    rng = np.random.default_rng(0)
    observed = {
        "observation/images/base_0_rgb": rng.integers(0, 256, (48, 64, 3), np.uint8),
        "observation/images/left_wrist_0_rgb": rng.integers(0, 256, (3, 48, 64), np.uint8),
        "observation/state": np.linspace(-1, 1, 6, dtype=np.float32),
        "prompt": "fold the towel",
        "seed": 4,
    }
    async with served(tmp_path) as url:
        kind = {"content-type": "application/msgpack"}
        async with httpx.AsyncClient(timeout=30) as http:
            over_http = unpacked((await http.post(f"{url}/v1/actions", content=packed(observed), headers=kind)).content)
        async with websockets.connect(url.replace("http", "ws", 1) + "/v1/actions", compression=None) as socket:
            told = unpacked(await socket.recv())
            await socket.send(packed(observed))
            found = unpacked(await socket.recv())
            await socket.send(packed({"prompt": "fold", "images": {"base": observed["observation/images/base_0_rgb"]}}))
            wrong = json.loads(await socket.recv())
            await socket.send(packed(observed))
            again = unpacked(await socket.recv())
    assert told["cameras"] == ["base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb"] and told["action_horizon"] == 10
    assert found["actions"].shape == (10, 7) and np.isfinite(found["actions"]).all()
    assert np.array_equal(found["actions"], over_http["actions"]) and np.array_equal(found["actions"], again["actions"])
    assert wrong["error"]["param"] == "images/base"


async def test_after_a_stop_nothing_is_held_by_a_rank_that_never_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = ParrotRank(flow)
    tell = rank.tell
    monkeypatch.setattr(rank, "tell", lambda message: None if isinstance(message, Freed) else tell(message))
    engine = Engine(linked(chat=None, text=None, action=ACTION), Robot(), rank)
    await engine.start()
    run = await engine.submit("act", {"task": "slow"})
    await asyncio.sleep(0.01)
    await engine.stop()
    assert run.freed.is_set() and not any(engine.gauges().values())
