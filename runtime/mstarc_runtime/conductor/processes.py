"""A cluster of worker processes on this host: `engine.Cluster` over the supervisor and the ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import Fatal, Loading, Message, Ready, Shutdown
from mstarc_runtime.launch.child import EXIT_FATAL
from mstarc_runtime.launch.lifesign import LifeSign
from mstarc_runtime.launch.supervisor import Supervisor, WorkerExit
from mstarc_runtime.transport.base import Received

LEAVE_S = 3.0  # an idle worker leaves at once; one inside a long op or extern is ended: nothing that it would still do is kept
SILENT_S = 120.0  # longer than the longest op or step of loading: a worker that says nothing for so long hangs


class ProcessCluster:
    """Starts one process per rank, restarts what dies, and delivers messages on the event loop."""

    def __init__(self, linked: Linked, env: Mapping[str, str] | None = None, silent_s: float = SILENT_S) -> None:
        extra: dict[str, Any] = {"linked": msgspec.to_builtins(linked)}
        self.supervisor = Supervisor(linked.ranks, on_exit=self._on_exit, extra=extra, env=env)
        self._ranks = [link.rank for link in linked.ranks]
        self._life = LifeSign(silent_s)
        self._watch: asyncio.Task[None] | None = None
        self._on_message: Callable[[int, Message], None]
        self._on_lost: Callable[[int, str], None]

    async def start(self, on_message: Callable[[int, Message], None], on_lost: Callable[[int, str], None]) -> None:
        """Start every worker; `Ready` or `Fatal` of each comes through `on_message`."""
        self._on_message, self._on_lost = on_message, on_lost
        await self.supervisor.start()
        self.supervisor.port.attach(self._deliver)
        for rank in self._ranks:
            self._life.heard(rank)
        self._watch = asyncio.create_task(self._watch_silence(), name="life signs")

    def send(self, rank: int, message: Message) -> None:
        """Queue a message to a rank; to a dead one it is dropped, and its death is reported."""
        self.supervisor.port.send(rank, message)

    async def stop(self) -> None:
        """Ask every worker to leave, then make it."""
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
            for rank in self._ranks:
                if self.supervisor.alive(rank):
                    self.supervisor.port.send(rank, Shutdown())
        await self.supervisor.stop(LEAVE_S)

    def _deliver(self, received: list[Received]) -> None:
        for rank, message in received:
            self._life.heard(rank)
            match message:
                case Loading(what=what):
                    self.supervisor.progress(rank, what)
                case Ready():
                    self.supervisor.ready(rank)
                    peers = self.supervisor.peers()
                    for peer in self._ranks:
                        if self.supervisor.alive(peer):
                            self.supervisor.port.send(peer, peers)
            self._on_message(rank, message)
        for fault in self.supervisor.port.faults():
            current = fault.peer in self._ranks and fault.epoch == self.supervisor.epoch(fault.peer)
            if current and self.supervisor.alive(fault.peer):
                self.supervisor.kill(fault.peer, fault.reason)

    def _on_exit(self, gone: WorkerExit) -> None:
        self._life.forget(gone.rank)
        how = f"it ended with status {gone.code}" if gone.signal is None else f"it was killed by signal {gone.signal}"
        if gone.code == EXIT_FATAL:  # it has said why, unless that was lost
            self._on_message(gone.rank, Fatal(gone.rank, "it cannot start and did not get to say why"))
        self._on_lost(gone.rank, gone.reason or how)
        if gone.code == EXIT_FATAL:
            return
        self.supervisor.restart(gone.rank)
        self._life.heard(gone.rank)

    async def _watch_silence(self) -> None:
        while True:
            await asyncio.sleep(self._life.limit_s / 4)
            for silence in self._life.silent():
                self._life.forget(silence.rank)
                if self.supervisor.alive(silence.rank):
                    self.supervisor.kill(silence.rank, f"silent for {silence.seconds:.0f} s")
