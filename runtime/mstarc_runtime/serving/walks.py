"""`/v1/walks/<request>`: any request of a model by its inputs and params; its events at once or as a stream, in JSON or msgpack.

Events of text hold what the model emitted (`value`, often a token's id) and, if the model names a decoder, the characters that it
completes (`text`). A stream is server-sent events, in msgpack one map after another; an error is the last of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

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
from mstarc_runtime.serving.sse import DONE, EventStream, JsonResponse, PiecedResponse, data
from mstarc_runtime.serving.tensors import (
    JSON,
    MSGPACK,
    Form,
    Piece,
    is_array_object,
    pieces,
    plain,
    read_array,
    read_medium,
)
from mstarc_runtime.serving.text import TextReader

T = TypeVar("T")

_MEDIA = ("image", "audio", "video")
_OFF_LOOP = 2**18  # bytes of arrays beyond which an answer is written in a thread


async def complete(service: Service, client: Client, name: str, body: dict[str, Any], binary: bool) -> Response:
    """Run one request. `binary`: answer in msgpack. Raises RuntimeFault for whatever goes wrong before its first event."""
    asked = validate(WalkRequest, body)
    form = Form(binary, asked.tensors == "base64")
    entry = service.engine.entries.get(name)
    inputs = asked.inputs if entry is None else read_inputs(entry, asked.inputs)
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(service.run(client, name, inputs, asked.params, asked.wants, asked.seed))
        events = aiter(run.events())
        answer = _Answer(run, client, form, service.text_reader())
        if not asked.stream:
            response = await answer.whole(name, events)
            service.metrics.ended(name, "ok")
            return response
        first = await anext(events, None)
        stack.callback(lambda: service.metrics.ended(name, answer.outcome))
        stack.push_async_callback(client.close)
        return EventStream(answer.stream(first, events), stack.pop_all().aclose, media_type=MSGPACK if binary else None)
    raise AssertionError("an exit stack swallows nothing")


class _Answer:
    """A request's events as the client reads them."""

    def __init__(self, run: RequestRun, client: Client, form: Form, reader: TextReader | None) -> None:
        self.outcome = "cancelled"
        self._run = run
        self._client = client
        self._form = form
        self._reader = reader
        self._text: list[str] = []

    async def whole(self, name: str, events: AsyncIterator[Event]) -> Response:
        """All events in one document."""
        found = [event async for event in events]

        def written() -> Response:
            shown = [self._shown(event) for event in found]
            document = {"request": name, "events": shown, **self._end()}
            return PiecedResponse(pieces(document), MSGPACK) if self._form.binary else JsonResponse(document)

        return await _off_loop(written, sum(map(self._cost, found)))

    async def stream(self, first: Event | None, rest: AsyncIterator[Event]) -> AsyncGenerator[Piece, None]:
        """One event after another; an error is the last one, without [DONE]."""
        write = pieces if self._form.binary else _lines
        try:
            event = first
            while event is not None:
                for piece in await _off_loop(partial(self._written, write, event), self._cost(event)):
                    yield piece
                event = await anext(rest, None)
            for piece in write(self._end()):
                yield piece
            if not self._form.binary:
                yield DONE
            self.outcome = "ok"
        except Exception as error:
            if self._client.gone:
                return
            log_unexpected(error)
            found = shown_to(False, error)
            self.outcome = found.outcome
            for piece in write(dict(found.body)):
                yield piece

    def _written(self, write: Callable[[Any], list[Piece]], event: Event) -> list[Piece]:
        return write(self._shown(event))

    def _cost(self, event: Event) -> int:
        """Bytes of an event that are rewritten; arrays in msgpack leave as they are, but for audio."""
        as_it_is = self._form.binary and event.modality != "audio"
        return 0 if as_it_is else int(getattr(event.value, "nbytes", 0))

    def _shown(self, event: Event) -> dict[str, Any]:
        found = shown(event, self._form)
        if event.modality == "text" and self._reader is not None:
            self._text.append(self._reader.push(event.value))
            found["text"] = self._text[-1]
        return found

    def _end(self) -> dict[str, Any]:
        """How it ended, and the whole text if there is one."""
        outcome = {"causes": self._run.outcome.causes, "counts": self._run.outcome.counts}
        if not self._text or self._reader is None:
            return {"outcome": outcome}
        return {"outcome": outcome, "text": "".join(self._text) + self._reader.finish()}


def _lines(value: Any) -> list[Piece]:
    return [data(value)]


async def _off_loop(work: Callable[[], T], size: int) -> T:
    """The result of `work`; in a thread if it writes much."""
    return work() if size < _OFF_LOOP else await asyncio.to_thread(work)


def shown(event: Event, form: Form = JSON) -> dict[str, Any]:
    """An event as JSON or msgpack: audio as 16-bit samples."""
    value: Any = pcm16(event.value) if event.modality == "audio" else event.value
    return {
        "modality": event.modality,
        "walk": event.walk,
        "attributes": plain(dict(event.attributes), form),
        "value": plain(value, form),
    }


def read_inputs(entry: Entry, given: dict[str, Any]) -> dict[str, Any]:
    """Inputs as the engine takes them: arrays, bytes of files, and objects with `kind` as parts. Raises BadRequest."""
    found = dict(given)
    for item in entry.inputs:
        if item.name in given and given[item.name] is not None:
            found[item.name] = _input(item, given[item.name])
    return found


def _input(item: Input, value: Any) -> Any:
    field = f"inputs.{item.name}"
    if item.kind in _MEDIA:
        return read_medium(value, field)
    if item.kind == "parts" and isinstance(value, list):
        return [_part(part, f"{field}[{index}]", item) for index, part in enumerate(value)]
    if item.kind == "tensor" and is_array_object(value):
        return read_array(value, field)
    return value


def _part(value: Any, field: str, item: Input) -> Part:
    """A part of its kind. Where only one medium can stand, its content alone is enough."""
    if isinstance(value, Part):
        return value
    bare = is_array_object(value) or (isinstance(value, dict) and value.keys() == {"data"})
    if len(item.members) == 1 and item.members[0] in _MEDIA and (bare or isinstance(value, str | bytes | np.ndarray)):
        return Part(item.members[0], role="user", data=read_medium(value, field))
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadRequest(f"`{field}` must be an object", field)
    fields = dict(value)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or (item.members and kind not in item.members):
        known = f" ({', '.join(item.members)})" if item.members else ""
        raise BadRequest(f"`{field}.kind` must name the kind of the part{known}", f"{field}.kind")
    if kind in _MEDIA:
        fields["data"] = read_medium(fields.get("data"), f"{field}.data")
    fields.setdefault("role", "user")
    for name in ("role", "format", "text") if kind == "text" else ("role", "format"):
        if not isinstance(fields.get(name, None if name == "text" else ""), str):
            raise BadRequest(f"`{field}.{name}` must be text", f"{field}.{name}")
    for name in fields:
        if name == "self" or name.startswith("__"):
            raise BadRequest(f"`{field}` cannot have a field `{name[:80]}`", field)
    return Part(kind, **fields)
