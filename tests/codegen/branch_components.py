"""A two-layer transformer that notes every call, and a host function that lays parts out, for test_branches and test_ragged."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mstarc_runtime.program import Part

CALLS: list[tuple[str, str, int]] = []  # (class of the run, op, rows of contexts)
WORDS = 20


def parts(ids: Any, order: str) -> list[Part]:
    """`w`: the ids; `p`: a picture of as many rows."""
    rows = torch.sin(torch.arange(len(ids) * 8.0).view(-1, 8)).numpy()
    words = np.asarray(ids)
    return [Part("words", ids=words) if kind == "w" else Part("picture", rows=rows) for kind in order]


class Lm:
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.words = torch.randn(WORDS, 8, generator=generator)
        self.layers = [torch.randn(8, 8 + 4 + 4, generator=generator) / 3 for _ in range(2)]

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Lm:
        return cls()

    def _run(self, run: Any, op: str, x: Any) -> Any:
        CALLS.append((type(run).__name__, op, len(run.rows)))
        x = x + torch.sin(run.positions.float())[:, None] / 10
        for layer, weight in enumerate(self.layers):
            q, k, v = (x @ weight).split((8, 4, 4), dim=-1)
            x = x + run.attend(layer, q.view(-1, 2, 4), k.view(-1, 1, 4), v.view(-1, 1, 4)).reshape(-1, 8)
        return x

    def read(self, run: Any, ids: Any) -> None:
        if (ids >= WORDS).any():
            raise ValueError("an id is not in the vocabulary")
        self._run(run, "read", self.words[ids])

    def look(self, run: Any, rows: Any) -> None:
        self._run(run, "look", rows)

    def flow(self, run: Any, x: Any, t: Any) -> Any:
        """x [B, 3, 8], t [B]."""
        return self._run(run, "flow", (x + t.view(-1, 1, 1)).reshape(-1, 8)).view(-1, 3, 8)

    def drift(self, run: Any, x: Any, t: Any) -> Any:
        """x [rows of all, 8], t [B]."""
        times = t.repeat_interleave(torch.tensor(run.rows))
        return self._run(run, "drift", x + times[:, None])


class Turn:
    """Gives the sines of what it takes, of four numbers at most: one too few where there are five."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Turn:
        return cls()

    def turn(self, x: Any) -> Any:
        return torch.sin(x[:4])
