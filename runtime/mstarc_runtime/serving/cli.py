"""What `mstarc run` and `mstarc call` call, with a linked program in hand. Both give an exit status.

0: done (for a server: it ended in order). 1: it failed. 2: the call was wrong. 130: interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import DEADLINE_S, Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.errors import BadRequest, RuntimeFault
from mstarc_runtime.package import load_conductor
from mstarc_runtime.serving.body import MAX_BYTES
from mstarc_runtime.serving.call import Call, Telling, call_engine, prepare
from mstarc_runtime.serving.server import FAILED, OK, listen, on_signals, serve
from mstarc_runtime.serving.service import Options
from mstarc_runtime.serving.surface import chat_surface, text_decoder
from mstarc_runtime.serving.terminal import Status
from mstarc_runtime.serving.text import reader_of

WRONG, INTERRUPTED = 2, 130
KEY_VARIABLE = "MSTARC_API_KEY"


def run_server(
    linked: Linked,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    api_key: str | None = None,
    deadline_s: float = DEADLINE_S,
    max_bytes: int = MAX_BYTES,
    grace_s: float = 8.0,
) -> int:
    """Serve until a signal comes. Prints `serving MODEL on http://HOST:PORT` once ready; port 0 takes a free one.

    api_key: what clients must send; None = from the environment variable MSTARC_API_KEY, "" = none.
    """
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    status = Status()
    key = os.environ.get(KEY_VARIABLE, "") if api_key is None else api_key
    if not key and not _is_loopback(host):
        status.say(f"warning: {host} can be reached from other machines and no API key is set ({KEY_VARIABLE})")
    try:
        listener = listen(host, port)
    except (OSError, OverflowError) as error:
        status.fail(f"cannot listen on {host}:{port}: {error}")
        return FAILED
    try:
        return asyncio.run(_serve(linked, listener, Options(key, max_bytes, deadline_s, grace_s)))
    except RuntimeFault as error:
        status.fail(str(error))
        return FAILED
    finally:
        listener.close()


async def _serve(linked: Linked, listener: socket.socket, options: Options) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    on_signals(stop, hurry)
    return await serve(make_engine(linked), listener, options, stop, hurry)


def make_engine(linked: Linked) -> Engine:
    """An engine whose ranks are processes of this machine, not yet started. Raises LoadError."""
    return Engine(linked, load_conductor(linked), ProcessCluster(linked))


def call_once(
    linked: Linked,
    *,
    inputs: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
    wants: Iterable[str] = (),
    output: Path | None = None,
    request: str | None = None,
    text: str | None = None,
    audio: Path | None = None,
    seed: int | None = None,
    deadline_s: float = DEADLINE_S,
) -> int:
    """Run one request on worker processes started for it. Text goes to stdout as it comes, sound or arrays to `output`, times to stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    call = Call(inputs or {}, params or {}, frozenset(wants), request, text, audio, output, seed, deadline_s)
    status = Status()
    why = "" if output is None else _not_writable(output.absolute())
    if why:
        status.fail(why)
        return WRONG
    try:
        asyncio.run(_call(linked, call, status))
    except BadRequest as error:
        status.fail(str(error))
        return WRONG
    except RuntimeFault as error:
        status.fail(str(error))
        return FAILED
    except asyncio.CancelledError:
        status.fail("interrupted")
        return INTERRUPTED
    return OK


async def _call(linked: Linked, call: Call, status: Status) -> None:
    """Start, run, stop. SIGINT and SIGTERM cancel it wherever it is; what was started is stopped all the same."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    engine = make_engine(linked)
    surface = chat_surface(linked, engine.program, engine.externs)
    try:
        prepared = prepare(engine, surface, call)  # before the weights: what is wrong here is told at once
        await engine.start(status.step)
        status.loaded(linked.model)
        reader = reader_of(text_decoder(linked, engine.externs))
        await call_engine(engine, prepared, call, status, Telling(surface, reader=reader))
    finally:
        await engine.stop()


def _not_writable(path: Path) -> str:
    """Why a file cannot be written, as far as that can be told before; else ""."""
    if not path.parent.is_dir():
        return f"{path.parent} is not a folder"
    if path.is_dir():
        return f"{path} is a folder; name a file"
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"{path} cannot be written: permission denied"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


__all__ = ["call_once", "make_engine", "run_server"]
