"""The last pass of a search of `draw_triton`: the cut of a row among the few logits that were gathered, and the id that is drawn."""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.early_triton import in_turn
from mstarc_runtime.sampling.draw_passes_triton import _best, _key, _level, _value


@triton.jit
def draw_cut(
    x, tops, places, broken, temperatures, top_k, top_p, numbers, floors, stays, floor_ties,
    sixteens, levels, aboves, wanteds, gathered, counts, masses, active, seen, draws, ids, usable, vocab,
    MASS: tl.constexpr, FLOORED: tl.constexpr, PENALTY: tl.constexpr, COLDEST: tl.constexpr, LEVELS_EACH: tl.constexpr,
    SPLITS: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr, GATHERED: tl.constexpr, HELD: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The cut of a row among what was gathered.

    Without MASS, for top-k: writes the cut (`floors`; -1 if it is off), how many of the ids on it stay (`stays`) and how many are on it in
    each split (`floor_ties`). With it: picks the id of the row; if the row is active, that joins its history (`seen`) and counts (`draws`).
    """
    in_turn(EARLY)
    rows = tl.num_programs(0)
    row = tl.program_id(0).to(tl.int64)
    best = _best(tops, SPLITS, row)
    heat = tl.maximum(tl.load(temperatures + row), COLDEST)
    wanted = tl.load(wanteds + row)
    level = tl.load(levels + rows + row)
    above = tl.load(aboves + rows + row)
    lane = tl.arange(0, SPLITS)
    most = tl.max(tl.load(counts + row * SPLITS + lane), 0)
    member = tl.arange(0, SPLITS * GATHERED)
    place = gathered + row * SPLITS * SHARE + (member // GATHERED) * SHARE + member % GATHERED
    left = tl.load(counts + row * SPLITS + member // GATHERED) - member % GATHERED
    held = ()  # what a split has beyond these is loaded again each time
    for n in tl.static_range(HELD):
        held = held + (_members(place, left, n * GATHERED, best, heat, MASS),)  # type: ignore[assignment]  # noqa: RUF005 (Triton does not unpack)
    cut = _cut_key(held, place, left, most, best, heat, wanted - above, MASS, SPLITS, GATHERED, HELD)
    higher, ties = _around_cut(held, place, left, most, cut, best, heat, MASS, SPLITS, GATHERED, HELD)
    mass = tl.load(masses + row * SPLITS + lane) + higher
    above += tl.sum(higher, 0)
    if MASS:
        cut, stay, mass, ties = _staying(
            top_p, floors, stays, floor_ties, sixteens, row, level, cut, wanted, above, most, mass, ties, best, heat,
            FLOORED, LEVELS_EACH, SPLITS,
        )  # fmt: skip
        found, fine = _pick(
            x, tops, places, broken, temperatures, numbers, row, cut, stay, mass, ties, best, heat, vocab,
            SPLITS, SHARE, WIDE,
        )  # fmt: skip
        tl.store(ids + row, tl.where(fine, found, 0).to(tl.int64))
        tl.store(usable + row, fine)
        joins = fine & (tl.load(active + row) != 0)
        tl.store(draws + row, tl.load(draws + row) + joins.to(tl.int64))
        if PENALTY:
            tl.store(seen + row * vocab + found, 1, mask=joins)
    else:
        k = tl.load(top_k + row)
        on = (k > 0) & (k < vocab)
        tl.store(floors + row, tl.where(on, cut, -1))
        tl.store(stays + row, tl.where(on, wanted - above, 0.0))
        tl.store(floor_ties + row * SPLITS + lane, tl.where(on, ties, 0))


@triton.jit
def _members(place, left, start, best, heat, MASS: tl.constexpr):
    """What was gathered of each split from `start` on, if any is `left` there: keys i64, else -1, and weights f64, ones if not MASS.

    Lanes [SPLITS * GATHERED] begin at `place`, and have so many `left`. Where there is nothing the weight is 0.
    """
    inside = start < left
    value = tl.load(place + start, mask=inside, other=0.0)
    weight = tl.exp((value - best) / heat) if MASS else tl.full(value.shape, 1.0, tl.float32)
    return tl.where(inside, _key(value), -1), tl.where(inside, weight, 0.0).to(tl.float64)


@triton.jit
def _cut_key(
    held, place, left, most, best, heat, wanted,
    MASS: tl.constexpr, SPLITS: tl.constexpr, GATHERED: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """The largest key such that it and those above weigh `wanted`, or the smallest one; found by halving. The fullest split has `most`."""
    lowest = tl.full([SPLITS * GATHERED], 4294967295, tl.int64)
    highest = tl.zeros([SPLITS * GATHERED], tl.int64)
    for n in tl.static_range(HELD):
        key, _ = held[n]
        lowest, highest = tl.minimum(lowest, tl.where(key < 0, 4294967295, key)), tl.maximum(highest, key)
    for start in range(HELD * GATHERED, most, GATHERED):
        key, _ = _members(place, left, start, best, heat, MASS)
        lowest, highest = tl.minimum(lowest, tl.where(key < 0, 4294967295, key)), tl.maximum(highest, key)
    low, high = tl.min(lowest, 0), tl.max(highest, 0)
    while low < high:
        tried = (low + high + 1) // 2
        weights = tl.zeros([SPLITS * GATHERED], tl.float64)
        for n in tl.static_range(HELD):
            key, weight = held[n]
            weights += tl.where(key >= tried, weight, 0.0)
        for start in range(HELD * GATHERED, most, GATHERED):
            key, weight = _members(place, left, start, best, heat, MASS)
            weights += tl.where(key >= tried, weight, 0.0)
        reached = tl.sum(weights, 0) >= wanted
        low, high = tl.where(reached, tried, low), tl.where(reached, high, tried - 1)
    return low


@triton.jit
def _around_cut(
    held, place, left, most, cut, best, heat,
    MASS: tl.constexpr, SPLITS: tl.constexpr, GATHERED: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """By split [SPLITS]: the weights of what was gathered above the cut, f64, and how many lie on it."""
    higher = tl.zeros([SPLITS * GATHERED], tl.float64)
    ties = tl.zeros([SPLITS * GATHERED], tl.int32)
    for n in tl.static_range(HELD):
        key, weight = held[n]
        higher += tl.where(key > cut, weight, 0.0)
        ties += (key == cut).to(tl.int32)
    for start in range(HELD * GATHERED, most, GATHERED):
        key, weight = _members(place, left, start, best, heat, MASS)
        higher += tl.where(key > cut, weight, 0.0)
        ties += (key == cut).to(tl.int32)
    return tl.sum(tl.reshape(higher, [SPLITS, GATHERED]), 1), tl.sum(tl.reshape(ties, [SPLITS, GATHERED]), 1)


@triton.jit
def _staying(
    top_p, floors, stays, floor_ties, sixteens, row, level, cut, wanted, above, most, mass, ties, best, heat,
    FLOORED: tl.constexpr, LEVELS_EACH: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """The cut of top-p, how many of the ids on it stay, and by split the mass above it and the ids on it.

    Where the sum is only reached with the ids on the cut of top-k, which no program counted, or top-p is off, the cut is that one.
    """
    digit = tl.arange(0, 16)
    lane = tl.arange(0, SPLITS)
    tie = tl.exp((_value(cut) - best) / heat).to(tl.float64)
    stay = tl.maximum(tl.ceil((wanted - above) / tl.maximum(tie, 1e-300)), 1.0)
    on = tl.load(top_p + row) < 1.0
    all_ties = tl.zeros([SPLITS], tl.int32)
    all_stay = tl.zeros([], tl.float64)
    fell = most == 0
    floor = tl.full([], -1, tl.int64)
    if FLOORED:
        floor = tl.load(floors + row)
        all_ties = tl.load(floor_ties + row * SPLITS + lane)
        all_stay = tl.load(stays + row)
        passes = above + tie * tl.sum(ties, 0) < wanted
        fell = fell | (passes & (floor >= 0) & (_level(_value(floor), best, heat, LEVELS_EACH) == level))
        floor_tie = tl.exp((_value(floor) - best) / heat).to(tl.float64)
        upto = tl.where(most == 0, above, above + tie * tl.sum(ties, 0))
        fallen = tl.maximum(tl.ceil((wanted - upto) / tl.maximum(floor_tie, 1e-300)), 1.0)
        stay = tl.where(fell, tl.minimum(fallen, all_stay), stay)
    stay = tl.where(on, stay, all_stay)
    falls = fell | (on == 0)
    splits_16 = tl.load(sixteens + (row * SPLITS + lane[:, None]) * 16 + digit[None, :])
    mass = tl.where(falls, tl.sum(splits_16, 1), mass)
    ties = tl.where(falls, all_ties, ties)
    return tl.where(falls, floor, cut), stay, mass, ties


@triton.jit
def _pick(
    x, tops, places, broken, temperatures, numbers, row, cut, stay, mass, ties, best, heat, vocab,
    SPLITS: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The id of a row: where the weights that stay, summed in id order, pass the number; the best one at temperature 0. And if it is fine.

    By split: the `mass` above the cut and how many `ties` lie on it; `stay` of all ties stay. The split is found first, a piece of it then.
    """
    tie = tl.where(cut >= 0, tl.exp((_value(cut) - best) / heat), 0.0).to(tl.float64)
    target = tl.load(numbers + row) * tl.sum(_kept(mass, ties, stay, tie), 0)
    split, target, stay = _passing(mass, ties, target, stay, tie)
    piece: tl.constexpr = WIDE // 64
    at = tl.arange(0, 64)[:, None] * piece + tl.arange(0, piece)[None, :]
    key, weight = _weights(x + row * vocab, split * SHARE + at, at < SHARE, best, heat, vocab)
    mass, ties = tl.sum(tl.where(key > cut, weight, 0.0), 1), tl.sum((key == cut).to(tl.int32), 1)
    found, target, stay = _passing(mass, ties, target, stay, tie)
    at = found * piece + tl.arange(0, piece)
    key, weight = _weights(x + row * vocab, split * SHARE + at, at < SHARE, best, heat, vocab)
    found, _, _ = _passing(tl.where(key > cut, weight, 0.0), (key == cut).to(tl.int32), target, stay, tie)
    drawn = tl.sum(tl.where(tl.arange(0, piece) == found, split * SHARE + at, 0), 0)
    lane = tl.arange(0, SPLITS)
    at_best = tl.load(tops + row * SPLITS + lane) == best
    greedy = tl.min(tl.where(at_best, tl.load(places + row * SPLITS + lane), 2147483647), 0)
    fine = (tl.max(tl.load(broken + row * SPLITS + lane), 0) == 0) & (best > float("-inf")) & (best < float("inf"))
    return tl.where(tl.load(temperatures + row) > 0, drawn, greedy), fine


@triton.jit
def _weights(x, at, inside, best, heat, vocab):
    """Keys i64 of the ids `at`, and weights f64; -1 and 0 where they are not `inside` or none."""
    inside = inside & (at < vocab)
    value = tl.load(x + at, mask=inside, other=float("-inf"))
    weight = tl.where(inside, tl.exp((value - best) / heat), 0.0).to(tl.float64)
    return tl.where(inside, _key(value), -1), weight


@triton.jit
def _kept(mass, ties, stay, tie):
    """The weight of each group: `mass`, and those of its `ties` that are among the first `stay` of all."""
    counts = ties.to(tl.float64)
    return mass + tie * tl.minimum(tl.maximum(stay - (tl.cumsum(counts, 0) - counts), 0.0), counts)


@triton.jit
def _passing(mass, ties, target, stay, tie):
    """The first group with which the sum of weights passes `target`, or the last with any; what is left of `target` and `stay` for it."""
    sums = _kept(mass, ties, stay, tie)
    upto = tl.cumsum(sums, 0)
    group = tl.arange(0, mass.shape[0])
    last = tl.max(tl.where(sums > 0, group, 0), 0)
    found = tl.min(tl.where((upto > target) & (sums > 0), group, last), 0)
    before = group < found
    return found, target - tl.sum(tl.where(before, sums, 0.0), 0), stay - tl.sum(tl.where(before, ties, 0), 0)
