"""`Supervisor`: starts, watches, restarts and stops the worker processes of one engine. Lives in one asyncio event loop.

    supervisor = Supervisor(linked.ranks, extra={...}, on_exit=on_exit)
    await supervisor.start()                  # rings, sockets, processes; returns at once, workers are still loading
    supervisor.port                           # the conductor's port (rank -1), connected to every worker
    supervisor.port.send(rank, supervisor.peers())          # after a start and after each restart, to every rank
    supervisor.progress(rank, "loading llm, 3 of 7")        # on `Loading`
    supervisor.ready(rank)                    # on `Ready`
    await supervisor.wait_ready(timeout_s)    # Unavailable, naming the ranks and what each is at
    supervisor.kill(rank, "silent for 20 s")  # then on_exit as for any death
    supervisor.restart(rank)                  # a task: pause, next epoch, new process
    await supervisor.stop(deadline_s)         # SIGTERM, then SIGKILL; everything is released

`on_exit(exit)` is called once per death, at once, from the event loop; by then the port is disconnected from the rank.
It is not called for processes that `stop` ends. The supervisor restarts nothing by itself.

Workers get a `launch.child.Boot` through an inherited descriptor, one thread count for all numeric libraries
(`RankLink.threads`), and a pipe that tells them when this process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from mstarc_runtime.abi.linked import RankLink
from mstarc_runtime.abi.messages import ABI, Peers
from mstarc_runtime.errors import Unavailable
from mstarc_runtime.launch.backoff import Backoff
from mstarc_runtime.launch.child import BOOT_FLAG, Boot, thread_env
from mstarc_runtime.launch.process import WorkerExit, WorkerProcess
from mstarc_runtime.transport.base import CONDUCTOR
from mstarc_runtime.transport.common import TOKEN_BYTES
from mstarc_runtime.transport.endpoint import Endpoints
from mstarc_runtime.transport.lane import lanes
from mstarc_runtime.transport.memfile import data_file
from mstarc_runtime.transport.port import Port
from mstarc_runtime.transport.ring import RingReader, RingWriter, create

__all__ = ["Supervisor", "WorkerExit", "worker_command"]

LOG = logging.getLogger("mstarc_runtime.launch")
RING_BYTES = 512 << 20  # of a pair; memory is taken for what is on its way at once
CONDUCTOR_EPOCH = 1
_KILLED_S = 5.0  # a process that SIGKILL has not ended by then hangs in the kernel

Command: TypeAlias = Callable[[RankLink, int], Sequence[str]]


def worker_command(link: RankLink, boot_fd: int) -> list[str]:
    """argv of a worker; `boot_fd` is where it finds its `Boot`."""
    return [sys.executable, "-m", "mstarc_runtime.worker", BOOT_FLAG, str(boot_fd)]


@dataclass(slots=True)
class _Worker:
    link: RankLink
    backoff: Backoff
    epoch: int = 0
    endpoint: str = ""
    process: WorkerProcess | None = None
    ready: bool = False
    at: str = "not started"
    reason: str = ""
    last: WorkerExit | None = None
    overdue: asyncio.TimerHandle | None = None
    restart: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return f"rank {self.link.rank}" + (f" ({self.link.label})" if self.link.label else "")

    @property
    def restarting(self) -> bool:
        return self.restart is not None and not self.restart.done()


class Supervisor:
    """See the module. Not thread-safe: use it from the loop that ran `start`.

    command: builds argv. extra: JSON values for `Boot.extra`. env: added to this process's environment.
    startup_s: a worker that is not ready this long after its start is killed. ring_bytes: per ordered pair, 0 = no rings.
    on_line(rank, line): output of workers; by default it goes to standard error with the rank before it.
    backoff: makes the back-off of one rank. tcp: listen on loopback TCP though sockets in a folder would work.
    """

    def __init__(
        self,
        ranks: Sequence[RankLink],
        *,
        on_exit: Callable[[WorkerExit], None],
        command: Command = worker_command,
        extra: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        startup_s: float = 600.0,
        ring_bytes: int = RING_BYTES,
        on_line: Callable[[int, str], None] | None = None,
        backoff: Callable[[], Backoff] = lambda: Backoff(time.monotonic),
        tcp: bool = False,
    ) -> None:
        self._workers = {link.rank: _Worker(link, backoff()) for link in ranks}
        if len(self._workers) != len(ranks) or CONDUCTOR in self._workers:
            raise ValueError(f"ranks are distinct and not {CONDUCTOR}: {[link.rank for link in ranks]}")
        self._on_exit = on_exit
        self._command = command
        self._extra = dict(extra or {})
        self._env = dict(env or {})
        self._startup_s = startup_s
        self._ring_bytes = ring_bytes
        self._on_line = on_line or self._print_line
        self._tcp = tcp
        self._token = secrets.token_bytes(TOKEN_BYTES)
        self._rings: dict[tuple[int, int], int] = {}  # (writer, reader) -> descriptor
        self._pipe: tuple[int, int] | None = None
        self._endpoints: Endpoints | None = None
        self._port: Port | None = None
        self._changed = asyncio.Event()
        self._stopping = False

    # ------------------------------------------------------------------------------------------------------------ state

    @property
    def port(self) -> Port:
        """The conductor's port. Unavailable before `start` and after `stop`."""
        if self._port is None:
            raise Unavailable("the workers are not started")
        return self._port

    def peers(self) -> Peers:
        """Where every rank that has been started listens, the conductor included."""
        found = {rank: (worker.endpoint, worker.epoch) for rank, worker in self._workers.items() if worker.epoch}
        return Peers({CONDUCTOR: (self.port.endpoint, CONDUCTOR_EPOCH), **found})

    def epoch(self, rank: int) -> int:
        """Epoch of the rank's last start; 0 before the first."""
        return self._workers[rank].epoch

    def alive(self, rank: int) -> bool:
        """Whether the rank's process runs."""
        return self._workers[rank].process is not None

    def pid(self, rank: int) -> int | None:
        """Process id, None while none runs."""
        process = self._workers[rank].process
        return process.pid if process is not None else None

    def progress(self, rank: int, what: str) -> None:
        """What the rank is doing during its start, for messages."""
        self._workers[rank].at = what

    def ready(self, rank: int) -> None:
        """The rank's process is ready: ends its start-up deadline. Nothing if it has died meanwhile."""
        worker = self._workers[rank]
        if worker.process is None:
            return
        worker.ready = True
        worker.at = "serving"
        worker.backoff.healthy()
        self._no_deadline(worker)
        self._changed.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Until every rank is ready. Unavailable when one is down and is not being restarted, or after `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            waiting = [worker for worker in self._workers.values() if not worker.ready]
            if not waiting:
                return
            for worker in waiting:
                if worker.process is None and not worker.restarting:
                    raise Unavailable(worker.last.text if worker.last else f"worker {worker.name} is not started")
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                states = "; ".join(f"{worker.name}: {worker.at}" for worker in waiting)
                raise Unavailable(
                    f"not all workers were ready within {timeout_s:g} s. Still waiting for {states}"
                ) from None

    # ------------------------------------------------------------------------------------------------------------ start

    async def start(self) -> None:
        """Start every worker. Unavailable if that fails; then everything is released."""
        if self._port is not None or self._stopping:
            raise Unavailable("a supervisor starts once")
        try:
            self._prepare()
            for worker in self._workers.values():
                self._spawn(worker)
        except OSError as error:
            await self.stop(0.0)
            raise Unavailable(f"the workers cannot be started: {error}") from error
        except BaseException:
            await self.stop(0.0)
            raise

    def _prepare(self) -> None:
        self._pipe = os.pipe()
        self._endpoints = Endpoints(self._tcp)
        everyone = [CONDUCTOR, *self._workers]
        if self._ring_bytes:
            for writer in everyone:
                for reader in everyone:
                    if writer != reader:
                        self._rings[writer, reader] = create(self._ring_bytes)
        writers = {rank: RingWriter(fd) for rank, fd in self._rings_of(0, CONDUCTOR).items()}
        readers = {rank: RingReader(fd) for rank, fd in self._rings_of(1, CONDUCTOR).items()}
        listener = self._endpoints.listen(CONDUCTOR, CONDUCTOR_EPOCH)
        self._port = Port(
            CONDUCTOR,
            CONDUCTOR_EPOCH,
            listener.endpoint,
            token=self._token,
            listen_fd=listener.fd,
            rings_out=writers,
            rings_in=readers,
        )

    def _rings_of(self, side: int, rank: int) -> dict[int, int]:
        """peer -> descriptor of the rings that `rank` writes (side 0) or reads (side 1)."""
        return {pair[1 - side]: fd for pair, fd in self._rings.items() if pair[side] == rank}

    def _spawn(self, worker: _Worker) -> None:
        """Start a process with the next epoch. OSError if the system refuses."""
        assert self._endpoints is not None and self._pipe is not None
        loop = asyncio.get_running_loop()
        rank = worker.link.rank
        worker.epoch += 1
        epoch = worker.epoch
        listener = self._endpoints.listen(rank, epoch)
        ours, theirs = lanes() or (None, None)
        boot_fd = -1
        try:
            lane_fd = theirs.fileno() if theirs is not None else None
            boot = self._boot(worker, listener.endpoint, listener.fd, lane_fd)
            boot_fd = data_file(msgspec.json.encode(boot))
            inherited = [boot_fd, listener.fd, boot.parent_fd, *boot.rings_in.values(), *boot.rings_out.values()]
            worker.process = WorkerProcess(
                loop,
                self._command(worker.link, boot_fd),
                {**os.environ, "PYTHONUNBUFFERED": "1", **self._env, **thread_env(worker.link.threads)},
                (*inherited, *([] if lane_fd is None else [lane_fd])),
                lambda line: self._on_line(rank, line),
                lambda status: self._exited(worker, epoch, status),
            )
        except BaseException:
            self._endpoints.remove(listener.endpoint)
            if ours is not None:
                ours.close()
            raise
        finally:
            os.close(listener.fd)
            if theirs is not None:
                theirs.close()
            if boot_fd >= 0:
                os.close(boot_fd)
        worker.endpoint = listener.endpoint
        worker.ready, worker.reason, worker.at = False, "", "starting"
        worker.overdue = loop.call_later(self._startup_s, self._late, worker, epoch)
        self.port.connect(rank, listener.endpoint, epoch, ours)

    def _boot(self, worker: _Worker, endpoint: str, listen_fd: int, lane_fd: int | None) -> Boot:
        assert self._endpoints is not None and self._pipe is not None
        link = worker.link
        return Boot(
            abi=ABI,
            rank=link.rank,
            epoch=worker.epoch,
            ranks=list(self._workers),
            device=link.device,
            threads=link.threads,
            label=link.label,
            endpoint=endpoint,
            listen_fd=listen_fd,
            lane_fd=lane_fd,
            conductor=self.port.endpoint,
            conductor_epoch=CONDUCTOR_EPOCH,
            token=self._token,
            parent_fd=self._pipe[0],
            folder=self._endpoints.folder,
            rings_out=self._rings_of(0, link.rank),
            rings_in=self._rings_of(1, link.rank),
            extra=self._extra,
        )

    # ------------------------------------------------------------------------------------------------------------ death

    def kill(self, rank: int, reason: str) -> None:
        """End the rank's process now; `on_exit` follows with this reason. Nothing if none runs."""
        worker = self._workers[rank]
        if worker.process is not None and worker.process.running:
            worker.reason = worker.reason or reason
            worker.process.signal(signal.SIGKILL)

    def _late(self, worker: _Worker, epoch: int) -> None:
        if worker.epoch == epoch and not worker.ready:
            self.kill(worker.link.rank, f"it was not ready within {self._startup_s:g} s of its start")

    def _no_deadline(self, worker: _Worker) -> None:
        if worker.overdue is not None:
            worker.overdue.cancel()
            worker.overdue = None

    def _exited(self, worker: _Worker, epoch: int, status: int) -> None:
        process, worker.process = worker.process, None
        self._no_deadline(worker)
        code, number = (status, None) if status >= 0 else (None, -status)
        tail = tuple(process.tail) if process is not None else ()
        rank = worker.link.rank
        exit = WorkerExit(rank, epoch, worker.name, code, number, worker.reason, worker.at, tail)
        worker.last, worker.ready, worker.at = exit, False, "down"
        if self._endpoints is not None:
            self._endpoints.remove(worker.endpoint)
        self._changed.set()
        if self._stopping or self._port is None:
            return
        LOG.error("%s", exit.text)
        self._port.pump()  # its last words, as far as they have come
        self._port.disconnect(rank)
        self._on_exit(exit)

    def restart(self, rank: int) -> asyncio.Task[None]:
        """Start the rank anew after a pause that doubles with each death in a row; a process that runs is killed first.

        The task is done when the process is started. A restart that is under way is not doubled. Cancelled by `stop`.
        """
        worker = self._workers[rank]
        if self._stopping or self._port is None:
            raise Unavailable(f"worker {worker.name} is not restarted: the engine is down or stopping")
        if worker.restart is None or worker.restart.done():
            worker.restart = asyncio.get_running_loop().create_task(self._restart(worker), name=f"restart-{rank}")
        return worker.restart

    async def _restart(self, worker: _Worker) -> None:
        if worker.process is not None:
            process = worker.process
            self.kill(worker.link.rank, "a restart was asked for")
            await self._ended([process], _KILLED_S)
            if worker.process is not None:
                raise Unavailable(f"worker {worker.name} (process {process.pid}) does not end: it hangs in the kernel")
        while True:
            pause = worker.backoff.pause()
            worker.at = f"down, waiting {pause:g} s before its next start"
            await asyncio.sleep(pause)
            try:
                self._spawn(worker)
                return
            except OSError as error:
                LOG.error("worker %s cannot be started: %s", worker.name, error)

    # ------------------------------------------------------------------------------------------------------------- stop

    async def stop(self, deadline_s: float = 5.0) -> list[int]:
        """End every worker and release everything. Gives the ranks that had to be killed. Idempotent.

        SIGTERM first; what still runs after `deadline_s` gets SIGKILL. Returns within `deadline_s` + about 5 s.
        """
        self._stopping = True
        tasks = [worker.restart for worker in self._workers.values() if worker.restart is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        processes = {rank: worker.process for rank, worker in self._workers.items() if worker.process is not None}
        try:
            for process in processes.values():
                process.signal(signal.SIGTERM)
            await self._ended(list(processes.values()), deadline_s)
            killed = [rank for rank, process in processes.items() if process.status is None]
            for rank in killed:
                processes[rank].signal(signal.SIGKILL)
            await self._ended([processes[rank] for rank in killed], _KILLED_S)
        finally:
            self._release(list(processes.values()))
        return killed

    @staticmethod
    async def _ended(processes: Sequence[WorkerProcess], timeout_s: float) -> None:
        """Until all have ended, or the time is over."""
        running = [asyncio.ensure_future(process.exited.wait()) for process in processes if process.status is None]
        if running:
            _, late = await asyncio.wait(running, timeout=timeout_s)
            for future in late:
                future.cancel()

    def _release(self, processes: Sequence[WorkerProcess]) -> None:
        for worker in self._workers.values():
            self._no_deadline(worker)
        for process in processes:
            process.abandon()
        if self._port is not None:
            self._port.close()
            self._port = None
        for fd in (*self._rings.values(), *(self._pipe or ())):
            os.close(fd)
        self._rings.clear()
        self._pipe = None
        if self._endpoints is not None:
            self._endpoints.close()
            self._endpoints = None

    def _print_line(self, rank: int, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            sys.stderr.write(f"[{self._workers[rank].name}] {line}\n")
