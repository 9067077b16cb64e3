"""A cluster inside one process: every rank runs on the event loop. For tests and for `interpret`-like tools.

Messages are encoded and decoded as between processes, so what works here works there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import ABI, Fatal, Message, Ready
from mstarc_runtime.errors import RuntimeFault
from mstarc_runtime.package import load_worker
from mstarc_runtime.transport.wire import decode, encode
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.rank import CONDUCTOR, Rank, Regions

log = logging.getLogger("mstarc.conductor")


class _Link:
    """The port of a local rank: delivers to the mailbox of the peer."""

    def __init__(self, cluster: LocalCluster, rank: int) -> None:
        self.cluster = cluster
        self.rank = rank

    def send(self, peer: int, message: Message) -> None:
        self.cluster.post(self.rank, peer, message)


class LocalCluster:
    """Implements `engine.Cluster`. `shuffle` seeds an arbitrary order of ranks and deliveries, to show that none matters.

    `regions`: see `Rank`.
    """

    def __init__(self, linked: Linked, shuffle: int | None = None, regions: Regions = "auto") -> None:
        self.linked = linked
        self.regions = regions
        self.ranks: dict[int, Rank] = {}
        self.sent = 0  # messages between different ranks, the conductor included
        self._boxes: dict[tuple[int, int], list[Message]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._random = None if shuffle is None else random.Random(shuffle)
        self._on_message: Callable[[int, Message], None] = lambda rank, message: None

    async def start(self, on_message: Callable[[int, Message], None], on_lost: Callable[[int, str], None]) -> None:
        """Build every rank, then report it ready."""
        self._on_message, self._on_lost = on_message, on_lost
        for link in self.linked.ranks:
            try:
                ops = OpTable(self.linked, link.rank)
                port = _Link(self, link.rank)
                self.ranks[link.rank] = Rank(self.linked, link.rank, load_worker(self.linked), port, ops, self.regions)
                self.ranks[link.rank].warm_up(lambda done, total, what: None)
            except RuntimeFault as error:
                on_message(link.rank, Fatal(link.rank, str(error)))
                return
            on_message(link.rank, Ready(link.rank, 1, ABI, ops.pools(), self.ranks[link.rank].swaps.pages()))
        self._task = asyncio.create_task(self._run(), name="local ranks")
        self._task.add_done_callback(self._report_death)

    def _report_death(self, task: asyncio.Task[None]) -> None:
        """A bug in a rank ends them all; the engine must know."""
        if not task.cancelled() and task.exception() is not None:
            log.error("the local ranks died", exc_info=task.exception())
            for rank in self.ranks:
                self._on_lost(rank, f"internal error: {task.exception()}")

    def post(self, source: int, peer: int, message: Message) -> None:
        """Queue a message; order is kept per (source, peer)."""
        self.sent += 1
        copy = decode(encode(message, None), None)
        self._boxes.setdefault((source, peer), []).append(copy)
        self._wake.set()

    def send(self, rank: int, message: Message) -> None:
        self.post(CONDUCTOR, rank, message)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            delivered = self._deliver()
            busy = [rank for rank in self.ranks.values() if not rank.idle()]
            if self._random is not None:
                self._random.shuffle(busy)
                busy = busy[:1]
            for rank in busy:
                rank.turn()
            for rank in self.ranks.values():
                rank.flush()
                rank.tell()
            if not delivered and not busy and not any(self._boxes.values()):
                self._wake.clear()
                await self._wake.wait()
            else:
                await asyncio.sleep(0)

    def _deliver(self) -> bool:
        routes = [route for route, box in self._boxes.items() if box]
        if self._random is not None:
            self._random.shuffle(routes)
            routes = routes[:1]
        for source, peer in routes:
            box = self._boxes[source, peer]
            for message in [box.pop(0)] if self._random is not None else [box.pop(0) for _ in range(len(box))]:
                if peer == CONDUCTOR:
                    self._on_message(source, message)
                else:
                    self.ranks[peer].handle(message)
        return bool(routes)
