"""`/v1/actions`: what a robot observes in, a chunk of actions out; over HTTP (JSON or msgpack) and over a WebSocket (msgpack).

The WebSocket speaks the protocol of openpi's clients: the server sends what it serves, then each message of the client is an
observation and each answer a map with `actions`. A request that fails is answered with a text, which such clients raise as an error;
the connection stays. Besides what is observed a message may hold `params`, `seed` and, in JSON, `tensors` ("list" or "base64").
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping, MutableMapping
from typing import Any

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketState

from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.faults import log_unexpected, shown_to
from mstarc_runtime.serving.schema import ActionOptions, validate
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.sse import JsonResponse
from mstarc_runtime.serving.surface import Policy
from mstarc_runtime.serving.tensors import (
    MSGPACK,
    Form,
    is_array_object,
    pack,
    parse_msgpack,
    plain,
    read_array,
    read_base64,
)

_OPTIONS = ("params", "seed", "tensors")
_MOST_WAITING = 16  # messages of a connection that were sent before their turn
_TRY_AGAIN, _TOO_MUCH = 1013, 1008  # close codes


async def complete(service: Service, client: Client, body: dict[str, Any], start: float, binary: bool) -> Response:
    """The answer to one observation. Raises RuntimeFault."""
    policy = policy_of(service)
    options = validate(ActionOptions, {key: body[key] for key in _OPTIONS if key in body})
    form = Form(binary, options.tensors == "base64")
    observation = {key: value for key, value in body.items() if key not in _OPTIONS}
    if not binary:
        observation = {key: _from_json(value, key) for key, value in observation.items()}
    found = await _actions(service, policy, client, observation, options)
    service.metrics.ended(policy.entry.name, "ok")
    answer = plain({"actions": found, "server_timing": {"infer_ms": 1000 * (time.monotonic() - start)}}, form)
    return Response(pack(answer), media_type=MSGPACK) if binary else JsonResponse(answer)


def policy_of(service: Service) -> Policy:
    """The model's policy. Raises BadRequest (404) if it has none."""
    if service.policy is None:
        raise BadRequest(f"`{service.engine.linked.model}` gives no actions; use /v1/walks/<request>", None, 404)
    return service.policy


async def _actions(
    service: Service, policy: Policy, client: Client, observation: Mapping[str, Any], options: ActionOptions
) -> Any:
    """The chunk of actions in the robot's units."""
    inputs = await service.engine.in_thread(lambda: policy.observe(observation))
    chunk: Any = None
    async with service.run(client, policy.entry.name, inputs, options.params, (), options.seed) as run:
        async for event in run.events():
            if event.modality == "action":
                chunk = event.value
    if chunk is None:
        raise RequestFailed("the policy ended without actions")
    return policy.units(chunk)


def _from_json(value: Any, field: str) -> Any:
    """Objects that stand for arrays and files as these; everything else as it is."""
    if is_array_object(value):
        return read_array(value, field)
    if isinstance(value, dict) and value.keys() == {"data"}:
        return read_base64(value["data"], f"{field}.data")
    return (
        {key: _from_json(item, f"{field}.{key}") for key, item in value.items()} if isinstance(value, dict) else value
    )


# ------------------------------------------------------------------------------------------------------------- the WebSocket


async def converse(service: Service, socket: WebSocket) -> None:
    """Serve one robot until it leaves: one observation after another."""
    await socket.accept()
    try:
        policy = policy_of(service)
    except BadRequest as error:
        await _close(socket, _TOO_MUCH, str(error))
        return
    told = {"model": service.engine.linked.model, "request": policy.entry.name, **policy.robot()}
    await socket.send_bytes(pack(plain(told, Form(binary=True))))
    await _Conversation(service, socket).run()


class _Conversation:
    """Reads ahead, so that a robot that leaves is noticed while its request runs."""

    def __init__(self, service: Service, socket: WebSocket) -> None:
        self._service = service
        self._socket = socket
        self._messages: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._previous_ms: float | None = None

    async def run(self) -> None:
        reader = asyncio.create_task(self._read(), name="robot")
        try:
            while not self._gone.is_set():
                message = await self._messages.get()
                if message["type"] != "websocket.receive":
                    return
                start = time.monotonic()
                answer = await self._answer(message, start)
                if self._gone.is_set():
                    return
                await self._send(answer)
                self._previous_ms = 1000 * (time.monotonic() - start)
        finally:
            reader.cancel()
            await asyncio.wait({reader})

    async def _read(self) -> None:
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] != "websocket.receive":
                    break
                if self._messages.qsize() >= _MOST_WAITING:
                    await _close(self._socket, _TOO_MUCH, f"more than {_MOST_WAITING} observations wait for their turn")
                    break
                self._messages.put_nowait(message)
        finally:
            self._gone.set()
            self._messages.put_nowait({"type": "websocket.disconnect"})

    async def _answer(self, message: Mapping[str, Any], start: float) -> bytes | str:
        """Actions as msgpack, or a text that says what is wrong."""
        client = Client(self._departure)
        name = self._service.policy.entry.name if self._service.policy is not None else ""
        try:
            observation = _observation(message)
            options = validate(ActionOptions, {key: observation.pop(key) for key in _OPTIONS if key in observation})
            found = await _actions(self._service, policy_of(self._service), client, observation, options)
            timing = {"infer_ms": 1000 * (time.monotonic() - start)}
            if self._previous_ms is not None:
                timing["prev_total_ms"] = self._previous_ms
            self._service.metrics.ended(name, "ok")
            return pack(plain({"actions": found, "server_timing": timing}, Form(binary=True)))
        except Exception as error:
            log_unexpected(error)
            fault = shown_to(client.gone, error)
            self._service.metrics.ended(name, fault.outcome)
            return json.dumps(fault.body)
        finally:
            await client.close()

    async def _departure(self) -> MutableMapping[str, Any]:
        """What `Client` watches for."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, answer: bytes | str) -> None:
        async with asyncio.timeout(self._service.options.write_s):
            if isinstance(answer, str):
                await self._socket.send_text(answer)
            else:
                await self._socket.send_bytes(answer)


def _observation(message: Mapping[str, Any]) -> dict[str, Any]:
    data = message.get("bytes")
    if not isinstance(data, bytes):
        raise BadRequest("an observation is a binary message of msgpack; JSON goes to POST /v1/actions")
    found = parse_msgpack(data)
    if not isinstance(found, dict):
        raise BadRequest("an observation must be a msgpack map")
    return found


async def _close(socket: WebSocket, code: int, why: str) -> None:
    with contextlib.suppress(RuntimeError, OSError):
        if socket.application_state is WebSocketState.CONNECTED:
            await socket.close(code, why[:120])
