"""Integer hashes as torch components: what they give depends on every argument, on every entry of the context and on its order.

The interpreter runs them on dense contexts, the runtime on pages, in batches and in captured loops; integers leave no room for rounding,
so all give the same numbers or one of them is wrong. An entry of a context holds two numbers below 256 that depend on its token and its
position; attention with equal weights gives their means, and with the count (the position says it) their sums, which are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

VOCAB = 40
SPREAD = 1000
_ODD = (0x1E3779B97F4A7C15, 0x14057B7EF767814F, 0x9B60933458E17D, 0x7F4A7C15F39CC1, 0x2545F4914F6CDD1D)


def mixed(*parts: Tensor | int | None) -> Tensor:
    """One hash i64 [B] of parts [B, ...] (or numbers, the first is not one); products wrap around. An absent part counts too."""
    found: Any = 0
    for part, odd in zip(parts, _ODD, strict=False):
        flat = _flat(part)
        found = found + (flat * odd if isinstance(flat, Tensor) else flat * odd % (1 << 62))
    key: Tensor = (found ^ (found >> 29)) * _ODD[-1]
    return key ^ (key >> 32)


def _flat(part: Tensor | int | None) -> Tensor | int:
    """A small number for every row."""
    if not isinstance(part, Tensor):
        return -77 if part is None else part
    if part.dim() == 1:
        return part.long()
    flat = part.reshape(len(part), -1).long()
    return (flat * (torch.arange(flat.shape[1]) * 2 + 1)).sum(1) + flat.shape[1]


def below(limit: int, key: Tensor) -> Tensor:
    """The hash as a number in 0..limit-1, from its upper bits."""
    return (key >> 11) % limit


class Plain:
    """`f`, `two` and `blur` for a batch; the others for one request, `noisy`, `picky` and `keeping` with what they are handed."""

    @classmethod
    def load(cls, checkpoint: Any, config: Mapping[str, Any], device: str) -> Plain:
        return cls()

    def f(self, x: Tensor) -> Tensor:
        return below(SPREAD, mixed(x))

    def two(self, x: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        return below(SPREAD, mixed(x, extra)), below(SPREAD, mixed(x, extra, 1))

    def blur(self, x: Tensor, z: Tensor) -> Tensor:
        """z f32 [B, 3], of which what rounding cannot change counts."""
        return below(SPREAD, mixed(x, (z * 8).floor()))

    def grow(self, x: Tensor) -> Tensor:
        """One to four numbers."""
        key = mixed(x[None], 9)
        return below(SPREAD, mixed(key.expand(1 + int(below(4, key)[0])).cumsum(0)))

    def fold(self, x: Tensor) -> Tensor:
        return below(SPREAD, mixed(x[None]))[0]

    def mix(self, x: Tensor, other: Tensor | None, k: Tensor) -> Tensor:
        return below(SPREAD, mixed(x, other, k.expand(len(x))))

    def noisy(self, cells: Any, noise: Any, x: Tensor) -> Tensor:
        return self._kept(cells, mixed(x[None], (noise.normal(3) * 8).floor()[None]))

    def picky(self, cells: Any, pick: Any, x: Tensor) -> Tensor:
        drawn = [pick(logits_of(mixed(x[None], k))[0]) for k in range(2)]
        return self._kept(cells, mixed(x[None], torch.stack(drawn)[None]))

    def keeping(self, cells: Any, x: Tensor) -> Tensor:
        return self._kept(cells, mixed(x[None]))

    def _kept(self, cells: Any, key: Tensor) -> Tensor:
        """The result of a call on one request that goes with this hash, which the cells join and take part in."""
        key = mixed(key, cells.seen[None], cells.odd[None])
        cells.seen, cells.odd = below(SPREAD, key)[0], below(2, key)[0] == 1
        return below(SPREAD, mixed(key, 5))[0]


def logits_of(key: Tensor) -> Tensor:
    """f32 [B, VOCAB] in steps of an eighth, with ties."""
    return ((mixed(key, 3)[:, None] * (torch.arange(VOCAB) * 2 + 1)) >> 40).remainder(32) / 8


class Causal:
    """`step` appends an entry and gives logits; `peek` looks at a context with two entries of its own, `flow` with any number. Contexts
    are of one layer, head dim 2, and their position is their length."""

    @classmethod
    def load(cls, checkpoint: Any, config: Mapping[str, Any], device: str) -> Causal:
        return cls()

    def step(self, run: Any, token: Tensor) -> Tensor:
        return logits_of(self._look(run, token, 0))

    def peek(self, run: Any, x: Tensor) -> Tensor:
        rows = torch.arange(len(x)).repeat_interleave(2)
        key = self._look(run, x[rows], torch.arange(2).repeat(len(x)))
        return below(SPREAD, key[run.last])

    def flow(self, run: Any, x: Tensor, t: Tensor) -> Tensor:
        """x [rows of all], t [B]: looks with as many entries as a request has rows."""
        rows = torch.tensor(run.rows)
        place = torch.cat([torch.arange(count) for count in run.rows])
        token = below(SPREAD, mixed(x, t.repeat_interleave(rows)))
        return below(SPREAD, self._look(run, token, place, rows.repeat_interleave(rows)))

    def _look(self, run: Any, token: Tensor, row: Tensor | int, own_rows: Tensor | int = 2) -> Tensor:
        """Hash of a token, its position and all that its row sees: own_rows of them are its call's, where it is not alone."""
        own = mixed(token, run.positions, row)
        entry = torch.stack([own >> 13, own >> 23], -1).remainder(256).float()[:, None]  # [rows, 1, 2]
        seen = run.attend(0, torch.zeros_like(entry), entry, entry)[:, 0]
        count = run.positions + (1 if isinstance(row, int) else own_rows)
        return mixed(own, (seen * count[:, None]).round())
