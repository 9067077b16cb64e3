"""Components that are handed more than their arguments, for test_handed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Plain:
    """numpy, one request at a time."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Plain:
        return cls()

    def jitter(self, noise: Any, x: Any) -> Any:
        return (x + noise.normal(3) + 10 * noise.normal(3)).astype(np.float32)


class Stacked(Plain):
    """numpy, batched. A batch that holds a 7 fails as a whole, a 7 alone does not."""

    def jitter(self, noise: Any, x: Any) -> Any:
        drawn = noise.normal(3) + 10 * noise.normal(3)
        if len(x) > 1 and (x == 7).any():
            raise ValueError("7 is to be alone")
        return (np.asarray(x)[:, None] + drawn).astype(np.float32)


class Lm:
    """One layer of attention over embedded ids; `stir` draws rows of its own."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.ids, self.mix = (torch.randn(20, 8, generator=generator) for _ in range(2))

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Lm:
        return cls()

    def stir(self, run: Any, noise: Any, token: Any) -> Any:
        x = self.ids[token] + noise.normal(8)
        return run.attend(0, x.view(-1, 1, 8), x.view(-1, 1, 8), x.view(-1, 1, 8)).view(-1, 8)


class Field:
    """Velocities of a flow; the three branches differ by `kind`."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Field:
        return cls()

    def velocity(self, x: Any, t: Any, kind: Any) -> Any:
        assert t.dtype == torch.float32
        return torch.sin(x * (1 + kind) + t) * (1 + kind)


class Filler:
    """`fill` draws four ids, each from logits that the one before decides. A batch that holds a 7 fails as a whole."""

    def __init__(self) -> None:
        self.table = torch.randn(40, 30, generator=torch.Generator().manual_seed(4)) * 2

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Filler:
        return cls()

    def logits(self, x: Any) -> Any:
        return self.table[x % 40]

    def fill(self, pick: Any, x: Any) -> Any:
        found = [pick(self.table[x % 40])]
        for _ in range(3):
            found.append(pick(self.table[found[-1]]))
        if x.ndim and len(x) > 1 and bool((x == 7).any()):
            raise ValueError("7 is to be alone")
        return torch.stack(found, -1)


class Keeper:
    """numpy cells: `seen` counts calls, `mean` keeps a running row; `noisy` uses all that a method may be handed."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Keeper:
        return cls()

    def count(self, cells: Any, x: Any) -> Any:
        cells.seen = cells.seen + 1
        cells.mean = cells.mean * np.float32(0.5) + np.asarray(x, np.float32)
        if x == 7:
            cells.flag = np.bool_(True)
        return cells.seen, cells.mean, np.asarray(cells.flag)


class StackedKeeper(Keeper):
    """The same for a batch. One that holds a 7 fails as a whole, after it has written its cells."""

    def count(self, cells: Any, x: Any) -> Any:
        cells.seen = cells.seen + 1
        cells.mean = cells.mean * np.float32(0.5) + np.asarray(x, np.float32)[:, None]
        cells.flag = cells.flag | (np.asarray(x) == 7)
        if len(x) > 1 and (np.asarray(x) == 7).any():
            raise ValueError("7 is to be alone")
        return cells.seen, cells.mean, cells.flag


class Placed:
    """One layer of attention whose rows carry their positions: i64 [T] or [3, T]."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.ids, self.turn = (torch.randn(20, 8, generator=generator), torch.randn(8, generator=generator))

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Placed:
        return cls()

    def _run(self, run: Any, ids: Any) -> Any:
        places = run.positions if run.positions.ndim == 1 else run.positions.sum(0)
        x = self.ids[ids] + torch.cos(places[:, None] * self.turn)
        return run.attend(0, x.view(-1, 1, 8), x.view(-1, 1, 8), x.view(-1, 1, 8)).view(-1, 8)

    def look(self, run: Any, ids: Any, place: Any, span: Any) -> Any:
        return self._run(run, ids)[run.last]

    def plane(self, run: Any, ids: Any, place: Any, span: Any) -> Any:
        return self._run(run, ids)[run.last]

    def step(self, run: Any, token: Any) -> Any:
        return self._run(run, token)


def line(n: int) -> Any:
    """Offsets 0, 2, 4, ... and the span that they cover."""
    return np.arange(n) * 2, 2 * n


def plane(n: int) -> Any:
    """Offsets of n entries on three axes."""
    return np.stack([np.arange(n), np.zeros(n, np.int64), np.arange(n) // 2]), n // 2 + 1
