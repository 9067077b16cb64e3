"""The worker process: `python -m mstarc_runtime.worker --boot-fd N`, started by the engine's supervisor."""

from __future__ import annotations

import logging
import signal
import sys
import time
from typing import Any

import msgspec

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import ABI, Fatal, Loading, Message, Peers, Ready, Shutdown, Stats
from mstarc_runtime.errors import RuntimeFault, describe
from mstarc_runtime.garbage import settle_garbage
from mstarc_runtime.launch.child import EXIT_FATAL, Boot, ParentWatch, open_port, read_boot
from mstarc_runtime.memory import keep_memory
from mstarc_runtime.package import load_worker
from mstarc_runtime.transport.port import Port
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.rank import CONDUCTOR, Rank

log = logging.getLogger("mstarc.worker")

STATS_S = 1.0
IDLE_S = 0.5  # the longest sleep of an idle worker: a message wakes it at once
# how long a message may wait that no request waits for: the conductor is likely to be at the next one
UNHURRIED_S = 0.002


class Worker:
    """The loop of one worker process: messages in, one turn of work, messages out."""

    def __init__(self, boot: Boot, port: Port, rank: Rank) -> None:
        self.boot = boot
        self.port = port
        self.rank = rank
        self.leaving = False
        self._next_stats = 0.0
        self._tell_at: float | None = None

    def run(self) -> int:
        """Work until told to leave. Returns the exit status."""
        while not self.leaving:
            patience = self._patience()
            if patience:
                self.port.codec.prepare()
            for _, message in self.port.poll(patience):
                self._handle(message)
            self._report(time.monotonic())
            faults = self.port.faults()
            if faults:
                log.error("messages were lost: %s", "; ".join(f"peer {fault.peer}: {fault.reason}" for fault in faults))
                return 1
            self.rank.turn()
        return 0

    def _handle(self, message: Message) -> None:
        match message:
            case Peers():
                self.port.connect_all(message)
            case Shutdown():
                self.leaving = True
            case _:
                self.rank.handle(message)

    def _patience(self) -> float:
        """Seconds for which nothing is to be done unless a message comes."""
        if not self.rank.idle():
            return 0.0
        return UNHURRIED_S if self.rank.unhurried else IDLE_S

    def _report(self, now: float) -> None:
        """Tell the conductor what is due and no request waits for."""
        if now >= self._next_stats:
            self._next_stats = now + STATS_S
            self.port.send(CONDUCTOR, Stats(self.boot.rank, self.rank.gauges()))
        if self._tell_at is None:
            self._tell_at = now + UNHURRIED_S if self.rank.unhurried else None
        elif now >= self._tell_at:
            self.rank.tell()
            self._tell_at = None


def _load(boot: Boot, port: Port) -> Rank:
    linked = msgspec.convert(boot.extra["linked"], Linked)

    def progress(done: int, total: int, what: str) -> None:
        port.send(CONDUCTOR, Loading(boot.rank, done, total, what))

    ops = OpTable(linked, boot.rank, progress)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(max(1, boot.threads))
    port.codec.space = ops.arrays.room
    rank = Rank(linked, boot.rank, load_worker(linked), port, ops)
    port.send(CONDUCTOR, Loading(boot.rank, 1, 1, "warming up"))
    externs = {name for walk in linked.walks if walk.rank == boot.rank for name in walk.externs}
    cuts = {str(link.args["cut"]) for link in linked.streams if link.sink == boot.rank and "cut" in link.args}
    rank.externs.warm(externs | cuts)
    rank.warm_up(progress)
    settle_garbage()
    return rank


def _give_up(boot: Boot, port: Port, why: str) -> int:
    """Tell the conductor why this rank cannot start."""
    port.send(CONDUCTOR, Fatal(boot.rank, why))
    port.close(linger_s=2.0)
    return EXIT_FATAL


def main(argv: list[str]) -> int:
    """Start, load, work. Anything that prevents a start is told to the conductor in words."""
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    keep_memory()
    boot = read_boot(argv)
    watch = ParentWatch(boot)
    port = open_port(boot)
    port.watch(watch.fd)
    try:
        rank = _load(boot, port)
    except RuntimeFault as error:
        return _give_up(boot, port, str(error))
    except Exception as error:  # components and files can raise anything, and would again at the next start
        log.debug("rank %d cannot start", boot.rank, exc_info=True)
        return _give_up(boot, port, describe(error))
    worker = Worker(boot, port, rank)

    def leave(signum: int, frame: Any) -> None:
        worker.leaving = True

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the conductor decides
    port.send(CONDUCTOR, Ready(boot.rank, boot.epoch, ABI, rank.ops.pools(), rank.swaps.pages()))
    status = worker.run()
    port.close(linger_s=0.5)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
