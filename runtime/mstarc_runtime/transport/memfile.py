"""Files without a name, for shared memory and for handing data to a child: they vanish with the last process that has them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile


def anonymous_file(size: int) -> int:
    """A file of `size` zero bytes whose size is fixed. Gives its descriptor, close-on-exec, owned by the caller. OSError."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return _sealed(size)
    folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder) as file:  # has no name, or loses it at once
        fd = os.dup(file.fileno())
    try:
        os.posix_fallocate(fd, 0, size)  # a full disk is an error here, not a SIGBUS later
    except OSError:
        os.close(fd)
        raise
    return fd


def _sealed(size: int) -> int:
    fd = os.memfd_create("mstarc", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # nobody can shrink it under a mapping, which would kill the process that touches the lost part
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(fd)
        raise
    return fd


def data_file(data: bytes) -> int:
    """A file that holds `data` (at least one byte), for a child to map."""
    fd = anonymous_file(len(data))
    with open(fd, "r+b", closefd=False) as file:
        file.write(data)
    return fd
