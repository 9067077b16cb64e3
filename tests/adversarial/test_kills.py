"""SIGKILL at bad moments, against a real server of the hello model: nothing survives its server, and the server survives all else."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.harness import HELLO, ROOT, Server, server

SPLIT = 'default = 0\n[ranks.0]\ndevice = "cpu"\n[ranks.1]\ndevice = "cpu"\n[place]\nadder = 1\n'


@pytest.fixture
def split(tmp_path: Path) -> str:
    path = tmp_path / "split.toml"
    path.write_text(SPLIT)
    return str(path)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """The folder in which servers of this test keep their sockets; short, as socket paths have to be."""
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        yield Path(folder)


def start(split: str, sockets: Path) -> subprocess.Popen[str]:
    """A server that keeps its sockets in a folder of its own."""
    command = [sys.executable, "-m", "mstarc", "run", str(HELLO), "--port", "0", "--placement", split]
    path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_RUNTIME_DIR": str(sockets)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_gone(pids: list[int], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while left := [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]:
        assert time.monotonic() < deadline, f"processes {left} are there {within_s:g} s after their server"
        time.sleep(0.05)


def wait_ready(running: Server, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while (found := running.get("/ready")).status_code != 200:
        assert time.monotonic() < deadline, found.text
        time.sleep(0.05)


def ask(url: str, steps: int) -> int | str:
    """One request: its status, or that there was no answer."""
    body = {"inputs": {"start": 1}, "params": {"max_steps": steps}}
    try:
        return httpx.post(f"{url}/v1/walks/sums", json=body, timeout=20).status_code
    except httpx.HTTPError as error:
        return type(error).__name__


def test_killed_workers_under_load(split: str) -> None:
    """Eight kills, some of them of a worker that is just starting: every request gets an answer, and nothing is held at the end."""
    draw = random.Random(5)
    with server(HELLO, split) as running:
        statuses: set[int | str] = set()
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                statuses.add(ask(running.url, 50))

        clients = [threading.Thread(target=load) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            for kill in range(8):
                time.sleep(draw.uniform(0.05, 0.4))
                if workers := running.workers():
                    os.kill(draw.choice(workers).pid, signal.SIGKILL)
                if kill % 2:
                    wait_ready(running)
        finally:
            stop.set()
            for client in clients:
                client.join(timeout=30)
        assert not any(client.is_alive() for client in clients)
        assert statuses <= {200, 503}
        wait_ready(running)
        assert ask(running.url, 5) == 200
        running.settle()
        assert len(running.workers()) == 2


def test_a_killed_server_leaves_nothing(split: str, sockets: Path) -> None:
    process = start(split, sockets)
    try:
        assert process.stdout is not None
        running = Server(process, process.stdout.readline().split()[-1])
        pids = [worker.pid for worker in running.workers()]
        assert len(pids) == 2
        assert list(sockets.iterdir()), "the sockets are not where this test looks for them"
        busy = threading.Thread(target=ask, args=(running.url, 1000))
        busy.start()
        process.kill()
        process.wait(timeout=10)
        wait_gone(pids)
        busy.join(timeout=25)
        assert not busy.is_alive()
    finally:
        process.kill()
        process.communicate(timeout=10)
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize("after_s", [0.3, 0.8, 1.3])
def test_a_server_that_is_told_to_leave_while_it_starts(after_s: float, split: str, sockets: Path) -> None:
    process = start(split, sockets)
    try:
        time.sleep(after_s)
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        _, said = process.communicate(timeout=20)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in said
        wait_gone(pids)
    finally:
        process.kill()
        process.wait(timeout=10)
    assert list(sockets.iterdir()) == []
