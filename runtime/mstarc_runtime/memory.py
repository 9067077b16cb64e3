"""Memory of large arrays stays with the process: taking it from the system again costs more than the copy that fills it."""

from __future__ import annotations

import ctypes

LARGEST = 32 << 20  # bytes of an allocation that may be kept; the C library's own limit
KEPT = 256 << 20  # bytes that may lie free
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_memory() -> bool:
    """Tell the C library, once per process. False where it cannot be told (it is not glibc): then nothing is changed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))
