"""Faults, against a real server of the hello model: no torch, no weights, real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.harness import HELLO, Server, server

SPLIT = """
default = 0
[ranks.0]
device = "cpu"
[ranks.1]
device = "cpu"
[place]
adder = 1
"""


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    placement: Path = tmp_path_factory.mktemp("hello") / "split.toml"
    placement.write_text(SPLIT)
    with server(HELLO, str(placement)) as running:
        yield running


def ask(running: Server, start: int, steps: int) -> httpx.Response:
    body = {"inputs": {"start": start}, "params": {"max_steps": steps}}
    return httpx.post(f"{running.url}/v1/walks/sums", json=body, timeout=60)


def values(response: httpx.Response, modality: str) -> list[int]:
    return [event["value"] for event in response.json()["events"] if event["modality"] == modality]


def test_answers_over_two_ranks(hello: Server) -> None:
    response = ask(hello, 3, 5)
    assert response.status_code == 200
    assert values(response, "tensor") == [3, 4, 5, 6, 7]
    assert values(response, "scalar") == [7, 11, 7]
    assert len(hello.workers()) == 2


def test_sixty_four_at_once_are_answered_or_told_to_come_back(hello: Server) -> None:
    with ThreadPoolExecutor(64) as pool:
        responses = list(pool.map(lambda i: ask(hello, -1000 * i - 40, 40), range(64)))
    for i, response in enumerate(responses):
        assert response.status_code in (200, 429), response.text
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
        else:
            numbers = list(range(-1000 * i - 40, -1000 * i))
            assert values(response, "tensor") == numbers
    assert any(response.status_code == 200 for response in responses)
    hello.settle()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_fails_its_requests_at_once_and_comes_back(hello: Server, rank: int) -> None:
    workers = sorted(hello.workers(), key=lambda process: process.create_time())
    assert hello.get("/ready").status_code == 200
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(ask, hello, -(10**9) * i, 1000) for i in range(1, 4)]
        time.sleep(0.05)
        os.kill(workers[rank].pid, signal.SIGKILL)
        answers = [future.result(timeout=10) for future in running]
    for answer in answers:
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 503:
            assert "error" in answer.json()
    seen_down = False
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if hello.get("/ready").status_code == 200:
            break
        seen_down = True
        assert hello.get("/health").status_code == 200
        time.sleep(0.02)
    assert hello.get("/ready").status_code == 200
    assert seen_down, "/ready never went false"
    assert values(ask(hello, 1, 2), "scalar") == [3]
    hello.settle()


def test_nothing_is_left_behind(hello: Server) -> None:
    def shared() -> set[str]:
        return {name for name in os.listdir("/dev/shm") if "mstarc" in name}

    before = hello.process.pid, len(os.listdir(f"/proc/{hello.process.pid}/fd"))
    for i in range(20):
        assert ask(hello, i, 5).status_code == 200
    hello.settle()
    assert shared() == set()
    assert len(os.listdir(f"/proc/{before[0]}/fd")) <= before[1] + 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"inputs": {"start": 1}, "params": {"max_steps": -1}}, "max_steps"),
        ({"inputs": {"start": 1}, "params": {"max_step": 1}}, "max_step"),
        ({"inputs": {"start": "one"}}, "start"),
        ({"inputs": {}}, "start"),
        ({"inputs": {"start": 1, "stop": 2}}, "stop"),
    ],
)
def test_bad_requests_name_the_field(hello: Server, body: object, field: str) -> None:
    response = httpx.post(f"{hello.url}/v1/walks/sums", json=body, timeout=10)
    assert response.status_code == 400
    assert field in response.text
