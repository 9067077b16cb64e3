"""uvicorn around the application, from loading to an orderly end.

It listens while the workers load (`/ready` says 503) and prints where once they have. On SIGTERM or SIGINT it stops accepting,
lets running requests end for `grace_s` and stops them then; a second signal stops them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from mstarc_runtime.abi.messages import Loading
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.errors import RuntimeFault
from mstarc_runtime.garbage import settle_garbage
from mstarc_runtime.memory import keep_memory
from mstarc_runtime.serving.app import make_app
from mstarc_runtime.serving.http import Http
from mstarc_runtime.serving.service import Options, Service
from mstarc_runtime.serving.terminal import Status

OK, FAILED = 0, 1
_SWITCH_S = 5e-4  # that a thread of the interpreter runs while another wants to; a tenth of the default
_LEAVE_S = 3.0  # for connections to close once their requests have ended


class _Http(uvicorn.Server):
    """uvicorn that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=256)
    # connections inherit it; asyncio would not set it on them
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket) -> str:
    """http://host:port of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    engine: Engine, listener: socket.socket, options: Options, stop: asyncio.Event, hurry: asyncio.Event
) -> int:
    """Serve until `stop` is set, or until it turns out that the engine cannot start. Gives the exit status."""
    keep_memory()
    service = Service(engine, options)
    status = Status()
    config = uvicorn.Config(
        make_app(service),
        http=Http,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="auto",
        ws_max_size=options.max_bytes,
        ws_per_message_deflate=False,
        timeout_keep_alive=30,
    )
    http = _Http(config)
    serving = asyncio.create_task(http.serve([listener]), name="http")
    stopping = asyncio.create_task(stop.wait(), name="stop signal")
    try:
        with _quick_switches():
            return await _serve(service, status, address(listener), serving, stopping)
    finally:
        await _leave(service, http, serving, hurry)
        stopping.cancel()
        await engine.stop()


@contextlib.contextmanager
def _quick_switches() -> Iterator[None]:
    """Inside, the event loop does not wait long for a thread that computes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def _serve(
    service: Service, status: Status, where: str, serving: asyncio.Task[None], stopping: asyncio.Task[bool]
) -> int:
    engine = service.engine

    def progress(message: Loading) -> None:
        service.note_loading(message)
        status.step(message)

    loading = asyncio.create_task(engine.start(progress), name="loading")
    await asyncio.wait({loading, serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        loading.cancel()
        await asyncio.wait({loading})
        return OK if stopping.done() else FAILED
    error = loading.exception()
    if error is not None:
        if not isinstance(error, RuntimeFault):
            raise error
        status.fail(f"`{engine.linked.model}` cannot be served: {error}")
        return FAILED
    settle_garbage()
    status.loaded(engine.linked.model)
    print(f"serving {engine.linked.model} on {where}", flush=True)
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    return OK if stopping.done() else FAILED


async def _leave(service: Service, http: _Http, serving: asyncio.Task[None], hurry: asyncio.Event) -> None:
    """Stop accepting, let requests end, close connections."""
    http.should_exit = True
    draining = asyncio.create_task(service.drain(), name="drain")
    hurrying = asyncio.create_task(hurry.wait(), name="second signal")
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    service.abort("the server is shutting down")
    for task in (draining, hurrying):
        task.cancel()
    await asyncio.wait({serving}, timeout=_LEAVE_S)
    if not serving.done():
        http.force_exit = True
        await asyncio.wait({serving}, timeout=_LEAVE_S)
        serving.cancel()
    await asyncio.wait({serving, draining, hurrying})


def on_signals(stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """SIGTERM and SIGINT set `stop`, and once that is set, `hurry`."""

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
