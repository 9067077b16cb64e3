"""Draws of `sampling.device` as Triton kernels: each pass splits every row among many programs, so that a small batch fills the GPU.

`draw_adjust` writes logits after penalty and suppression, and finds the best. A cut (the smallest key that stays) is found in three passes:
by how far below the best they lie, logits have one of 256 levels; two `draw_bins` passes sum what the levels hold (weights for top-p, ones
for top-k), sixteen bins at a time; `draw_cut` gathers the logits of the level that the cut lies in, by split, and the program of a row
that is done last finishes it on these few. After the last cut it knows what stays in each split, and picks the id. What one pass has
summed is joined by the programs of the next. Keys, rules and rounding are those of `sampling.device`: f32 weights, f64 sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import triton
from torch import Tensor

from mstarc_runtime.engines.early_triton import early
from mstarc_runtime.sampling import draw_passes_triton as passes

if TYPE_CHECKING:
    from mstarc_runtime.sampling.device import SamplerPlan

SPLITS = 64  # programs of a row
BLOCK = 1024
BLOCK_BINS = 256  # lanes of a program of `draw_bins`, each of which keeps 16 sums
FEW_ROWS = 4  # with more, so many programs run that a quarter of the lanes does the same, and their sums are joined in less time
LEVELS_EACH = 256 / 24  # levels per temperature: what lies 24 temperatures below the best or lower has the last one
GATHERED = 16  # logits of each split that `draw_cut` takes at a time
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


def draw(rows: Tables, logits: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """Ids i64 [B] and usable rows bool [B] of logits [B, vocab] in any float type; see `SamplerRows.draw`. Histories stay."""
    return _Draw(rows, logits).run(number)


def remember(rows: Tables, ids: Tensor, active: Tensor, usable: Tensor | None) -> None:
    """Ids i64 [B] of the active rows join their histories; as draws if `usable` (bool [B]) says which of them are."""
    penalty = rows.plan.penalty
    passes.draw_remember[(len(ids),)](
        rows.seen.view(torch.uint8) if penalty else ids,
        rows.count,
        ids,
        active,
        active if usable is None else usable,
        rows.vocab,
        PENALTY=penalty,
        DRAWN=usable is not None,
        num_warps=1,
        **early(ids.device),
    )


class _Draw:
    """One draw's buffers and launches."""

    def __init__(self, rows: Tables, logits: Tensor) -> None:
        self.rows, self.logits = rows, logits
        self.batch, self.vocab = logits.shape
        self.grid = (SPLITS, self.batch)
        self.x = self.empty(self.batch, self.vocab)
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

    def run(self, number: Tensor) -> tuple[Tensor, Tensor]:
        rows, plan = self.rows, self.rows.plan
        passes.draw_adjust[self.grid](
            self.logits,
            self.logits.stride(0),
            rows.seen.view(torch.uint8) if plan.penalty else self.x,
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
            self.search(number, mass=False, floored=False)
        self.search(number, mass=True, floored=plan.top_k)
        return self.ids, self.usable

    def search(self, number: Tensor, mass: bool, floored: bool) -> None:
        """Find the cut by counting (top-k) or by weights (top-p, above the cut of top-k if `floored`), and with it pick the ids."""
        rows = self.rows
        sixteens, ones = (self.empty(self.batch, SPLITS, 16, dtype=torch.float64) for _ in range(2))
        levels = self.empty(2, self.batch, dtype=torch.int32)
        aboves = self.empty(2, self.batch, dtype=torch.float64)
        wanteds = self.empty(self.batch, dtype=torch.float64)
        share = _share(self.vocab, BLOCK_BINS)
        lanes = BLOCK_BINS if self.batch <= FEW_ROWS else BLOCK_BINS // 4
        gathered = self.empty(self.batch, SPLITS, share)
        counts = self.empty(self.batch, SPLITS, dtype=torch.int32)
        masses = self.empty(self.batch, SPLITS, dtype=torch.float64)
        common = {
            "FLOORED": floored,
            "COLDEST": _COLDEST,
            "LEVELS_EACH": LEVELS_EACH,
            "SPLITS": SPLITS,
            "SHARE": share,
            **early(self.logits.device),
        }
        for step in range(2):
            passes.draw_bins[self.grid](
                self.x,
                self.tops,
                rows.temperature,
                rows.top_k,
                rows.top_p,
                self.floors,
                self.stays,
                ones if step else sixteens,
                sixteens,
                levels,
                aboves,
                wanteds,
                self.vocab,
                STEP=step,
                MASS=mass,
                BLOCK=lanes,
                num_warps=lanes // 32,
                **common,
            )
        passes.draw_gather[self.grid](
            self.x,
            self.tops,
            rows.temperature,
            self.floors,
            self.stays,
            sixteens,
            ones,
            levels,
            aboves,
            wanteds,
            gathered,
            counts,
            masses,
            self.vocab,
            BLOCK=BLOCK,
            **common,
        )
        passes.draw_cut[(self.batch,)](
            self.x,
            self.tops,
            self.places,
            self.broken,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            number,
            self.floors,
            self.stays,
            self.floor_ties,
            sixteens,
            levels,
            aboves,
            wanteds,
            gathered,
            counts,
            masses,
            self.ids,
            self.usable,
            self.vocab,
            MASS=mass,
            WIDE=triton.next_power_of_2(share),
            GATHERED=GATHERED,
            num_warps=8,
            **common,
        )


def _share(vocab: int, block: int) -> int:
    """Ids of a split."""
    return -(-vocab // (SPLITS * block)) * block
