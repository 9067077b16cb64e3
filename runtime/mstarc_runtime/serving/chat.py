"""`/v1/chat/completions`: OpenAI's request -> inputs and params of the model's request; its answer -> OpenAI's shapes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.program import Part
from mstarc_runtime.serving.answer import Answer, Audio, Text, Usage
from mstarc_runtime.serving.audio import wav
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.faults import log_unexpected, shown_to
from mstarc_runtime.serving.schema import MODEL_PARAMS, ChatRequest, ContentPart, InputAudio, validate
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.sse import DONE, EventStream, JsonResponse
from mstarc_runtime.serving.sse import data as event_of
from mstarc_runtime.serving.surface import Surface

_OFF_LOOP = 2**18  # characters of base64 beyond which decoding leaves the event loop


async def complete(service: Service, client: Client, body: dict[str, Any], start: float) -> Response:
    """The answer to one chat request: a JSON document, or a stream that runs on after this returns.

    Raises RuntimeFault for whatever goes wrong before the first piece of the answer.
    """
    surface = _surface(service)
    asked = validate(ChatRequest, body)
    check(service, surface, asked)
    inputs = {surface.input: await messages(asked, surface)}
    wants = {"text", "audio"} if asked.wants_audio else {"text"}
    async with AsyncExitStack() as stack:
        try:
            run = await stack.enter_async_context(
                service.run(client, surface.entry.name, inputs, params(asked), wants, asked.seed)
            )
        except BadRequest as refusal:
            raise _renamed(refusal, asked) from None
        answer = Answer(surface, run, asked.stops, start)
        stack.callback(service.metrics.heard, answer)
        reply = Reply(service, surface, asked, answer)
        if not asked.stream:
            document = await reply.document()
            service.metrics.ended(surface.entry.name, "ok")
            return JsonResponse(document)
        pieces = answer.pieces()
        stack.push_async_callback(pieces.aclose)
        first = await anext(pieces, None)
        stack.callback(lambda: service.metrics.ended(surface.entry.name, reply.outcome))
        stack.push_async_callback(client.close)
        return EventStream(reply.stream(first, pieces, client), stack.pop_all().aclose)
    raise AssertionError("an exit stack swallows nothing")


def _surface(service: Service) -> Surface:
    if service.surface is None:
        raise BadRequest(f"`{service.engine.linked.model}` has no chat; use /v1/walks/<request>", None, 404)
    return service.surface


def check(service: Service, surface: Surface, asked: ChatRequest) -> None:
    """What depends on the model: its name, its modalities and its params. Raises BadRequest."""
    model = service.engine.linked.model
    if asked.model != model:
        raise BadRequest(f"no model `{asked.model[:80]}` here; this is `{model}`", "model", 404)
    if asked.wants_audio and "audio" not in surface.outputs:
        raise BadRequest(f"`{model}` has no audio output", "modalities")
    if asked.audio is not None and surface.voices and asked.audio.voice not in surface.voices:
        raise BadRequest(f"`audio.voice` must be one of {', '.join(surface.voices)}", "audio.voice")
    for name in MODEL_PARAMS:
        if getattr(asked, name) is not None and name not in surface.params:
            raise BadRequest(f"`{name}` is not a parameter of `{model}`", name)
    if asked.max_completion_tokens is not None and "max_tokens" not in surface.params:
        raise BadRequest(f"`max_completion_tokens` is not a parameter of `{model}`", "max_completion_tokens")


def params(asked: ChatRequest) -> dict[str, Any]:
    """The model's params that the client set."""
    found = {name: getattr(asked, name) for name in MODEL_PARAMS if getattr(asked, name) is not None}
    if asked.max_completion_tokens is not None:
        found["max_tokens"] = asked.max_completion_tokens
    return found


def _renamed(refusal: BadRequest, asked: ChatRequest) -> BadRequest:
    """A refusal under the name that the client used for the field."""
    if refusal.field == "max_tokens" and asked.max_tokens is None:
        text = str(refusal).replace("`max_tokens`", "`max_completion_tokens`")
        return BadRequest(text, "max_completion_tokens", refusal.status)
    return refusal


async def messages(asked: ChatRequest, surface: Surface) -> list[Part]:
    """The conversation as parts in order; `message` is the index of the turn. Neighbouring texts of a turn become one.

    Raises BadRequest for base64 that is broken and for audio that the model does not take.
    """
    parts: list[Part] = []
    for index, message in enumerate(asked.messages):
        turn = {"role": "system" if message.role == "developer" else message.role, "message": index}
        texts: list[str] = []
        contents: Sequence[str | ContentPart] = (
            [message.content] if isinstance(message.content, str) else message.content
        )
        for at, content in enumerate(contents):
            if isinstance(content, str) or content.input_audio is None:
                texts.append(content if isinstance(content, str) else content.text or "")
                continue
            field = f"messages[{index}].content[{at}]"
            if not surface.audio_input:
                raise BadRequest(f"`{field}.type`: the model takes no audio", f"{field}.type")
            data = await _recording(content.input_audio, f"{field}.input_audio.data")
            if texts:
                parts.append(Part("text", text="\n".join(texts), **turn))
                texts = []
            parts.append(Part("audio", data=data, format=content.input_audio.format, **turn))
        if texts:
            parts.append(Part("text", text="\n".join(texts), **turn))
    return parts


async def _recording(audio: InputAudio, field: str) -> bytes:
    """The bytes of a recording; long ones are decoded off the event loop."""
    try:
        return await asyncio.to_thread(_decode, audio.data) if len(audio.data) > _OFF_LOOP else _decode(audio.data)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"`{field}` is not base64: {str(error)[:1].lower()}{str(error)[1:]}", field) from None


def _decode(encoded: str) -> bytes:
    return base64.b64decode(encoded, validate=True)


@dataclass(slots=True)
class _Spoken:
    """Whether the audio of a stream has been named yet: its id goes out once."""

    id: str
    named: bool = False

    def delta(self, **fields: Any) -> dict[str, Any]:
        name = {} if self.named else {"id": self.id}
        self.named = True
        return {"audio": {**name, **fields}}


class Reply:
    """One answer in OpenAI's shapes."""

    def __init__(self, service: Service, surface: Surface, asked: ChatRequest, answer: Answer) -> None:
        self.outcome = "cancelled"  # of a stream, for the metrics
        self._linked = service.engine.linked
        self._surface = surface
        self._asked = asked
        self._answer = answer
        self._created = int(time.time())
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._audio_id = f"audio_{secrets.token_hex(12)}"

    def _frame(self, kind: str) -> dict[str, Any]:
        linked = self._linked
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": linked.model,
            "system_fingerprint": f"fp_{linked.digest[:12]}" if linked.digest else None,
        }

    async def document(self) -> dict[str, Any]:
        """The whole answer, once it is there."""
        text: list[str] = []
        sound = bytearray()
        async for piece in self._answer.pieces():
            if isinstance(piece, Text):
                text.append(piece.text)
            else:
                sound += piece.pcm
        message: dict[str, Any] = {"role": "assistant", "content": "".join(text), "refusal": None, "annotations": []}
        if self._asked.audio is not None:
            message["content"] = None
            message["audio"] = await asyncio.to_thread(self._sound, bytes(sound), "".join(text))
        choice = {"index": 0, "message": message, "finish_reason": self._answer.finish_reason, "logprobs": None}
        return {
            **self._frame("chat.completion"),
            "choices": [choice],
            "usage": usage(self._answer.usage),
        }

    def _sound(self, pcm: bytes, transcript: str) -> dict[str, Any]:
        assert self._asked.audio is not None
        encoded = pcm if self._asked.audio.format == "pcm16" else wav(pcm, self._surface.rate)
        return {
            "id": self._audio_id,
            "data": base64.b64encode(encoded).decode(),
            "expires_at": self._created,  # answers are not kept
            "transcript": transcript,
        }

    async def stream(
        self, first: Text | Audio | None, rest: AsyncGenerator[Text | Audio, None], client: Client
    ) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. An error is the last event: no finish_reason and no [DONE] then."""
        try:
            async for event in self._events(first, rest):
                yield event
            self.outcome = "ok"
        except Exception as error:
            if client.gone:
                return
            log_unexpected(error)
            found = shown_to(client.gone, error)
            self.outcome = found.outcome
            yield event_of(found.body)

    async def _events(
        self, first: Text | Audio | None, rest: AsyncGenerator[Text | Audio, None]
    ) -> AsyncGenerator[bytes, None]:
        spoken = _Spoken(self._audio_id) if self._asked.wants_audio else None
        opening = {"role": "assistant", "refusal": None} | ({} if spoken else {"content": ""})
        yield self._chunk(opening)
        if first is not None:
            yield self._chunk(_delta(first, spoken))
        async for piece in rest:
            yield self._chunk(_delta(piece, spoken))
        if spoken is not None:
            yield self._chunk(spoken.delta(expires_at=self._created))
        yield self._chunk({}, self._answer.finish_reason)
        if self._wants_usage:
            yield event_of({**self._frame("chat.completion.chunk"), "choices": [], "usage": usage(self._answer.usage)})
        yield DONE

    @property
    def _wants_usage(self) -> bool:
        options = self._asked.stream_options
        return options is not None and bool(options.include_usage)

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        frame = self._frame("chat.completion.chunk")
        frame["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}]
        if self._wants_usage:
            frame["usage"] = None
        return event_of(frame)


def _delta(piece: Text | Audio, spoken: _Spoken | None) -> dict[str, Any]:
    if isinstance(piece, Audio):
        assert spoken is not None
        return spoken.delta(data=base64.b64encode(piece.pcm).decode())
    return {"content": piece.text} if spoken is None else spoken.delta(transcript=piece.text)


def usage(found: Usage | None) -> dict[str, int] | None:
    """OpenAI's usage; null where the model does not say what it used."""
    if found is None:
        return None
    return {
        "prompt_tokens": found.prompt,
        "completion_tokens": found.completion,
        "total_tokens": found.prompt + found.completion,
    }
