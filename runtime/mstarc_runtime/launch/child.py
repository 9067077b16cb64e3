"""What a worker process is given by its parent, and how it uses it.

    boot = read_boot(sys.argv[1:])        # --boot-fd N
    watch = ParentWatch(boot)             # from now on this process dies with its parent
    port = open_port(boot)                # listening, rings mapped, connected to the conductor
    for peer, message in port.poll(0.5): ...

The parent holds the write end of a pipe and never writes: end of file on the read end means that the parent is gone,
however it died. `ParentWatch` waits for that in a thread and ends the process at once, also during a long op. A worker
that must clean up first takes `ParentWatch(boot, kill=False)`, lets `port.watch(watch.fd)` wake its loop, and asks `gone`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from mstarc_runtime.abi.messages import ABI
from mstarc_runtime.errors import LoadError
from mstarc_runtime.transport.base import CONDUCTOR
from mstarc_runtime.transport.endpoint import remove_folder
from mstarc_runtime.transport.port import Port
from mstarc_runtime.transport.ring import RingReader, RingWriter

EXIT_ORPHAN = 86  # exit status of a worker whose parent went away
EXIT_FATAL = 87  # of one that has said why it cannot run: starting it again would not help
BOOT_FLAG = "--boot-fd"


_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def thread_env(threads: int) -> dict[str, str]:
    """The environment that holds numeric libraries to so many threads (at least 1); they read it when they are loaded."""
    return dict.fromkeys(_THREADS, str(max(1, threads)))


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker is told at its start. Descriptors are inherited. `extra` is the launcher's, JSON values only."""

    abi: int
    rank: int
    epoch: int
    ranks: list[int]
    device: str
    threads: int
    label: str
    endpoint: str
    listen_fd: int
    lane_fd: int | None  # an end of the way beside to the conductor (`transport.lane`)
    conductor: str
    conductor_epoch: int
    token: bytes
    parent_fd: int
    folder: str  # of the sockets, "" if none; an orphan removes it
    rings_out: dict[int, int]  # peer -> descriptor
    rings_in: dict[int, int]
    extra: dict[str, Any]


def read_boot(argv: Sequence[str]) -> Boot:
    """The `Boot` behind `--boot-fd N` of `argv`, once; the descriptor is closed. LoadError if there is none of this ABI."""
    try:
        fd = int(argv[list(argv).index(BOOT_FLAG) + 1])
    except (ValueError, IndexError):
        raise LoadError(
            f"a worker is started by its engine, with {BOOT_FLAG} N; there is none in {list(argv)}"
        ) from None
    try:
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            boot = msgspec.json.decode(data[:], type=Boot)
        os.close(fd)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise LoadError(f"descriptor {fd} holds no start data of a worker: {error}") from error
    for own in (boot.listen_fd, boot.lane_fd, boot.parent_fd, *boot.rings_out.values(), *boot.rings_in.values()):
        if own is not None:
            os.set_inheritable(own, False)  # for this process only, not for its children
    if boot.abi != ABI:
        raise LoadError(f"the engine speaks ABI {boot.abi}, this worker {ABI}: they are of different versions")
    return boot


def open_port(boot: Boot) -> Port:
    """This worker's port: listening, its rings mapped, connected to the conductor. Takes over the descriptors of `boot`."""
    writers = {peer: RingWriter(fd) for peer, fd in boot.rings_out.items()}
    readers = {peer: RingReader(fd) for peer, fd in boot.rings_in.items()}
    for fd in (*boot.rings_out.values(), *boot.rings_in.values()):
        os.close(fd)  # the mappings stay
    port = Port(
        boot.rank,
        boot.epoch,
        boot.endpoint,
        token=boot.token,
        listen_fd=boot.listen_fd,
        rings_out=writers,
        rings_in=readers,
    )
    lane = None if boot.lane_fd is None else socket.socket(fileno=boot.lane_fd)
    port.connect(CONDUCTOR, boot.conductor, boot.conductor_epoch, lane)
    return port


class ParentWatch:
    """Ends this process (status 86) when the parent is gone. `kill=False`: only tells, by `gone` and `fd`."""

    def __init__(self, boot: Boot, kill: bool = True) -> None:
        self.fd = boot.parent_fd
        self._folder = boot.folder
        if kill:
            threading.Thread(target=self._wait, name="parent-watch", daemon=True).start()

    def gone(self) -> bool:
        """Whether the parent is gone."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        return bool(poller.poll(0))

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 1)  # nothing is ever written: this returns at end of file
        if self._folder:
            remove_folder(self._folder)
        os._exit(EXIT_ORPHAN)
