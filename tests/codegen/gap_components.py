"""Components and externs for test_gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


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


class Table:
    """Logits that are the same whatever came before: the first two ids tie."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Table:
        return cls()

    def logits(self, x: Any) -> Any:
        return torch.tensor([1.0, 1.0, 0.9, 0.3])


class Places:
    """One layer of attention with rows of ones times the id: what a row sees is a mean of ids; results tell positions too."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Places:
        return cls()

    def _seen(self, run: Any, ids: Any) -> Any:
        rows = ids.float()[:, None, None].expand(-1, 1, 4)
        seen = run.attend(0, torch.zeros_like(rows), torch.zeros_like(rows), rows)
        return torch.stack([seen[:, 0, 0], run.positions.float()], 1)

    def read(self, run: Any, ids: Any) -> Any:
        return self._seen(run, ids)[run.last]

    def block(self, run: Any, ids: Any) -> Any:
        return self._seen(run, ids)[run.last]

    def peek(self, run: Any, x: Any) -> Any:
        return self._seen(run, x.reshape(-1).long())[run.last]
