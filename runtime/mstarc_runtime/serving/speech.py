"""`/v1/audio/speech`: OpenAI's request -> inputs and params of the model's request; its audio -> the body, as it is made.

`response_format` is `wav` (the default: its header tells no length, as the audio does not have one yet) or `pcm` (16 bit, mono, little
endian). `stream_format` is `audio` (the default: the bytes) or `sse` (events `speech.audio.delta` and `speech.audio.done`). What goes
wrong before the first audio is an error of HTTP; afterwards the connection breaks, or an event `error` is the last one.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import Response

from mstarc_runtime.conductor.requests import RequestRun
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.serving.answer import Answer, Audio, Text
from mstarc_runtime.serving.audio import wav_opening
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.faults import log_unexpected, shown_to
from mstarc_runtime.serving.schema import MODEL_PARAMS, SpeechRequest, validate
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.sse import Broken, ByteStream, EventStream
from mstarc_runtime.serving.sse import data as event_of
from mstarc_runtime.serving.surface import Speech

_MEDIA = {"wav": "audio/wav", "pcm": "audio/pcm"}


async def complete(service: Service, client: Client, body: dict[str, Any], start: float) -> Response:
    """The answer to one request, a stream that runs on after this returns. Raises RuntimeFault for what is wrong before its first audio."""
    speech = speech_of(service)
    asked = validate(SpeechRequest, body)
    params = _params(service, speech, asked)
    async with AsyncExitStack() as stack:
        work = service.run(
            client, speech.entry.name, {speech.surface.input: asked.input}, params, {"audio"}, asked.seed
        )
        try:
            run = await stack.enter_async_context(work)
        except BadRequest as refusal:
            raise _renamed(refusal, speech) from None
        answer = Answer(speech.surface, run, (), start)
        stack.callback(service.metrics.heard, answer)
        pieces = answer.pieces()
        stack.push_async_callback(pieces.aclose)
        first = await anext(pieces, None)
        if first is None:
            raise RequestFailed("the model made no audio of this text")
        spoken = _Spoken(speech, run, asked, client)
        stack.callback(lambda: service.metrics.ended(speech.entry.name, spoken.outcome))
        stack.push_async_callback(client.close)
        if asked.stream_format == "sse":
            return EventStream(spoken.events(first, pieces), stack.pop_all().aclose)
        return ByteStream(spoken.body(first, pieces), stack.pop_all().aclose, _MEDIA[asked.format])
    raise AssertionError("an exit stack swallows nothing")


def speech_of(service: Service) -> Speech:
    """The model's speech. Raises BadRequest (404) if it has none."""
    if service.speech is None:
        raise BadRequest(f"`{service.engine.linked.model}` does not speak texts; use /v1/walks/<request>", None, 404)
    return service.speech


def _params(service: Service, speech: Speech, asked: SpeechRequest) -> dict[str, Any]:
    """The model's params that the client set, the voice among them. Raises BadRequest."""
    model, known = service.engine.linked.model, speech.surface.params
    if asked.model != model:
        raise BadRequest(f"no model `{asked.model[:80]}` here; this is `{model}`", "model", 404)
    if speech.surface.voices and asked.voice_name not in speech.surface.voices:
        raise BadRequest(f"`voice` must be one of {', '.join(speech.surface.voices)}", "voice")
    found: dict[str, Any] = {speech.voice: asked.voice_name} if speech.voice else {}
    for name in MODEL_PARAMS:
        value = getattr(asked, name)
        if value is not None and name not in known:
            raise BadRequest(f"`{name}` is not a parameter of `{model}`", name)
        if value is not None:
            found[name] = value
    return found


def _renamed(refusal: BadRequest, speech: Speech) -> BadRequest:
    """A refusal under the name that the client used for the field."""
    names = {speech.surface.input: "input", speech.voice: "voice"}
    name = names.get(refusal.field or "")
    if not name or name == refusal.field:
        return refusal
    return BadRequest(str(refusal).replace(f"`{refusal.field}`", f"`{name}`"), name, refusal.status)


class _Spoken:
    """One answer's body."""

    def __init__(self, speech: Speech, run: RequestRun, asked: SpeechRequest, client: Client) -> None:
        self.outcome = "cancelled"  # for the metrics
        self._speech = speech
        self._run = run
        self._asked = asked
        self._client = client

    async def body(self, first: Text | Audio, rest: AsyncGenerator[Text | Audio, None]) -> AsyncGenerator[bytes, None]:
        """The header, then samples. Raises Broken if the request fails: what was sent is no whole answer."""
        try:
            opening = wav_opening(self._speech.surface.rate) if self._asked.format == "wav" else b""
            yield opening + _pcm(first)
            async for piece in rest:
                yield _pcm(piece)
            self.outcome = "ok"
        except Exception as error:
            self._failed(error)
            raise Broken from error

    async def events(
        self, first: Text | Audio, rest: AsyncGenerator[Text | Audio, None]
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error is the last one."""
        opening = wav_opening(self._speech.surface.rate) if self._asked.format == "wav" else b""
        try:
            yield _delta(opening + _pcm(first))
            async for piece in rest:
                yield _delta(_pcm(piece))
            yield event_of({"type": "speech.audio.done", "usage": self._usage()})
            self.outcome = "ok"
        except Exception as error:
            found = self._failed(error)
            if found is not None:
                yield event_of({"type": "error", **found})

    def _failed(self, error: Exception) -> dict[str, Any] | None:
        """Note an error; what the client is told of it, if it is still there."""
        if self._client.gone:
            return None
        log_unexpected(error)
        found = shown_to(False, error)
        self.outcome = found.outcome
        return dict(found.body)

    def _usage(self) -> dict[str, int] | None:
        """Ids that went into the language model and came out of it; null where the binding does not say how to count them."""
        counts = self._run.outcome.counts
        entries, made = counts.get(f"context:{self._speech.usage}"), counts.get(self._speech.finish)
        if entries is None or made is None:
            return None
        return {"input_tokens": max(0, entries - made), "output_tokens": made, "total_tokens": max(entries, made)}


def _pcm(piece: Text | Audio) -> bytes:
    return piece.pcm if isinstance(piece, Audio) else b""


def _delta(sound: bytes) -> bytes:
    return event_of({"type": "speech.audio.delta", "audio": base64.b64encode(sound).decode()})
