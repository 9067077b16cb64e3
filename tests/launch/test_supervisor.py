"""Worker processes: start, talk, die in every way, restart, stop; nothing leaks. Children import no torch."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.abi.linked import RankLink
from mstarc_runtime.abi.messages import Finish, Freed, Items, Message, Open, Ready, Shutdown
from mstarc_runtime.errors import LoadError, Unavailable
from mstarc_runtime.launch.backoff import Backoff
from mstarc_runtime.launch.child import EXIT_ORPHAN, read_boot
from mstarc_runtime.launch.process import WorkerProcess
from mstarc_runtime.launch.supervisor import Command, Supervisor, WorkerExit, worker_command
from mstarc_runtime.transport.base import Received

DEADLINE_S = 10.0
HERE = Path(__file__).parent
RUNTIME = str(HERE.parents[1] / "runtime")


def echo(link: RankLink, boot_fd: int) -> list[str]:
    return [sys.executable, str(HERE / "echo_worker.py"), "--boot-fd", str(boot_fd)]


def python(code: str) -> Command:
    """A child that starts in a few ms and knows nothing of us."""
    return lambda link, fd: [sys.executable, "-S", "-E", "-c", textwrap.dedent(code)]


class Rig:
    """A supervisor with everything that it reports."""

    def __init__(self, ranks: int = 2, command: Command = echo, **options: Any) -> None:
        self.exits: list[WorkerExit] = []
        self.messages: list[Received] = []
        self.lines: list[tuple[int, str]] = []
        self.on_exit: Callable[[WorkerExit], None] = lambda exit: None
        options.setdefault("ring_bytes", 1 << 16)
        options.setdefault("env", {"PYTHONPATH": RUNTIME})
        options.setdefault("backoff", lambda: Backoff(time.monotonic, first_s=0.01, longest_s=0.05))
        self.supervisor = Supervisor(
            [RankLink(rank=rank, threads=rank + 1, label=f"w{rank}") for rank in range(ranks)],
            on_exit=self._exit,
            command=command,
            on_line=lambda rank, line: self.lines.append((rank, line)),
            **options,
        )

    def _exit(self, exit: WorkerExit) -> None:
        self.exits.append(exit)
        self.on_exit(exit)

    def _deliver(self, received: Sequence[Received]) -> None:
        for rank, message in received:
            self.messages.append((rank, message))
            if isinstance(message, Ready):
                assert message.epoch == self.supervisor.epoch(rank)
                self.supervisor.ready(rank)

    async def up(self) -> Supervisor:
        await self.supervisor.start()
        self.supervisor.port.attach(self._deliver)
        await self.supervisor.wait_ready(DEADLINE_S)
        return self.supervisor

    def do(self, rank: int, what: str) -> None:
        assert self.supervisor.port.send(rank, Open(0, {"do": what}, {}, 0, []))

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    await asyncio.sleep(0.002)
        except TimeoutError:
            raise AssertionError(
                f"exits {self.exits}, messages {self.messages[-5:]}, lines {self.lines[-5:]}"
            ) from None

    async def got(self, rank: int, message: Message) -> None:
        await self.until(lambda: (rank, message) in self.messages)


@pytest.fixture
async def rig() -> AsyncIterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(*args: Any, **options: Any) -> Rig:
        made.append(Rig(*args, **options))
        return made[-1]

    yield make
    for each in made:
        await each.supervisor.stop(0.0)


Make = Callable[..., Rig]


def state_of(pid: int) -> str:
    """The process's state letter, "" if there is none."""
    try:
        return re.sub(r".*\) ", "", Path(f"/proc/{pid}/stat").read_text())[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def vanished(pid: int) -> bool:
    return state_of(pid) in ("", "Z")


# ------------------------------------------------------------------------------------------------------------- start, talk


@pytest.mark.parametrize("tcp", [False, True])
async def test_workers_talk_to_the_conductor_and_to_each_other(rig: Make, tcp: bool) -> None:
    r = rig(tcp=tcp)
    supervisor = await r.up()
    ready = {rank: message.pools for rank, message in r.messages if isinstance(message, Ready)}
    assert {rank: pools["threads"][0] for rank, pools in ready.items()} == {0: 1, 1: 2}
    assert all(pools["torch"][0] == 0 and pools["pid"][0] == supervisor.pid(rank) for rank, pools in ready.items())
    assert {pools["rings"][0] for pools in ready.values()} == {4}  # one per mapping: two peers, both ways
    big = np.arange(5000.0)
    for rank in (0, 1):
        assert supervisor.port.send(rank, supervisor.peers())
        assert supervisor.port.send(rank, Items(1, "s", 0, 0, [big]))
    for rank in (0, 1):
        await r.until(lambda rank=rank: any(isinstance(m, Items) and p == rank for p, m in r.messages))  # type: ignore[misc]
    assert all(np.array_equal(m.values[0], big) for _, m in r.messages if isinstance(m, Items))
    assert supervisor.port.codec.ring_bytes == 2 * big.nbytes
    r.do(0, "forward 1")
    await r.got(1, Items(0, "s", 0, 0, [1.5]))  # by way of rank 1


async def test_rank_1_restarts_and_rank_0_reaches_it(rig: Make) -> None:
    r = rig()
    supervisor = await r.up()
    r.on_exit = lambda exit: void(supervisor.restart(exit.rank))
    for rank in (0, 1):
        supervisor.port.send(rank, supervisor.peers())
    os.kill(supervisor.pid(1) or 0, signal.SIGKILL)
    await r.until(lambda: bool(r.exits))
    await supervisor.wait_ready(DEADLINE_S)
    assert supervisor.epoch(1) == 2 and supervisor.epoch(0) == 1
    for rank in (0, 1):
        supervisor.port.send(rank, supervisor.peers())
    big = np.arange(5000.0)
    supervisor.port.send(1, Items(2, "s", 0, 0, [big]))
    r.do(0, "forward 1")
    r.do(1, "forward 0")
    await r.got(1, Items(0, "s", 0, 0, [1.5]))
    await r.got(0, Items(1, "s", 0, 0, [1.5]))
    await r.until(
        lambda: any(isinstance(m, Items) and m.request == 2 and len(m.values[0]) == 5000 for _, m in r.messages)
    )
    assert supervisor.port.faults() == []


def void(_: object) -> None: ...


# ------------------------------------------------------------------------------------------------------------------ death


async def test_a_crash_is_known_with_its_signal_and_the_other_rank_goes_on(rig: Make) -> None:
    r = rig()
    supervisor = await r.up()
    r.do(0, "segfault")
    await r.until(lambda: bool(r.exits))
    (exit,) = r.exits
    assert (exit.rank, exit.epoch, exit.code, exit.signal) == (0, 1, None, signal.SIGSEGV)
    assert "rank 0 (w0)" in exit.text and "SIGSEGV" in exit.text and "serving" in exit.text
    assert not supervisor.alive(0) and supervisor.alive(1)
    assert not supervisor.port.send(0, Finish(1))
    supervisor.port.send(1, Finish(2))
    await r.got(1, Freed(2))


async def test_last_words_and_last_lines(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc_runtime.launch.process._LAST_WORDS_S", 1.0)  # also on a machine that is very busy
    r = rig(1)
    await r.up()
    order: list[str] = []
    r.on_exit = lambda exit: order.append("freed" if (0, Freed(-5)) in r.messages else "too early")
    r.do(0, "exit")
    await r.until(lambda: bool(r.exits))
    assert order == ["freed"]  # a message sent before the exit comes before `on_exit`
    assert r.exits[0].code == 3 and r.exits[0].tail[-1] == "leaving on purpose"
    assert r.exits[0].text.endswith("\n  leaving on purpose")


async def test_what_a_crashed_worker_had_sent_comes_before_its_death(rig: Make) -> None:
    r = rig(1)
    supervisor = await r.up()
    order: list[str] = []
    r.on_exit = lambda exit: order.append("freed" if (0, Freed(-7)) in r.messages else "too early")
    process = supervisor._workers[0].process
    assert process is not None
    r.do(0, "speak and crash")
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # the event loop stands still
    until = time.monotonic() + DEADLINE_S
    while not supervisor.port._pending():
        assert time.monotonic() < until
        time.sleep(0.001)
    process._look()
    assert order == ["freed"]


@pytest.mark.parametrize(("end", "status"), [("os._exit(5)", 5), ("os.kill(os.getpid(), 9)", -9)])
async def test_output_before_a_death_is_read_though_the_loop_was_busy(end: str, status: int) -> None:
    lines: list[str] = []
    statuses: list[int] = []
    argv = [sys.executable, "-S", "-E", "-c", f"import os; os.write(1, b'one\\ntwo'); {end}"]
    process = WorkerProcess(asyncio.get_running_loop(), argv, os.environ, [], lines.append, statuses.append)
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        process._look()
        assert not process.running
        assert statuses == ([] if status > 0 else [-9])  # an orderly end leaves a moment for messages
        await asyncio.wait_for(process.exited.wait(), DEADLINE_S)
    finally:
        process.abandon()
    assert (lines, statuses) == (["one", "two"], [status])


async def test_output_is_passed_on_and_the_last_50_lines_are_kept(rig: Make) -> None:
    code = """
    import os, sys
    for i in range(3000): print("line", i)
    sys.stdout.flush()
    os.write(2, b"x" * 20000 + b"\\n\\xff\\xfe\\n" + b"no newline at the end")
    """
    r = rig(1, python(code))
    await r.supervisor.start()
    await r.until(lambda: bool(r.exits))
    lines = [line for _, line in r.lines]
    assert lines[:3000] == [f"line {i}" for i in range(3000)]
    assert [len(line) for line in lines[3000:3003]] == [8192, 8192, 20000 - 2 * 8192]
    assert lines[3003:] == ["\ufffd\ufffd", "no newline at the end"]
    assert list(r.exits[0].tail) == lines[-50:]


async def test_lines_go_to_standard_error_with_the_rank(capsys: pytest.CaptureFixture[str]) -> None:
    exits: list[WorkerExit] = []
    supervisor = Supervisor(
        [RankLink(rank=4, label="mimi")], on_exit=exits.append, command=python("print('hi')"), ring_bytes=0
    )
    await supervisor.start()
    async with asyncio.timeout(DEADLINE_S):
        while not exits:
            await asyncio.sleep(0.005)
    await supervisor.stop(0.0)
    assert capsys.readouterr().err == "[rank 4 (mimi)] hi\n"


async def test_children_of_a_dead_worker_die_too(rig: Make) -> None:
    code = """
    import subprocess, sys, os, time
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    print("child", child.pid, flush=True)
    time.sleep(600)
    """
    r = rig(1, python(code))
    await r.supervisor.start()
    await r.until(lambda: any("child" in line for _, line in r.lines))
    child = int(r.lines[-1][1].split()[1])
    assert state_of(child) != ""
    os.kill(r.supervisor.pid(0) or 0, signal.SIGKILL)  # only the leader
    await r.until(lambda: bool(r.exits) and vanished(child))


async def test_death_is_noticed_without_pidfd(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    r = rig(2, python("import time; time.sleep(600)"))
    await r.supervisor.start()
    os.kill(r.supervisor.pid(1) or 0, signal.SIGKILL)
    await r.until(lambda: bool(r.exits))
    assert [(exit.rank, exit.signal) for exit in r.exits] == [(1, 9)]
    assert await r.supervisor.stop(DEADLINE_S) == []


async def test_kill_gives_its_reason_and_works_on_a_stopped_process(rig: Make) -> None:
    r = rig(1, python("import time; time.sleep(600)"))
    await r.supervisor.start()
    os.kill(r.supervisor.pid(0) or 0, signal.SIGSTOP)
    r.supervisor.kill(0, "silent for 20 s")
    r.supervisor.kill(0, "another reason")
    await r.until(lambda: bool(r.exits))
    assert r.exits[0].reason == "silent for 20 s" and "SIGKILL (silent for 20 s)" in r.exits[0].text
    r.supervisor.kill(0, "nothing runs")


# ---------------------------------------------------------------------------------------------------------------- start-up


async def test_a_start_that_takes_too_long_says_what_it_was_at(rig: Make) -> None:
    r = rig(1, python("import time; time.sleep(600)"), startup_s=0.3)
    await r.supervisor.start()
    r.supervisor.progress(0, "loading llm, 3 of 7")
    with pytest.raises(Unavailable, match=r"rank 0 \(w0\).*not ready within 0.3 s.*loading llm, 3 of 7"):
        await r.supervisor.wait_ready(DEADLINE_S)
    assert r.exits[0].signal == signal.SIGKILL


async def test_a_ready_worker_has_no_start_up_deadline(rig: Make) -> None:
    r = rig(1, python("import time; time.sleep(600)"), startup_s=0.15)
    await r.supervisor.start()
    r.supervisor.ready(0)
    await asyncio.sleep(0.4)
    assert r.exits == [] and r.supervisor.alive(0)


async def test_waiting_for_ready_ends_with_the_names_of_who_is_late(rig: Make) -> None:
    r = rig(2, python("import time; time.sleep(600)"))
    await r.supervisor.start()
    r.supervisor.ready(0)
    r.supervisor.progress(1, "loading mimi")
    with pytest.raises(Unavailable, match=r"within 0.1 s. Still waiting for rank 1 \(w1\): loading mimi$"):
        await r.supervisor.wait_ready(0.1)


async def test_waiting_for_ready_ends_at_once_when_a_worker_dies(rig: Make) -> None:
    r = rig(2, python("import sys; sys.exit('no such checkpoint')"))
    await r.supervisor.start()
    with pytest.raises(Unavailable, match=r"ended with status 1.*\n  no such checkpoint"):
        await r.supervisor.wait_ready(600.0)


async def test_a_command_that_does_not_exist(rig: Make) -> None:
    before = len(os.listdir("/proc/self/fd"))
    r = rig(2, lambda link, fd: ["/no/such/program"])
    with pytest.raises(Unavailable, match="/no/such/program"):
        await r.supervisor.start()
    with pytest.raises(Unavailable):
        _ = r.supervisor.port
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_start_data_is_checked() -> None:
    with pytest.raises(LoadError, match="--boot-fd"):
        read_boot(["--rank", "0"])
    read, write = os.pipe()
    with pytest.raises(LoadError, match="no start data"):
        read_boot(["--boot-fd", str(read)])
    os.close(read)
    os.close(write)
    assert worker_command(RankLink(rank=0), 5)[1:] == ["-m", "mstarc_runtime.worker", "--boot-fd", "5"]


def test_ranks_must_be_distinct() -> None:
    for ranks in ([0, 0], [-1, 0]):
        with pytest.raises(ValueError, match="distinct"):
            Supervisor([RankLink(rank=rank) for rank in ranks], on_exit=void)


# ----------------------------------------------------------------------------------------------------------------- restart


async def test_a_worker_that_dies_again_and_again(rig: Make) -> None:
    pauses: list[float] = []

    class Noted(Backoff):
        def pause(self) -> float:
            pauses.append(super().pause())
            return pauses[-1]

    r = rig(1, python("raise SystemExit(4)"), backoff=lambda: Noted(time.monotonic, first_s=0.005, longest_s=0.02))
    r.on_exit = lambda exit: void(r.supervisor.restart(0)) if exit.epoch < 6 else None
    await r.supervisor.start()
    await r.until(lambda: len(r.exits) == 6)
    assert [exit.epoch for exit in r.exits] == [1, 2, 3, 4, 5, 6]
    assert pauses == [0.005, 0.01, 0.02, 0.02, 0.02]


async def test_a_restart_kills_first_and_is_not_doubled(rig: Make) -> None:
    r = rig(1, python("import time; time.sleep(600)"))
    await r.supervisor.start()
    old = r.supervisor.pid(0)
    r.on_exit = lambda exit: void(r.supervisor.restart(0))
    first = r.supervisor.restart(0)
    assert r.supervisor.restart(0) is first
    await asyncio.wait_for(first, DEADLINE_S)
    assert (r.supervisor.epoch(0), len(r.exits)) == (2, 1)
    assert r.supervisor.pid(0) not in (None, old)
    assert r.exits[0].reason == "a restart was asked for"


async def test_a_failed_start_is_tried_again(rig: Make) -> None:
    works = python("import time; time.sleep(600)")
    tries = 0

    def flaky(link: RankLink, fd: int) -> Sequence[str]:
        nonlocal tries
        tries += 1
        return ["/no/such/program"] if tries in (2, 3) else works(link, fd)

    r = rig(1, flaky)
    await r.supervisor.start()
    await asyncio.wait_for(r.supervisor.restart(0), DEADLINE_S)
    assert tries == 4 and r.supervisor.alive(0)


# -------------------------------------------------------------------------------------------------------------------- stop


async def test_an_orderly_stop_calls_no_on_exit(rig: Make) -> None:
    r = rig()
    supervisor = await r.up()
    pids = [supervisor.pid(0), supervisor.pid(1)]
    folder = Path(supervisor.port.endpoint.removeprefix("ipc://")).parent
    assert folder.is_dir()
    for rank in (0, 1):
        supervisor.port.send(rank, Shutdown())
    assert await supervisor.stop(DEADLINE_S) == []
    assert r.exits == [] and all(state_of(pid or 0) == "" for pid in pids)
    assert not folder.exists()
    assert await supervisor.stop(DEADLINE_S) == []
    with pytest.raises(Unavailable):
        supervisor.restart(0)
    with pytest.raises(Unavailable):
        await supervisor.start()


async def test_a_worker_that_ignores_sigterm_is_killed(rig: Make) -> None:
    r = rig()
    supervisor = await r.up()
    pid = supervisor.pid(1)
    r.do(1, "hang")
    await r.got(1, Freed(-6))
    assert await supervisor.stop(0.2) == [1]
    assert state_of(pid or 0) == ""


async def test_stop_cancels_a_pending_restart(rig: Make) -> None:
    r = rig(1, python("raise SystemExit(4)"), backoff=lambda: Backoff(time.monotonic, first_s=600.0))
    r.on_exit = lambda exit: void(r.supervisor.restart(0))
    await r.supervisor.start()
    await r.until(lambda: bool(r.exits))
    await asyncio.wait_for(r.supervisor.stop(1.0), DEADLINE_S)
    assert r.supervisor.epoch(0) == 1


async def test_twenty_cycles_leak_nothing() -> None:
    async def cycle(kill: bool) -> list[int]:
        r = Rig(2, python("import time; time.sleep(600)"))
        await r.supervisor.start()
        pids = [r.supervisor.pid(rank) or 0 for rank in (0, 1)]
        if kill:
            os.kill(pids[0], signal.SIGKILL)
            await r.until(lambda: bool(r.exits))
            await asyncio.wait_for(r.supervisor.restart(0), DEADLINE_S)
            pids.append(r.supervisor.pid(0) or 0)
        await r.supervisor.stop(DEADLINE_S)
        return pids

    await cycle(True)
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    for turn in range(20):
        pids = await cycle(turn % 2 == 0)
        assert [state_of(pid) for pid in pids] == [""] * len(pids)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before
    children = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "stat="], capture_output=True, text=True, timeout=10
    )
    assert "Z" not in children.stdout


# ----------------------------------------------------------------------------------------------------------------- orphans

PARENT = """
import asyncio, sys
sys.path.insert(0, {here!r})
import test_supervisor as t
async def main():
    r = t.Rig(2, extra={extra!r})
    supervisor = await r.up()
    print(supervisor.pid(0), supervisor.pid(1), supervisor.port.endpoint, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("kill", [True, False])
def test_workers_die_with_a_killed_parent(kill: bool) -> None:
    """By the watching thread, or by a loop that polls the pipe itself. The folder of sockets goes, too, with the former."""
    code = PARENT.format(here=str(HERE), extra={"kill": kill})
    env = {**os.environ, "PYTHONPATH": RUNTIME}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        words = parent.stdout.readline().split()
        pids, folder = [int(word) for word in words[:2]], Path(words[2].removeprefix("ipc://")).parent
        assert all(state_of(pid) in ("S", "R") for pid in pids) and folder.is_dir()
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + DEADLINE_S
    while not all(vanished(pid) for pid in pids):
        assert time.monotonic() < until, f"{[state_of(pid) for pid in pids]}"
        time.sleep(0.01)
    if kill:
        assert not folder.exists()
    else:
        for entry in folder.iterdir():
            entry.unlink()
        folder.rmdir()


async def test_a_busy_worker_dies_with_its_parent_too() -> None:
    """The watching thread ends a process whose main thread never looks. Status EXIT_ORPHAN."""
    code = """
import sys, time
from types import SimpleNamespace
from mstarc_runtime.launch.child import ParentWatch
ParentWatch(SimpleNamespace(parent_fd=int(sys.argv[1]), folder=""))
print("up", flush=True)
end = time.monotonic() + 60
while time.monotonic() < end: sum(range(1000))
"""
    read, write = os.pipe()
    statuses: list[int] = []
    lines: list[str] = []
    argv = [sys.executable, "-c", code, str(read)]
    env = {**os.environ, "PYTHONPATH": RUNTIME}
    process = WorkerProcess(asyncio.get_running_loop(), argv, env, [read], lines.append, statuses.append)
    os.close(read)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not lines:
                await asyncio.sleep(0.01)
            os.close(write)
            await process.exited.wait()
    finally:
        process.abandon()
    assert statuses == [EXIT_ORPHAN]
