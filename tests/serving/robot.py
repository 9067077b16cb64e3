"""A policy without weights: the parrot's fake rank gives a chunk of actions, or does what the task says. And a client of sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np

from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.program import ConductorProgram, Entry, Input, Param
from mstarc_runtime.serving.service import Options
from tests.serving.parrot import Harness, ParrotRank, Turn, linked, settled

ACTION = {name: f"tests.serving.robot.{name}" for name in ("observe", "units", "robot")} | {"request": "act"}


class Robot(ConductorProgram):
    """request act(task: text, state: f32[R]?) -> action"""

    MODEL = "parrot"
    PARAMS = (Param("flow_steps", "int", default=10, low=1, high=100),)
    ENTRIES = (
        Entry(
            "act",
            (Input("task", "text"), Input("state", "tensor", dtype="f32", dims=("R",), optional=True)),
            (("action", False),),
        ),
    )
    RESULTS = {"answer": 0}  # noqa: RUF012

    def act(self, request: Any) -> Any:
        state = [] if request.inputs.state is None else request.inputs.state.tolist()
        yield request.walk("answer", [request.inputs.task, *state])

    def answer_need(self, request: Any, need: Any, task: Any) -> None:
        need.write("main", 1)


def observe(observation: Mapping[str, Any]) -> dict[str, Any]:
    if "prompt" not in observation:
        raise BadRequest("the observation needs a `prompt`", "prompt")
    image = observation.get("image")
    if image is not None and (not isinstance(image, np.ndarray) or image.dtype != np.uint8):
        raise BadRequest(f"`image` is a {type(image).__name__}", "image")
    return {"task": observation["prompt"], "state": observation.get("state")}


def units(chunk: Any) -> Any:
    return 2 * np.asarray(chunk)


def robot() -> dict[str, Any]:
    return {"cameras": ["image"], "action_dim": 3}


async def flow(turn: Turn) -> None:
    """Half of [[sum of the state, flow steps, seed]]; a task may be to fail, to be slow, or to give nothing."""
    task, *state = turn.ids
    if task == "fail":
        turn.fail("the arm is stuck")
    elif task == "slow":
        await asyncio.sleep(60)
    else:
        chunk = np.array([[sum(state), turn.params["flow_steps"], turn.seed]], np.float32) / 2  # type: ignore[arg-type]
        if task != "nothing":
            turn._emit("action", chunk)
        turn.end()


@asynccontextmanager
async def policy(options: Options | None = None) -> AsyncIterator[Harness]:
    """The policy's application in process; nothing may be left in it at the end."""
    rank = ParrotRank(flow)
    engine = Engine(linked(chat=None, text=None, action=ACTION), Robot(), rank)
    await engine.start()
    try:
        yield Harness(engine, rank, options)
        await settled(engine)
    finally:
        await engine.stop()


# ----------------------------------------------------------------------------------------------------------- the other side


def packed(value: Any) -> bytes:
    """msgpack with arrays as openpi's clients write them."""

    def rich(item: Any) -> Any:
        if isinstance(item, np.ndarray):
            return {
                b"__ndarray__": True, b"data": item.tobytes(), b"dtype": item.dtype.str, b"shape": list(item.shape)
            }  # fmt: skip
        if isinstance(item, np.generic):
            return {b"__npgeneric__": True, b"data": item.item(), b"dtype": item.dtype.str}
        if isinstance(item, list):
            return [rich(each) for each in item]
        return {key: rich(each) for key, each in item.items()} if isinstance(item, dict) else item

    return msgspec.msgpack.encode(rich(value))


def unpacked(data: bytes) -> Any:
    """The inverse of `packed`."""

    def poor(item: Any) -> Any:
        if isinstance(item, dict) and b"__ndarray__" in item:
            return np.ndarray(tuple(item[b"shape"]), np.dtype(item[b"dtype"]), item[b"data"])
        if isinstance(item, list):
            return [poor(each) for each in item]
        return {key: poor(each) for key, each in item.items()} if isinstance(item, dict) else item

    return poor(msgspec.msgpack.decode(data))


class Socket:
    """One WebSocket to an application in process."""

    def __init__(self, app: Any, path: str = "/v1/actions", headers: Mapping[str, str] | None = None) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope = {
            "type": "websocket", "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "ws",
            "headers": [(b"host", b"robot"), *((k.encode(), v.encode()) for k, v in (headers or {}).items())],
            "subprotocols": [], "client": ("robot", 1), "server": ("robot", 80), "asgi": {"version": "3.0"},
            "extensions": {"websocket.http.response": {}},
        }  # fmt: skip
        self._to_app.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(scope, self._to_app.get, self._from_app.put))

    async def message(self, within_s: float = 5) -> dict[str, Any]:
        """What the application sends next."""
        async with asyncio.timeout(within_s):
            return await self._from_app.get()

    async def accepted(self, within_s: float = 5) -> Any:
        """The first message after the handshake: what is served."""
        assert (await self.message(within_s))["type"] == "websocket.accept"
        return unpacked((await self.message(within_s))["bytes"])

    def send(self, value: Any) -> None:
        data = {"bytes": value} if isinstance(value, bytes) else {"text": value}
        self._to_app.put_nowait({"type": "websocket.receive", **data})

    async def answer(self, value: Any, within_s: float = 5) -> Any:
        """The answer to a message: a dict of actions, or the text of an error."""
        self.send(value)
        found = await self.message(within_s)
        return unpacked(found["bytes"]) if found.get("bytes") is not None else found.get("text", found)

    async def leave(self) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1001})
        async with asyncio.timeout(5):
            await self.task
