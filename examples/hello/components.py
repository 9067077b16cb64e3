"""The two nodes of hello.walk, in integers: a counter and an adder. A worker that runs only these never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mstarc_runtime.engines.component import Checkpoint

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Counter:
    """Counts up by one."""

    ARRAYS: ClassVar[str] = "numpy"

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Counter:
        return cls()

    def first(self, x: Ints) -> Ints:
        """[] -> []: where to start."""
        return x

    def next(self, x: Ints) -> Ints:
        """[B] -> [B], one row per request (`batch stack`)."""
        return x + 1


class Adder:
    """Adds pairs."""

    ARRAYS: ClassVar[str] = "numpy"

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Adder:
        return cls()

    def pair(self, xs: Ints) -> Ints:
        """[2] -> []: the sum."""
        return np.asarray(xs.sum())
