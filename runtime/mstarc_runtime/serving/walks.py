"""`/v1/walks/<request>`: any request of a model by its inputs and params; its events as JSON, at once or as a stream."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
from starlette.responses import Response

from mstarc_runtime.conductor.requests import Event, RequestRun
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.program import Entry, Input, Part
from mstarc_runtime.serving.audio import pcm16
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.faults import log_unexpected, shown_to
from mstarc_runtime.serving.schema import WalkRequest, validate
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.sse import DONE, EventStream, JsonResponse, data

_BYTES = ("image", "audio", "video")  # sent as base64


async def complete(service: Service, client: Client, name: str, body: dict[str, Any]) -> Response:
    """Run one request. Raises RuntimeFault for whatever goes wrong before its first event."""
    asked = validate(WalkRequest, body)
    entry = service.engine.entries.get(name)
    inputs = asked.inputs if entry is None else read_inputs(entry, asked.inputs)
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(service.run(client, name, inputs, asked.params, asked.wants, asked.seed))
        events = aiter(run.events())
        if not asked.stream:
            found = [shown(event) async for event in events]
            service.metrics.ended(name, "ok")
            return JsonResponse({"request": name, "events": found, "outcome": _outcome(run)})
        first = await anext(events, None)
        stream = _Stream(run, client)
        stack.callback(lambda: service.metrics.ended(name, stream.outcome))
        stack.push_async_callback(client.close)
        return EventStream(stream.events(first, events), stack.pop_all().aclose)
    raise AssertionError("an exit stack swallows nothing")


class _Stream:
    """A request's events as server-sent events; an error is the last one, without [DONE]."""

    def __init__(self, run: RequestRun, client: Client) -> None:
        self.outcome = "cancelled"
        self._run = run
        self._client = client

    async def events(self, first: Event | None, rest: AsyncIterator[Event]) -> AsyncGenerator[bytes, None]:
        try:
            if first is not None:
                yield data(shown(first))
                async for event in rest:
                    yield data(shown(event))
            yield data({"outcome": _outcome(self._run)})
            yield DONE
            self.outcome = "ok"
        except Exception as error:
            if self._client.gone:
                return
            log_unexpected(error)
            found = shown_to(False, error)
            self.outcome = found.outcome
            yield data(found.body)


def _outcome(run: RequestRun) -> dict[str, Any]:
    return {"causes": run.outcome.causes, "counts": run.outcome.counts}


def shown(event: Event) -> dict[str, Any]:
    """An event as JSON: audio as base64 of 16-bit samples, arrays as nested lists, nan and infinity as null."""
    value = base64.b64encode(pcm16(event.value)).decode() if event.modality == "audio" else _json(event.value)
    return {"modality": event.modality, "value": value, "attributes": _json(dict(event.attributes)), "walk": event.walk}


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return _json(np.asarray(value).tolist())


def read_inputs(entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """Inputs as the engine takes them: base64 becomes bytes, a list of objects with `kind` becomes parts. Raises BadRequest."""
    found = dict(given)
    for item in entry.inputs:
        if item.name in given and given[item.name] is not None:
            found[item.name] = _input(item, given[item.name])
    return found


def _input(item: Input, value: Any) -> Any:
    if item.kind in _BYTES:
        return _bytes(value, f"inputs.{item.name}")
    if item.kind == "parts" and isinstance(value, list):
        return [_part(part, f"inputs.{item.name}[{index}]", item) for index, part in enumerate(value)]
    return value


def _part(value: Any, field: str, item: Input) -> Part:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadRequest(f"`{field}` must be an object", field)
    fields = dict(value)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or (item.members and kind not in item.members):
        known = f" ({', '.join(item.members)})" if item.members else ""
        raise BadRequest(f"`{field}.kind` must name the kind of the part{known}", f"{field}.kind")
    if kind in _BYTES:
        fields["data"] = _bytes(fields.get("data"), f"{field}.data")
    fields.setdefault("role", "user")
    for name in ("role", "format", "text") if kind == "text" else ("role", "format"):
        if not isinstance(fields.get(name, None if name == "text" else ""), str):
            raise BadRequest(f"`{field}.{name}` must be text", f"{field}.{name}")
    for name in fields:
        if name == "self" or name.startswith("__"):
            raise BadRequest(f"`{field}` cannot have a field `{name[:80]}`", field)
    return Part(kind, **fields)


def _bytes(value: Any, field: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise BadRequest(f"`{field}` must be base64", field) from None
