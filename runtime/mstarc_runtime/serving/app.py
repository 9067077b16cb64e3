"""The HTTP application over an engine: OpenAI's chat and speech, every request by name, health, readiness and metrics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from mstarc_runtime.errors import BadRequest, RuntimeFault
from mstarc_runtime.serving import actions, chat, speech, walks
from mstarc_runtime.serving.body import read_json, read_values, wants_msgpack
from mstarc_runtime.serving.client import Client
from mstarc_runtime.serving.faults import RETRY_S, Fault, fault, log_unexpected, shown_to
from mstarc_runtime.serving.service import Service
from mstarc_runtime.serving.sse import EventStream, JsonResponse

Work = Callable[[Client, dict[str, Any], float], Awaitable[Response]]
Read = Callable[[Request, int], Awaitable[dict[str, Any]]]


def make_app(service: Service) -> FastAPI:
    """The application. Errors of every kind, also for unknown paths, have OpenAI's shape."""
    app = FastAPI(title=f"mstarc: {service.engine.linked.model}", openapi_url=None)
    app.add_middleware(Gate, service=service)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    _add_state(app, service)
    _add_work(app, service)
    return app


def _add_state(app: FastAPI, service: Service) -> None:
    started = int(time.time())

    @app.get("/health")
    async def health() -> Response:
        """Whether this process is alive."""
        return JsonResponse({"status": "alive"})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are served now; 503 and why, if not."""
        why = service.why_not_ready()
        if why:
            return JsonResponse({"ready": False, "reason": why}, 503, {"retry-after": str(RETRY_S)})
        return JsonResponse({"ready": True})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(service.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/v1/models")
    async def models() -> Response:
        """The one model that is served."""
        return JsonResponse({"object": "list", "data": [_model(service, started)]})

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        """The model, by its name."""
        if name != service.engine.linked.model:
            return _refusal(fault(BadRequest(f"no model `{name[:80]}` here", "model", 404)))
        return JsonResponse(_model(service, started))


def _add_work(app: FastAPI, service: Service) -> None:
    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        """OpenAI's chat completions."""
        name = "chat" if service.surface is None else service.surface.entry.name
        return await _serve(
            service, request, name, lambda client, body, start: chat.complete(service, client, body, start)
        )

    @app.post("/v1/audio/speech")
    async def audio_speech(request: Request) -> Response:
        """OpenAI's speech of a text."""
        name = "speech" if service.speech is None else service.speech.entry.name
        return await _serve(
            service, request, name, lambda client, body, start: speech.complete(service, client, body, start)
        )

    @app.post("/v1/walks/{name}")
    async def run_walks(request: Request, name: str) -> Response:
        """Any request of the model."""
        known = name if name in service.engine.entries else "unknown"
        return await _serve(
            service,
            request,
            known,
            lambda client, body, start: walks.complete(service, client, name, body, wants_msgpack(request)),
            read_values,
        )

    @app.post("/v1/actions")
    async def actions_once(request: Request) -> Response:
        """A robot's observation."""
        name = "actions" if service.policy is None else service.policy.entry.name
        return await _serve(
            service,
            request,
            name,
            lambda client, body, start: actions.complete(service, client, body, start, wants_msgpack(request)),
            read_values,
        )

    @app.websocket("/v1/actions")
    @app.websocket("/")
    async def actions_by_turns(socket: WebSocket) -> None:
        """A robot's observations, one after another; at the root as well, where such clients look by themselves."""
        await actions.converse(service, socket)


async def _serve(service: Service, request: Request, name: str, work: Work, read: Read = read_json) -> Response:
    """Read the body, do the work for as long as the client is there, and answer errors."""
    start = time.monotonic()
    client: Client | None = None
    streams = False
    try:
        body = await read(request, service.options.max_bytes)
        client = Client(request.receive)
        response = await work(client, body, start)
        streams = isinstance(response, EventStream)
        return response
    except Exception as error:
        log_unexpected(error)
        found = shown_to(client is None or client.gone, error)
        service.metrics.ended(name, found.outcome)
        return _refusal(found)
    finally:
        if client is not None and not streams:  # a stream closes its own
            await client.close()


class Gate:
    """ASGI middleware: asks for the API key and counts calls of /v1 that are not fully answered."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] not in ("http", "websocket") or path in ("/health", "/ready"):
            await self._app(scope, receive, send)
            return
        try:
            headers = dict(scope["headers"])
            self._service.check_key(headers.get(b"authorization"))
            if scope["type"] == "websocket":
                _check_origin(headers)
        except RuntimeFault as error:
            if scope["type"] == "websocket":
                await WebSocket(scope, receive, send).send_denial_response(_refusal(fault(error)))
            else:
                await _refusal(fault(error))(scope, receive, send)
            return
        if scope["type"] == "websocket" or not path.startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        with self._service.metrics.open.track_inprogress():
            await self._app(scope, receive, send)


def _check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raises BadRequest (403) for a page of another site: browsers let it open a socket, and nothing else would stop it."""
    origin = headers.get(b"origin")
    if origin is not None and urlsplit(origin).netloc != headers.get(b"host"):
        raise BadRequest("a page of another site may not open a socket here", None, 403)


def _refusal(found: Fault) -> Response:
    return JsonResponse(found.body, found.status, dict(found.headers))


async def _http_error(request: Request, error: Exception) -> Response:
    """A path or method that does not exist."""
    assert isinstance(error, HTTPException)
    found = fault(BadRequest(f"{request.method} {request.url.path[:200]}: {error.detail}", None, error.status_code))
    return JsonResponse(found.body, found.status, dict(error.headers or {}))


async def _bug(request: Request, error: Exception) -> Response:
    return _refusal(fault(error))


def _model(service: Service, started: int) -> dict[str, Any]:
    return {"id": service.engine.linked.model, "object": "model", "created": started, "owned_by": "mstarc"}
