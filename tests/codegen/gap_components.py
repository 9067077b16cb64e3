"""Components and externs for test_gaps."""

from __future__ import annotations

from typing import Any

import numpy as np


class Sums:
    """Integer ops on numpy."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Sums:
        return cls()

    def next(self, x: Any) -> Any:
        return np.asarray(x) + 1

    def add(self, x: Any, more: Any) -> Any:
        return np.asarray(x) + (100 if more is None else more)

    def total(self, xs: Any) -> Any:
        return np.asarray(xs).sum()


def doubled(x: int) -> int:
    return 2 * int(x)


def chosen(mode: str, data: bytes, more: Any) -> int:
    return len(mode) + len(data) + (0 if more is None else int(more))
