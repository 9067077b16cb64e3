"""Where processes listen: `Endpoints().listen(rank, epoch) -> Listener`, a listening socket and its ZeroMQ address.

The parent makes the socket before it starts the child and hands the descriptor over, so the address is known and can be
connected to at once. Sockets are files in a folder that only this user may enter; names hold rank and epoch. Where such
sockets cannot be made (path too long, file system without them) it is TCP on loopback, where the token of the messages
keeps other users out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from dataclasses import dataclass

from mstarc_runtime.transport.base import CONDUCTOR

_PATH_MAX = 100  # of 108 bytes that a socket address has
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """`fd` is close-on-exec and owned by whoever called `listen`."""

    endpoint: str
    fd: int


class Endpoints:
    """The addresses of one engine. `folder` is "" where they are TCP. `close` removes what is left on disk."""

    def __init__(self, tcp: bool = False) -> None:
        self.folder = "" if tcp else _private_folder()

    def listen(self, rank: int, epoch: int) -> Listener:
        """A new listening socket. OSError if there can be none."""
        if not self.folder:
            found = socket.socket(socket.AF_INET)
            with found:
                found.bind(("127.0.0.1", 0))
                found.listen(_BACKLOG)
                return Listener(f"tcp://127.0.0.1:{found.getsockname()[1]}", found.detach())
        path = os.path.join(self.folder, f"{'c' if rank == CONDUCTOR else f'r{rank}'}e{epoch}")
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path)
            made.listen(_BACKLOG)
            return Listener(f"ipc://{path}", made.detach())

    def remove(self, endpoint: str) -> None:
        """The process that listened there is gone."""
        if endpoint.startswith("ipc://"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(endpoint.removeprefix("ipc://"))

    def close(self) -> None:
        """Remove the folder. Idempotent."""
        if self.folder:
            remove_folder(self.folder)


def remove_folder(folder: str) -> None:
    """Remove a folder of sockets, also from an orphan whose parent could not. Other files in it would be kept."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        os.rmdir(folder)


def _private_folder() -> str:
    """A folder in which a socket can be made, or ""."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if not parent or len(parent) > _PATH_MAX - 40:
            continue
        folder = ""
        try:
            folder = tempfile.mkdtemp(prefix="mstarc-", dir=parent)
            with socket.socket(socket.AF_UNIX) as trial:
                trial.bind(os.path.join(folder, "trial"))
            os.unlink(os.path.join(folder, "trial"))
            return folder
        except OSError:
            if folder:
                remove_folder(folder)
    return ""
