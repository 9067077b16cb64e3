"""The soak: mixed requests of several models at once, with cancels, clients that leave and workers that are killed.

Every request ends within its time, in one of the ways that were its due; what it gave until then is what it gives alone; and when all
is over nothing is held: no page, session, stream, file descriptor or shared memory.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from mstarc_runtime.errors import Busy, RequestFailed, Unavailable
from mstarc_runtime.serving.tensors import Form
from mstarc_runtime.serving.walks import shown
from tests.serving.robot import Socket, packed, unpacked
from tests.soak.fleet import Case, Member, events_of, faults_of, fleet

END_S = 90.0  # a request that has not ended by then hangs
_MSGPACK = {"content-type": "application/msgpack"}
WORKER_GAUGES = ("requests", "walks", "streams", "pages", "held_messages", "swap_waiting", "swap_bytes")
_LOST = (503, 429)  # what a request may meet whose worker was killed, or that came while one was starting


@dataclass(slots=True)
class Report:
    """What happened. `wrong` must be empty."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    kills: int = 0
    seconds: float = 0.0
    swapped: float = 0.0  # bytes that the workers moved to the host, before the kills or since the last of them
    held: dict[str, tuple[float, float]] = field(default_factory=dict)  # what -> before, after

    def lines(self) -> list[str]:
        """For a person."""
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        held = ", ".join(f"{what} {before:g} -> {after:g}" for what, (before, after) in self.held.items())
        return [
            f"{sum(self.ends.values())} requests in {self.seconds:.0f} s, {self.kills} kills: {ends}",
            f"{self.swapped / 2**20:.2f} MB swapped out",
            held,
            *self.wrong,
        ]


async def soak(
    names: list[str],
    folder: Path,
    requests: int,
    seed: int,
    at_once: int = 8,
    kill_every: int = 60,
    full: bool = False,
) -> Report:
    """Run it. kill_every: requests between two kills of a worker, on average; full: each KV pool holds one request alone."""
    report = Report()
    async with fleet(names, folder, full) as members:
        await _round(members, report, random.Random(seed), requests // 10, at_once, 0)  # everything has been used once
        before = await _held(members)
        report.swapped = _swapped(members)
        start = time.monotonic()
        await _round(members, report, random.Random(seed + 1), requests - requests // 10, at_once, kill_every)
        report.seconds = time.monotonic() - start
        after = await _held(members)
        report.held = {what: (before[what], after[what]) for what in before}
        report.swapped = max(report.swapped, _swapped(members))
        _judge(report)
        if full and not report.swapped:
            report.wrong.append("no page was swapped out")
    return report


async def _round(
    members: list[Member], report: Report, chance: random.Random, requests: int, at_once: int, kill_every: int
) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with places:
            member = chance.choice(members)
            if kill_every and chance.random() < 1 / kill_every:
                _kill(member, report, chance)
            await _request(member, chance.choice(member.cases), random.Random(chance.random()), report)

    async with asyncio.TaskGroup() as group:
        for number in range(requests):
            group.create_task(one(number))


def _kill(member: Member, report: Report, chance: random.Random) -> None:
    """SIGKILL to a worker of the member."""
    workers = _workers(member)
    if workers:
        os.kill(chance.choice(workers).pid, signal.SIGKILL)
        report.kills += 1


def _workers(member: Member) -> list[psutil.Process]:
    found = []
    for rank in member.engine.linked.ranks:
        pid = member.engine.cluster.supervisor.pid(rank.rank)  # type: ignore[attr-defined]
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [] if pid is None else [psutil.Process(pid)]
    return found


# ------------------------------------------------------------------------------------------------------------- one request


async def _request(member: Member, case: Case, chance: random.Random, report: Report) -> None:
    """One request over one of the ways in, with a fate drawn beforehand; notes how it ended."""
    ways = [_by_engine, _by_stream, _whole]
    if member.name == "pi05":
        ways.append(_by_socket)
    way = chance.choice(ways)
    case = for_robots(case) if way is _by_socket else case
    what = f"{member.name} {case.request} {way.__name__}"
    deaths, up = member.engine.counters["restarts"], member.engine.ready
    try:
        async with asyncio.timeout(END_S) as limit:
            end, found, whole = await way(member, case, chance)
    except Exception as error:
        late = f"has not ended after {END_S:g} s"
        report.wrong.append(f"{what}: {late if limit.expired() else f'{type(error).__name__}: {error}'}")
        return
    difference = case.difference(found, whole)
    if difference:
        report.wrong.append(f"{what} ({end}): {difference}")
    if end.startswith("lost") and up and member.engine.counters["restarts"] == deaths:
        report.wrong.append(f"{what}: {end}, and no worker has died")
    report.ends[end.partition(":")[0]] += 1


Ended = tuple[str, dict[str, list[Any]], bool]  # how, the events by modality, whether they are all


async def _by_engine(member: Member, case: Case, chance: random.Random) -> Ended:
    """Without HTTP; cancelled after some events or some time, one time in three."""
    found: dict[str, list[Any]] = {}
    inputs = _inputs(member, case)
    most = chance.choice([0, 1, 3, 10**9, 10**9, 10**9])
    try:
        run = await member.engine.submit(case.request, inputs, case.params, seed=case.seed)
    except (Busy, Unavailable) as error:
        return f"lost: {error}", {}, False
    count = 0
    if most == 0:
        asyncio.get_running_loop().call_later(chance.random() * 0.05, run.cancel)
    try:
        async for event in run.events():
            found.setdefault(event.modality, []).append(shown(event, Form(binary=True))["value"])
            count += 1
            if count == most:
                run.cancel()
    except RequestFailed as error:
        if error.status == 499 and most < 10**9:
            return "cancelled", _values(found), False
        if error.status in _LOST:
            return f"lost: {error}", _values(found), False
        raise
    return "ok", _values(found), True


def _values(found: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Events as a client reads them."""
    return {name: [unpacked(packed({"x": item}))["x"] for item in items] for name, items in found.items()}


def _inputs(member: Member, case: Case) -> dict[str, Any]:
    from mstarc_runtime.serving.walks import read_inputs

    return read_inputs(member.engine.entries[case.request], dict(case.inputs))


async def _whole(member: Member, case: Case, chance: random.Random) -> Ended:
    """One answer over HTTP; the client gives up before it comes, one time in four."""
    patience = chance.choice([0.005, None, None, None])
    async with httpx.AsyncClient(timeout=END_S) as http:
        asked = http.post(f"{member.url}/v1/walks/{case.request}", content=case.body(False), headers=_MSGPACK)
        try:
            answer = await asyncio.wait_for(asked, patience)
        except TimeoutError:
            return "left", {}, False
    if answer.status_code in _LOST:
        return f"lost: {faults_of(answer.text)}", {}, False
    assert answer.status_code == 200, answer.text
    return "ok", _by_modality(events_of(answer.content)), True


async def _by_stream(member: Member, case: Case, chance: random.Random) -> Ended:
    """Server-sent events as they come; the client leaves after the first of them, one time in three."""
    leaves = chance.random() < 1 / 3
    lines: list[str] = []
    async with (
        httpx.AsyncClient(timeout=END_S) as http,
        http.stream(
            "POST",
            f"{member.url}/v1/walks/{case.request}",
            content=case.body(True),
            headers={**_MSGPACK, "accept": "application/json"},
        ) as answer,
    ):
        if answer.status_code != 200:
            told = faults_of((await answer.aread()).decode())
            assert answer.status_code in _LOST, told
            return f"lost: {told}", {}, False
        async for line in answer.aiter_lines():
            lines += [line.removeprefix("data: ")] if line else []
            if leaves and lines:
                return "left", {}, False
    done = lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[: -1 if done else None]]
    last = events.pop()
    found = _by_modality([_from_json(event) for event in events])
    if done:
        assert "outcome" in last, last
        return "ok", found, True
    told = str(last["error"]["message"])
    assert "was lost" in told or "is not running" in told, told
    return f"lost: {told}", found, False


def _from_json(event: dict[str, Any]) -> dict[str, Any]:
    """An event with its samples as bytes."""
    value = base64.b64decode(event["value"]) if event["modality"] == "audio" else event["value"]
    return {**event, "value": value}


async def _by_socket(member: Member, case: Case, chance: random.Random) -> Ended:
    """A robot's socket; it leaves while its request runs, one time in three."""
    cameras = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    observed = {
        "images": dict(zip(cameras, case.inputs["images"], strict=False)),
        "prompt": case.inputs["task"],
        "state": case.inputs["state"],
        "params": dict(case.params),
        "seed": case.seed,
    }
    socket = Socket(member.app)
    await socket.accepted(END_S)
    try:
        if chance.random() < 1 / 3:
            socket.send(packed(observed))
            await asyncio.sleep(chance.random() * 0.1)
            return "left", {}, False
        answer = await socket.answer(packed(observed), END_S)
        if isinstance(answer, str):
            told = faults_of(answer)
            assert json.loads(answer)["error"]["code"] in ("unavailable", "overloaded"), told
            return f"lost: {told}", {}, False
        return "ok", {"action": [answer["actions"]]}, True
    finally:
        await socket.leave()


def for_robots(case: Case) -> Case:
    """The case as a robot sees it: actions of its own width."""
    wanted = {"action": [np.asarray(chunk)[:, :7] for chunk in case.wanted["action"]]}
    return Case(case.request, case.inputs, case.params, case.seed, wanted)


def _by_modality(events: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for event in events:
        found.setdefault(event["modality"], []).append(event["value"])
    return found


# ------------------------------------------------------------------------------------------------------------ what is held


async def _held(members: list[Member]) -> dict[str, float]:
    """What this process and the workers hold once nothing runs. Fails if something does not end within a minute."""
    async with asyncio.timeout(60):
        while busy := [told for member in members for told in _busy(member)]:
            await asyncio.sleep(0.2)
            assert all(not member.serving.done() for member in members), busy
    await asyncio.sleep(1.5)  # reports of the workers come once a second
    own, workers = psutil.Process(), [worker for member in members for worker in _workers(member)]
    return {
        "descriptors": own.num_fds(),
        "threads": own.num_threads(),
        "tasks": len(asyncio.all_tasks()),
        "workers": len(workers),
        "descriptors of workers": sum(worker.num_fds() for worker in workers),
        "files of shared memory": len(os.listdir("/dev/shm")),
        "MB": own.memory_info().rss / 2**20,
        "MB of workers": sum(worker.memory_info().rss for worker in workers) / 2**20,
    }


def _swapped(members: list[Member]) -> float:
    """Bytes that the workers have moved to the host since they were started."""
    gauges = [values for member in members for values in member.engine.worker_gauges.values()]
    return sum(values.get("swap_out_bytes", 0.0) for values in gauges)


def _busy(member: Member) -> list[str]:
    """What a member still holds, in words."""
    if not member.engine.ready:
        return [f"{member.name} is not ready"]
    held = {name: value for name, value in member.engine.gauges().items() if value}
    for rank, values in member.engine.worker_gauges.items():
        held |= {f"rank {rank} {name}": value for name, value in values.items() if value and name in WORKER_GAUGES}
    return [f"{member.name}: {held}"] if held else []


def _judge(report: Report) -> None:
    """Note what is held more than before. Memory may settle a little higher: allocators keep pages."""
    slack = {"MB": 64.0, "MB of workers": 256.0, "threads": 2.0}
    for what, (before, after) in report.held.items():
        if after > before + slack.get(what, 0.0):
            report.wrong.append(f"{what}: {before:g} before, {after:g} after")
    if not report.ends["ok"]:
        report.wrong.append("no request has ended well")
