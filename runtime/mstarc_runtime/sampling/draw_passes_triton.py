"""Triton kernels of `draw_triton`, which says what each does and in which order; the last is in `draw_cut_triton`. Row tables are those of
`sampling.device`."""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.early_triton import in_turn


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
def draw_adjust(
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
    PENALTY: tl.constexpr,
    NEVER: tl.constexpr,
    NOT_FIRST: tl.constexpr,
    ENDS: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out f32 [B, vocab]; by row and split: the largest logit, its lowest id, and whether there is a NaN."""
    in_turn(EARLY)
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    place = tl.zeros([BLOCK], tl.int32)
    bad = tl.zeros([BLOCK], tl.int32)
    until = tl.minimum((split + 1) * SHARE, vocab)
    penalty = tl.load(penalties + row)
    first = tl.load(counts + row) == 0
    early = tl.load(counts + row) < tl.load(min_tokens + row)
    for start in tl.static_range(0, SHARE, BLOCK):
        at = split * SHARE + start + tl.arange(0, BLOCK)
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
def _level(value, best, heat, LEVELS_EACH: tl.constexpr):
    """0 for the best, up to 255: falls with the value."""
    return tl.minimum(tl.maximum((best - value) / heat * LEVELS_EACH, 0.0), 255.0).to(tl.int32)


@triton.jit
def _joined(sums, row, SPLITS: tl.constexpr):
    """The sums [16] of all splits of a row."""
    split = tl.arange(0, SPLITS)
    digit = tl.arange(0, 16)
    return tl.sum(tl.load(sums + (row * SPLITS + split[:, None]) * 16 + digit[None, :]), 0)


@triton.jit
def _reached(bins, above, wanted):
    """The bin that brings the sum from `above` to `wanted`, or the last that holds anything; and the sum before it."""
    digit = tl.arange(0, 16)
    upto = above + tl.sum(tl.where(digit[None, :] <= digit[:, None], bins[None, :], 0.0), 1)
    last = tl.max(tl.where(bins > 0, digit, 0), 0)
    found = tl.min(tl.where(upto >= wanted, digit, last), 0)
    return found, above + tl.sum(tl.where(digit < found, bins, 0.0), 0)


@triton.jit
def _floor_bin(bins, floors, stays, row, best, heat, prefix, STEP: tl.constexpr, LEVELS_EACH: tl.constexpr):
    """The bins with what top-k left of the ids at its cut, which no program counts."""
    floor = tl.load(floors + row)
    level = _level(_value(floor), best, heat, LEVELS_EACH)
    tie = tl.exp((_value(floor) - best) / heat).to(tl.float64)
    if STEP == 0:
        here = (floor >= 0) & (tl.arange(0, 16) == level // 16)
    else:
        here = (floor >= 0) & (level // 16 == prefix) & (tl.arange(0, 16) == level % 16)
    return bins + tl.where(here, tl.load(stays + row) * tie, 0.0)


@triton.jit
def draw_bins(
    x,
    tops,
    temperatures,
    top_k,
    top_p,
    floors,
    stays,
    sums,
    before,
    levels,
    aboves,
    wanteds,
    vocab,
    STEP: tl.constexpr,
    MASS: tl.constexpr,
    FLOORED: tl.constexpr,
    COLDEST: tl.constexpr,
    LEVELS_EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Sums by level / 16, or (STEP 1), of the levels whose sixteen was found, by level % 16. `wanteds`: the sum to reach.

    MASS: weights are summed, else ones. FLOORED: only keys above `floors` count; `stays` more lie on it. STEP 1 finds the sixteen
    (`levels`) and the sum before it (`aboves`).
    """
    in_turn(EARLY)
    split = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    best = _best(tops, SPLITS, row)
    heat = tl.maximum(tl.load(temperatures + row), COLDEST)
    prefix = tl.zeros([], tl.int32)
    if STEP == 1:
        bins = _joined(before, row, SPLITS)
        if FLOORED:
            bins = _floor_bin(bins, floors, stays, row, best, heat, prefix, 0, LEVELS_EACH)
        if MASS:
            share = tl.load(top_p + row)
            wanted = tl.where(share < 1.0, tl.maximum(tl.sum(bins, 0) * share, 1.0), 1.0)
        else:
            k = tl.load(top_k + row)
            wanted = tl.where((k > 0) & (k < vocab), k, 1).to(tl.float64)
        prefix, above = _reached(bins, tl.zeros([], tl.float64), wanted)
        if split == 0:
            tl.store(levels + row, prefix)
            tl.store(aboves + row, above)
            tl.store(wanteds + row, wanted)
    floor = tl.zeros([], tl.int64)
    if FLOORED:
        floor = tl.load(floors + row)
    digit = tl.arange(0, 16)
    # a thread has all bins of its ids; f32 will do: a lane adds few weights, none above 1
    acc = tl.zeros([16, BLOCK], tl.float32)
    for start in tl.static_range(0, SHARE, BLOCK):
        at = split * SHARE + start + tl.arange(0, BLOCK)
        counts = at < vocab
        value = tl.load(x + row * vocab + at, mask=counts, other=float("-inf"))
        if FLOORED:
            counts = counts & (_key(value) > floor)
        level = _level(value, best, heat, LEVELS_EACH)
        mine = level // 16
        if STEP == 1:
            counts = counts & (mine == prefix)
            mine = level % 16
        weight = tl.full([BLOCK], 1.0, tl.float32)
        if MASS:
            weight = tl.exp((value - best) / heat)
        acc += tl.where((digit[:, None] == mine[None, :]) & counts[None, :], weight[None, :], 0.0)
    tl.store(sums + (row * SPLITS + split) * 16 + digit, tl.sum(acc.to(tl.float64), 1))


@triton.jit
def draw_gather(
    x,
    tops,
    temperatures,
    floors,
    stays,
    sixteens,
    ones,
    levels,
    aboves,
    wanteds,
    gathered,
    counts,
    masses,
    vocab,
    FLOORED: tl.constexpr,
    COLDEST: tl.constexpr,
    LEVELS_EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """By row and split: the logits of the level that the cut lies in, how many there are, and the sum of the levels before it.

    `levels` and `aboves` [2, rows] hold the sixteen that was found and the sum before it, and get the level and the sum before that.
    """
    in_turn(EARLY)
    split = tl.program_id(0)
    rows = tl.num_programs(1)
    row = tl.program_id(1).to(tl.int64)
    best = _best(tops, SPLITS, row)
    heat = tl.maximum(tl.load(temperatures + row), COLDEST)
    prefix = tl.load(levels + row)
    bins = _joined(ones, row, SPLITS)
    floor = tl.full([], -1, tl.int64)
    if FLOORED:
        floor = tl.load(floors + row)
        bins = _floor_bin(bins, floors, stays, row, best, heat, prefix, 1, LEVELS_EACH)
    found, above = _reached(bins, tl.load(aboves + row), tl.load(wanteds + row))
    level = prefix * 16 + found
    if split == 0:
        tl.store(levels + rows + row, level)
        tl.store(aboves + rows + row, above)
    digit = tl.arange(0, 16)
    mine = (row * SPLITS + split) * 16 + digit
    sum_16, sum_1 = tl.load(sixteens + mine), tl.load(ones + mine)
    higher = tl.sum(tl.where(digit < prefix, sum_16, 0.0), 0) + tl.sum(tl.where(digit < found, sum_1, 0.0), 0)
    tl.store(masses + row * SPLITS + split, higher)
    there = tl.zeros([], tl.int32)
    until = tl.minimum((split + 1) * SHARE, vocab)
    for start in tl.static_range(0, SHARE, BLOCK):
        at = split * SHARE + start + tl.arange(0, BLOCK)
        value = tl.load(x + row * vocab + at, mask=at < until, other=float("-inf"))
        chosen = (at < until) & (_level(value, best, heat, LEVELS_EACH) == level)
        if FLOORED:
            chosen = chosen & (_key(value) > floor)
        place = there + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(gathered + (row * SPLITS + split) * SHARE + place, value, mask=chosen)
        there += tl.sum(chosen.to(tl.int32), 0)
    tl.store(counts + row * SPLITS + split, there)


@triton.jit
def draw_remember(seen, ids, active, vocab, EARLY: tl.constexpr):
    """One id of a row counts for the penalty if the row is active."""
    in_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(ids + row)
    on = (tl.load(active + row) != 0) & (token >= 0) & (token < vocab)
    tl.store(seen + row * vocab + token, 1, mask=on)
