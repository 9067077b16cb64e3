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
