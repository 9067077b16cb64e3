"""Memory of large arrays stays with the process: taking it from the system again costs more than the copy that fills it."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from typing import Any

import numpy as np

LARGEST = 32 << 20  # bytes of an allocation that may be kept; the C library's own limit
KEPT = 256 << 20  # bytes that may lie free
KEPT_BEYOND = 512 << 20  # the same, of arrays larger than the C library keeps
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_FREE: list[mmap.mmap] = []  # memory of such arrays that nobody uses
_LOCK = threading.Lock()  # of who takes from there; what is given back needs none, and may come at any moment


def keep_memory() -> bool:
    """Tell the C library, once per process. False where it cannot be told (it is not glibc): then nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))


def room(size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Memory for `size` bytes, with any content. If it is large, it is used again when the last array in it is gone."""
    if size <= LARGEST:
        return np.empty(size, np.uint8)
    with _LOCK:
        memory = next((free for free in _FREE if size <= len(free) <= 2 * size), None)
        if memory is not None:
            _FREE.remove(memory)
    if memory is None:
        memory = mmap.mmap(-1, size)
    # not of an array: numpy's views would hold on to that, and not to this one
    found = np.frombuffer(memory, np.uint8, size)
    weakref.finalize(found, _give_back, memory).atexit = False
    return found


def _give_back(memory: mmap.mmap) -> None:
    if sum(map(len, _FREE)) + len(memory) <= KEPT_BEYOND:
        _FREE.append(memory)
