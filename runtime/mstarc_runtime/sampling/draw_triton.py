"""Draws of `sampling.device` as Triton kernels: each pass splits every row among many programs, so that a small batch fills the GPU.

Passes: `_adjust` writes logits after penalty and suppression, and finds the best; `_digit` finds the smallest key that stays four bits
at a time, by summing what each of 16 bins holds (weights for top-p, ones for top-k); `_measure` sums what stays, by split; `_pick`
finds the split in which the sum passes the random number, and then the id. What one pass has summed is joined by the programs of
the next. Keys, rules and rounding are those of `sampling.device`: f32 weights, f64 sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from mstarc_runtime.sampling.device import SamplerPlan

SPLITS = 64  # programs of a row
BLOCK = 1024
BLOCK_DIGIT = 256  # a program of `_digit` keeps 16 sums for each of these
DIGITS = 8  # of four bits
_COLDEST = torch.finfo(torch.float32).tiny


@triton.jit
def _key(x):
    """i64 in 0..2**32-1 that orders like the f32 x."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(tl.int64) + 2147483648


@triton.jit
def _value(key):
    """The f32 of a key."""
    ordered = (key - 2147483648).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _best(tops, SPLITS: tl.constexpr, row):
    return tl.max(tl.load(tops + row * SPLITS + tl.arange(0, SPLITS)), 0)


@triton.jit
def _adjust(
    logits,
    logits_row,
    seen,
    never,
    not_first,
    ends,
    penalties,
    counts,
    min_tokens,
    out,
    tops,
    places,
    broken,
    vocab,
    share,
    PENALTY: tl.constexpr,
    NEVER: tl.constexpr,
    NOT_FIRST: tl.constexpr,
    ENDS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out f32 [B, vocab]; by row and split: the largest logit, its lowest id, and whether there is a NaN."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    bad = tl.zeros([BLOCK], tl.int32)
    until = tl.minimum((split + 1) * share, vocab)
    penalty = tl.load(penalties + row)
    first = tl.load(counts + row) == 0
    early = tl.load(counts + row) < tl.load(min_tokens + row)
    for start in range(split * share, until, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < until
        x = tl.load(logits + row * logits_row + at, mask=inside, other=float("-inf")).to(tl.float32)
        if PENALTY:
            counted = tl.load(seen + row * vocab + at, mask=inside, other=0) != 0
            x = tl.where(counted, tl.where(x > 0, x / penalty, x * penalty), x)
        if NEVER:
            x = tl.where(tl.load(never + at, mask=inside, other=0) != 0, float("-inf"), x)
        if NOT_FIRST:
            x = tl.where((tl.load(not_first + at, mask=inside, other=0) != 0) & first, float("-inf"), x)
        if ENDS:
            x = tl.where((tl.load(ends + at, mask=inside, other=0) != 0) & early, float("-inf"), x)
        tl.store(out + row * vocab + at, x, mask=inside)
        bad = bad | (x != x).to(tl.int32)
        higher = x > top
        top = tl.where(higher, x, top)
        place = tl.where(higher, at, place)
    best = tl.max(top, 0)
    where = row * SPLITS + split
    tl.store(tops + where, best)
    tl.store(places + where, tl.min(tl.where(top == best, place, 2147483647), 0))
    tl.store(broken + where, tl.max(bad, 0))


@triton.jit
def _joined(sums, row, SPLITS: tl.constexpr):
    """The sums [16] of all splits of a row."""
    split = tl.arange(0, SPLITS)
    digit = tl.arange(0, 16)
    return tl.sum(tl.load(sums + (row * SPLITS + split[:, None]) * 16 + digit[None, :]), 0)


@triton.jit
def _chosen(bins, above, wanted):
    """The digit whose bin brings the sum from above to `wanted`, and the sum above that bin."""
    digit = tl.arange(0, 16)
    upto = above + tl.sum(tl.where(digit[None, :] >= digit[:, None], bins[None, :], 0.0), 1)  # bins from each digit on
    found = tl.max(tl.where(upto >= wanted, digit, 0), 0)
    return found, above + tl.sum(tl.where(digit > found, bins, 0.0), 0)


@triton.jit
def _digit(
    x,
    tops,
    temperatures,
    top_k,
    top_p,
    floors,
    surplus,
    sums,
    before,
    prefixes,
    aboves,
    wanteds,
    vocab,
    share,
    STEP: tl.constexpr,
    MASS: tl.constexpr,
    FLOORED: tl.constexpr,
    COLDEST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums by digit STEP of the keys that begin with the digits found so far; finds the one before first. `wanteds`: the sum to reach.

    MASS: weights are summed, else ones. FLOORED: keys below `floors` do not count, and of those equal to it `surplus` are too many.
    The state after STEP digits lies at [STEP, row] of `prefixes`, `aboves`, `wanteds`.
    """
    split = tl.program_id(0)
    rows = tl.num_programs(1)
    row = tl.program_id(1).to(tl.int64)
    prefix = tl.zeros([], tl.int64)
    above = tl.zeros([], tl.float64)
    if STEP > 0:
        bins = _joined(before, row, SPLITS)
        if STEP == 1:
            total = tl.sum(bins, 0)
            if MASS:
                wanted = tl.maximum(total * tl.load(top_p + row), 1.0)
            else:
                k = tl.load(top_k + row)
                wanted = tl.where((k > 0) & (k < vocab), k, vocab).to(tl.float64)
        else:
            prefix = tl.load(prefixes + (STEP - 1) * rows + row)
            above = tl.load(aboves + (STEP - 1) * rows + row)
            wanted = tl.load(wanteds + row)
        found, above = _chosen(bins, above, wanted)
        prefix = prefix * 16 + found
        if split == 0:
            tl.store(prefixes + STEP * rows + row, prefix)
            tl.store(aboves + STEP * rows + row, above)
            if STEP == 1:
                tl.store(wanteds + row, wanted)
    best = _best(tops, SPLITS, row)
    heat = tl.maximum(tl.load(temperatures + row), COLDEST)
    floor = tl.zeros([], tl.int64)
    if FLOORED:
        floor = tl.load(floors + row)
    digit = tl.arange(0, 16)
    acc = tl.zeros([BLOCK, 16], tl.float32)  # a lane adds few weights, none above 1
    until = tl.minimum((split + 1) * share, vocab)
    for start in range(split * share, until, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * vocab + at, mask=at < until, other=float("-inf"))
        key = _key(value)
        counts = (at < until) & ((key >> (32 - 4 * STEP)) == prefix)
        if FLOORED:
            counts = counts & (key >= floor)
        if tl.max(counts.to(tl.int32), 0) > 0:  # after a few digits most blocks hold no such key
            weight = tl.full([BLOCK], 1.0, tl.float32)
            if MASS:
                weight = tl.exp((value - best) / heat)
            weight = tl.where(counts, weight, 0.0)
            mine = ((key >> (28 - 4 * STEP)) & 15).to(tl.int32)
            acc += tl.where(mine[:, None] == digit[None, :], weight[:, None], 0.0)
    bins_here = tl.sum(acc.to(tl.float64), 0)
    if FLOORED:
        tie = tl.exp((_value(floor) - best) / heat).to(tl.float64)
        here = (split == 0) & ((floor >> (32 - 4 * STEP)) == prefix) & (digit == ((floor >> (28 - 4 * STEP)) & 15))
        bins_here -= tl.where(here, tie * tl.load(surplus + row), 0.0)
    tl.store(sums + (row * SPLITS + split) * 16 + digit, bins_here)


@triton.jit
def _settle(
    tops,
    temperatures,
    top_k,
    top_p,
    floors,
    stays,
    surplus,
    sums,
    prefixes,
    aboves,
    wanteds,
    cuts,
    vocab,
    MASS: tl.constexpr,
    FLOORED: tl.constexpr,
    COLDEST: tl.constexpr,
    SPLITS: tl.constexpr,
    LAST: tl.constexpr,
):
    """After the last digit: the smallest key that stays (`cuts`), and how many of the ids with it do (`stays`, f64).

    Without MASS, for top-k: also how many of them are too many (`surplus`). With it, for top-p: after top-k if FLOORED.
    """
    rows = tl.num_programs(0)
    row = tl.program_id(0).to(tl.int64)
    bins = _joined(sums, row, SPLITS)
    wanted = tl.load(wanteds + row)
    found, above = _chosen(bins, tl.load(aboves + LAST * rows + row), wanted)
    cut = tl.load(prefixes + LAST * rows + row) * 16 + found
    if MASS:
        heat = tl.maximum(tl.load(temperatures + row), COLDEST)
        best = _best(tops, SPLITS, row)
        tie = tl.exp((_value(cut) - best) / heat).to(tl.float64)
        stay = tl.maximum(tl.ceil((wanted - above) / tl.maximum(tie, 1e-300)), 1.0)
        floor = tl.zeros([], tl.int64) - 1
        stay_all = tl.zeros([], tl.float64)
        if FLOORED:
            floor = tl.load(floors + row)
            stay_all = tl.load(stays + row)
        stay = tl.where(cut == floor, tl.minimum(stay, stay_all), stay)
        on = tl.load(top_p + row) < 1.0
        cut = tl.where(on, cut, floor)
        stay = tl.where(on, stay, stay_all)
    else:
        stay = wanted - above
        ties = tl.sum(tl.where(tl.arange(0, 16) == found, bins, 0.0), 0)
        tl.store(surplus + row, ties - stay)
    tl.store(cuts + row, cut)
    tl.store(stays + row, stay)


@triton.jit
def _measure(
    x,
    tops,
    temperatures,
    cuts,
    masses,
    ties,
    vocab,
    share,
    COLDEST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """By row and split: the weights above the cut, and how many ids lie on it."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    best = _best(tops, SPLITS, row)
    heat = tl.maximum(tl.load(temperatures + row), COLDEST)
    cut = tl.load(cuts + row)
    mass = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.int32)
    until = tl.minimum((split + 1) * share, vocab)
    for start in range(split * share, until, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < until
        value = tl.load(x + row * vocab + at, mask=inside, other=float("-inf"))
        key = _key(value)
        weight = tl.exp((value - best) / heat).to(tl.float64)
        mass += tl.where(inside & (key > cut), weight, 0.0)
        count += (inside & (key == cut)).to(tl.int32)
    tl.store(masses + row * SPLITS + split, tl.sum(mass, 0))
    tl.store(ties + row * SPLITS + split, tl.sum(count, 0))


@triton.jit
def _pick(
    x,
    tops,
    places,
    broken,
    temperatures,
    numbers,
    cuts,
    stays,
    masses,
    ties,
    ids,
    usable,
    vocab,
    share,
    COLDEST: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The id of each row: where the weights that stay, summed in id order, pass the number; the best one at temperature 0."""
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, SPLITS)
    tops_here = tl.load(tops + row * SPLITS + lane)
    best = tl.max(tops_here, 0)
    temperature = tl.load(temperatures + row)
    heat = tl.maximum(temperature, COLDEST)
    cut = tl.load(cuts + row)
    stay = tl.load(stays + row)
    tie = tl.where(cut >= 0, tl.exp((_value(cut) - best) / heat), 0.0).to(tl.float64)
    counts = tl.load(ties + row * SPLITS + lane).to(tl.float64)
    earlier = tl.cumsum(counts, 0) - counts
    kept = tl.minimum(tl.maximum(stay - earlier, 0.0), counts)
    sums = tl.load(masses + row * SPLITS + lane) + tie * kept
    upto = tl.cumsum(sums, 0)
    total = tl.max(upto, 0)
    target = tl.load(numbers + row) * total
    passed = tl.sum((upto <= target).to(tl.int32), 0)
    mine = tl.minimum(passed, tl.sum((upto < total).to(tl.int32), 0))
    if split != mine:
        return
    base = tl.sum(tl.where(lane < mine, sums, 0.0), 0)
    seen = tl.sum(tl.where(lane < mine, counts, 0.0), 0)
    first = tl.full([], 2147483647, tl.int32)
    last = tl.zeros([], tl.int32)
    until = tl.minimum((split + 1) * share, vocab)
    for start in range(split * share, until, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < until
        value = tl.load(x + row * vocab + at, mask=inside, other=float("-inf"))
        key = _key(value)
        on_cut = inside & (key == cut)
        rank = seen + tl.cumsum(on_cut.to(tl.float64), 0)
        stays_in = (inside & (key > cut)) | (on_cut & (rank <= stay))
        weight = tl.where(stays_in, tl.exp((value - best) / heat).to(tl.float64), 0.0)
        running = base + tl.cumsum(weight, 0)
        first = tl.minimum(first, tl.min(tl.where((running > target) & (weight > 0), at, 2147483647), 0))
        last = tl.maximum(last, tl.max(tl.where(weight > 0, at, 0), 0))
        base += tl.sum(weight, 0)
        seen += tl.sum(on_cut.to(tl.float64), 0)
    drawn = tl.where(first < 2147483647, first, last)
    greedy = tl.min(tl.where(tops_here == best, tl.load(places + row * SPLITS + lane), 2147483647), 0)
    fine = (tl.max(tl.load(broken + row * SPLITS + lane), 0) == 0) & (best > float("-inf")) & (best < float("inf"))
    found = tl.where(temperature > 0, drawn, greedy)
    tl.store(ids + row, tl.where(fine, found, 0).to(tl.int64))
    tl.store(usable + row, fine)


@triton.jit
def _remember(seen, counts, ids, active, usable, vocab, PENALTY: tl.constexpr, DRAWN: tl.constexpr):
    """One id of a row joins its history if the row is active: it counts for the penalty and, if it was DRAWN, as a draw."""
    row = tl.program_id(0).to(tl.int64)
    on = tl.load(active + row) != 0
    if DRAWN:
        on = on & (tl.load(usable + row) != 0)
        tl.store(counts + row, tl.load(counts + row) + on.to(tl.int64))
    if PENALTY:
        token = tl.load(ids + row)
        tl.store(seen + row * vocab + token, 1, mask=on & (token >= 0) & (token < vocab))


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
    _remember[(len(ids),)](
        rows.seen.view(torch.uint8) if penalty else ids,
        rows.count,
        ids,
        active,
        active if usable is None else usable,
        rows.vocab,
        PENALTY=penalty,
        DRAWN=usable is not None,
        num_warps=1,
    )


class _Draw:
    """One draw's buffers and launches."""

    def __init__(self, rows: Tables, logits: Tensor) -> None:
        self.rows, self.logits = rows, logits
        self.batch, self.vocab = logits.shape
        self.share = triton.cdiv(triton.cdiv(self.vocab, SPLITS), BLOCK) * BLOCK
        self.grid = (SPLITS, self.batch)
        self.x = self.empty(self.batch, self.vocab)
        self.tops = self.empty(self.batch, SPLITS)
        self.cuts = torch.full((self.batch,), -1, dtype=torch.int64, device=logits.device)
        self.stays = self.empty(self.batch, dtype=torch.float64).zero_()
        self.surplus = self.empty(self.batch, dtype=torch.float64)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.logits.device)

    def run(self, number: Tensor) -> tuple[Tensor, Tensor]:
        rows, plan = self.rows, self.rows.plan
        places, broken = (self.empty(self.batch, SPLITS, dtype=torch.int32) for _ in range(2))
        _adjust[self.grid](
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
            places,
            broken,
            self.vocab,
            self.share,
            PENALTY=plan.penalty,
            NEVER=bool(plan.suppress),
            NOT_FIRST=bool(plan.suppress_first),
            ENDS=bool(plan.min_tokens and plan.ends),
            SPLITS=SPLITS,
            BLOCK=BLOCK,
        )
        if plan.top_k:
            self.search(mass=False, floored=False)
        if plan.top_p:
            self.search(mass=True, floored=plan.top_k)
        masses = self.empty(self.batch, SPLITS, dtype=torch.float64)
        ties = self.empty(self.batch, SPLITS, dtype=torch.int32)
        common = {"COLDEST": _COLDEST, "SPLITS": SPLITS, "BLOCK": BLOCK}
        _measure[self.grid](
            self.x, self.tops, rows.temperature, self.cuts, masses, ties, self.vocab, self.share, **common
        )
        ids = self.empty(self.batch, dtype=torch.int64)
        usable = self.empty(self.batch, dtype=torch.bool)
        _pick[self.grid](
            self.x,
            self.tops,
            places,
            broken,
            rows.temperature,
            number,
            self.cuts,
            self.stays,
            masses,
            ties,
            ids,
            usable,
            self.vocab,
            self.share,
            **common,
        )
        return ids, usable

    def search(self, mass: bool, floored: bool) -> None:
        """Find the cut by counting (top-k) or by weights (top-p, below the cut of top-k if `floored`)."""
        rows, floors = self.rows, self.cuts.clone()
        prefixes = self.empty(DIGITS, self.batch, dtype=torch.int64)
        aboves = self.empty(DIGITS, self.batch, dtype=torch.float64)
        wanteds = self.empty(self.batch, dtype=torch.float64)
        sums = [self.empty(self.batch, SPLITS, 16, dtype=torch.float64) for _ in range(2)]
        for step in range(DIGITS):
            _digit[self.grid](
                self.x,
                self.tops,
                rows.temperature,
                rows.top_k,
                rows.top_p,
                floors,
                self.surplus,
                sums[step % 2],
                sums[1 - step % 2],
                prefixes,
                aboves,
                wanteds,
                self.vocab,
                self.share,
                STEP=step,
                MASS=mass,
                FLOORED=floored,
                COLDEST=_COLDEST,
                SPLITS=SPLITS,
                BLOCK=BLOCK_DIGIT,
                num_warps=8,
            )
        _settle[(self.batch,)](
            self.tops,
            rows.temperature,
            rows.top_k,
            rows.top_p,
            floors,
            self.stays,
            self.surplus,
            sums[1 - DIGITS % 2],
            prefixes,
            aboves,
            wanteds,
            self.cuts,
            self.vocab,
            MASS=mass,
            FLOORED=floored,
            COLDEST=_COLDEST,
            SPLITS=SPLITS,
            LAST=DIGITS - 1,
        )
