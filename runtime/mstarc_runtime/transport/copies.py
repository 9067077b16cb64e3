"""Copies of large arrays by several threads: one thread moves a fraction of what the memory of a host does."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

APART = 1 << 21  # bytes beyond which other threads are woken
PART = 1 << 18  # bytes that a thread takes at once
_HELPERS = max(1, min(3, (os.cpu_count() or 1) // 4))
_THREADS = ThreadPoolExecutor(_HELPERS, "copy")

Pair: TypeAlias = tuple[memoryview, memoryview]  # target and source, one-dimensional bytes of one length


def copy_all(pairs: list[Pair]) -> None:
    """Copy every source to its target; all are there at the return."""
    if sum(len(target) for target, _ in pairs) < APART:
        for target, source in pairs:
            target[:] = source
        return
    parts = deque(
        (target[at : at + PART], source[at : at + PART])
        for target, source in pairs
        for at in range(0, len(target), PART)
    )
    helpers = [_THREADS.submit(_copy, parts) for _ in range(_HELPERS)]
    _copy(parts)
    for helper in helpers:
        helper.result()


def _copy(parts: deque[Pair]) -> None:
    """Copy parts until none is left."""
    while True:
        try:
            target, source = parts.popleft()
        except IndexError:
            return
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))  # other threads run meanwhile
