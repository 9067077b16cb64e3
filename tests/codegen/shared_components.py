"""Components of nodes that share weights, for test_shared_weights. Each counts how often it was loaded."""

from __future__ import annotations

from typing import Any

import torch


class Table:
    """A table of 16 rows of 4 numbers: `row` looks one up, `nearest` finds it again."""

    loaded = 0

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Table:
        Table.loaded += 1
        return cls(torch.randn(16, 4, generator=torch.Generator().manual_seed(Table.loaded)))

    def row(self, x: Any) -> Any:
        return self.rows[x]

    def nearest(self, y: Any) -> Any:
        return (self.rows - y).norm(dim=1).argmin()


class Reverse(Table):
    """The table from its last row on, of another class."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Reverse:
        raise AssertionError("it has no weights of its own")

    @classmethod
    def share(cls, owner: Any, config: Any, device: str) -> Reverse:
        return cls(owner.rows)

    def row(self, x: Any) -> Any:
        return self.rows[15 - x]


class Alone:
    """Has no `share`."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Alone:
        return cls()

    def row(self, x: Any) -> Any:
        return x
