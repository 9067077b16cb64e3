"""Draws of `sampling.device` as Triton kernels: each pass splits every row among many programs, so that a small batch fills the GPU.

`draw_adjust` writes logits after penalty and suppression, and finds the best. A cut (the smallest key that stays) is found in three passes:
by how far below the best they lie, logits have one of 256 levels; two `draw_bins` passes sum what the levels hold (weights for top-p, ones
for top-k), sixteen bins at a time; `draw_gather` gathers the logits of the level that the cut lies in, by split, and `draw_cut` finishes on
these few. After the last cut it knows what stays in each split, and picks the id. What one pass has summed is joined by the programs of
the next. Keys, rules and rounding are those of `sampling.device`: f32 weights, f64 sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import triton
from torch import Tensor

from mstarc_runtime.engines.early_triton import early
from mstarc_runtime.sampling import draw_passes_triton as passes
from mstarc_runtime.sampling.draw_cut_triton import draw_cut

if TYPE_CHECKING:
    from mstarc_runtime.sampling.device import SamplerPlan

SPLITS = 64  # programs of a row
BLOCK = 1024
BLOCK_BINS = 256  # lanes of a program of `draw_bins`, each of which keeps 16 sums
FEW_ROWS = 4  # with more, so many programs run that a quarter of the lanes does the same, and their sums are joined in less time
LEVELS_EACH = 256 / 24  # levels per temperature: what lies 24 temperatures below the best or lower has the last one
GATHERED = 16  # logits of each split that `draw_cut` takes at a time
HELD = 4  # times so many stay in its registers
_COLDEST = torch.finfo(torch.float32).tiny


class Tables(Protocol):
    """What a draw needs of `sampling.device.SamplerRows`."""

    plan: SamplerPlan
    vocab: int
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    penalty: Tensor
    min_tokens: Tensor
    count: Tensor
    seen: Tensor
    never: Tensor
    not_first: Tensor
    ends: Tensor


def draw(rows: Tables, logits: Tensor, number: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Ids i64 [B] and usable rows bool [B] of logits [B, vocab] in any float type; see `SamplerRows.draw`."""
    return _Draw(rows, logits, number, active).run()


def remember(rows: Tables, ids: Tensor, active: Tensor) -> None:
    """Ids i64 [B] of the active rows count for the penalty."""
    seen = rows.seen.view(torch.uint8)
    passes.draw_remember[(len(ids),)](seen, ids, active, rows.vocab, num_warps=1, **early(ids.device))


class _Draw:
    """One draw's buffers and launches."""

    def __init__(self, rows: Tables, logits: Tensor, number: Tensor, active: Tensor) -> None:
        self.rows, self.logits, self.number, self.active = rows, logits, number, active
        self.batch, self.vocab = logits.shape
        self.grid = (SPLITS, self.batch)
        self.x = self.empty(self.batch, self.vocab)
        self.seen = rows.seen.view(torch.uint8) if rows.plan.penalty else self.x
        self.tops = self.empty(self.batch, SPLITS)
        self.places, self.broken, self.floor_ties = (
            self.empty(self.batch, SPLITS, dtype=torch.int32) for _ in range(3)
        )
        self.floors = self.empty(self.batch, dtype=torch.int64)
        self.stays = self.empty(self.batch, dtype=torch.float64)
        self.ids = self.empty(self.batch, dtype=torch.int64)
        self.usable = self.empty(self.batch, dtype=torch.bool)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.logits.device)

    def run(self) -> tuple[Tensor, Tensor]:
        rows, plan = self.rows, self.rows.plan
        passes.draw_adjust[self.grid](
            self.logits,
            self.logits.stride(0),
            self.seen,
            rows.never.view(torch.uint8),
            rows.not_first.view(torch.uint8),
            rows.ends.view(torch.uint8),
            rows.penalty,
            rows.count,
            rows.min_tokens,
            self.x,
            self.tops,
            self.places,
            self.broken,
            self.vocab,
            PENALTY=plan.penalty,
            NEVER=bool(plan.suppress),
            NOT_FIRST=bool(plan.suppress_first),
            ENDS=bool(plan.min_tokens and plan.ends),
            SPLITS=SPLITS,
            SHARE=_share(self.vocab, BLOCK_BINS),
            BLOCK=BLOCK,
            **early(self.logits.device),
        )
        if plan.top_k:
            self.search(mass=False, floored=False)
        self.search(mass=True, floored=plan.top_k)
        return self.ids, self.usable

    def search(self, mass: bool, floored: bool) -> None:
        """Find the cut by counting (top-k) or by weights (top-p, above the cut of top-k if `floored`), and with it pick the ids."""
        found = _Found.empty(self)
        common = {
            "FLOORED": floored,
            "COLDEST": _COLDEST,
            "LEVELS_EACH": LEVELS_EACH,
            "SPLITS": SPLITS,
            "SHARE": found.gathered.shape[2],
            **early(self.logits.device),
        }
        for step in range(2):
            self._sum(found, step, mass, common)
        self._gather(found, common)
        self._finish(found, mass, common)

    def _sum(self, found: _Found, step: int, mass: bool, common: Mapping[str, Any]) -> None:
        """What sixteen levels hold, or (step 1) each level of the sixteen that the cut lies in."""
        lanes = BLOCK_BINS if self.batch <= FEW_ROWS else BLOCK_BINS // 4
        passes.draw_bins[self.grid](
            self.x,
            self.tops,
            self.rows.temperature,
            self.rows.top_k,
            self.rows.top_p,
            self.floors,
            self.stays,
            found.ones if step else found.sixteens,
            found.sixteens,
            found.levels,
            found.aboves,
            found.wanteds,
            self.vocab,
            STEP=step,
            MASS=mass,
            BLOCK=lanes,
            num_warps=lanes // 32,
            **common,
        )

    def _gather(self, found: _Found, common: Mapping[str, Any]) -> None:
        """The logits of the level that the cut lies in."""
        passes.draw_gather[self.grid](
            self.x,
            self.tops,
            self.rows.temperature,
            self.floors,
            self.stays,
            found.sixteens,
            found.ones,
            found.levels,
            found.aboves,
            found.wanteds,
            found.gathered,
            found.counts,
            found.masses,
            self.vocab,
            BLOCK=BLOCK,
            **common,
        )

    def _finish(self, found: _Found, mass: bool, common: Mapping[str, Any]) -> None:
        """The cut among what was gathered; the last one picks the ids."""
        draw_cut[(self.batch,)](
            self.x,
            self.tops,
            self.places,
            self.broken,
            self.rows.temperature,
            self.rows.top_k,
            self.rows.top_p,
            self.number,
            self.floors,
            self.stays,
            self.floor_ties,
            found.sixteens,
            found.levels,
            found.aboves,
            found.wanteds,
            found.gathered,
            found.counts,
            found.masses,
            self.active,
            self.seen,
            self.rows.count,
            self.ids,
            self.usable,
            self.vocab,
            MASS=mass,
            PENALTY=self.rows.plan.penalty,
            WIDE=triton.next_power_of_2(found.gathered.shape[2]),
            GATHERED=GATHERED,
            HELD=HELD,
            num_warps=8,
            **common,
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """What the passes of one search find for those after them; S splits, N ids of a split.

    sixteens, ones f64 [B, S, 16]: sums by sixteen levels, and by level of one sixteen; levels i32, aboves f64 [2, B]: the sixteen and the
    level that the cut lies in, and the sums before them; wanteds f64 [B]: the sum to reach; gathered f32 [B, S, N]: logits of that level,
    `counts` i32 [B, S] of them; masses f64 [B, S]: the sum of the levels before it.
    """

    sixteens: Tensor
    ones: Tensor
    levels: Tensor
    aboves: Tensor
    wanteds: Tensor
    gathered: Tensor
    counts: Tensor
    masses: Tensor

    @classmethod
    def empty(cls, draw: _Draw) -> _Found:
        batch = draw.batch
        return cls(
            sixteens=draw.empty(batch, SPLITS, 16, dtype=torch.float64),
            ones=draw.empty(batch, SPLITS, 16, dtype=torch.float64),
            levels=draw.empty(2, batch, dtype=torch.int32),
            aboves=draw.empty(2, batch, dtype=torch.float64),
            wanteds=draw.empty(batch, dtype=torch.float64),
            gathered=draw.empty(batch, SPLITS, _share(draw.vocab, BLOCK_BINS)),
            counts=draw.empty(batch, SPLITS, dtype=torch.int32),
            masses=draw.empty(batch, SPLITS, dtype=torch.float64),
        )


def _share(vocab: int, block: int) -> int:
    """Ids of a split."""
    return -(-vocab // (SPLITS * block)) * block
