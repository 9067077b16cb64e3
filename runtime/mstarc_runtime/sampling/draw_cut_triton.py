"""The last pass of a search of `draw_triton`: the cut of a row among the few logits that were gathered, and the id that is drawn."""

from __future__ import annotations

import triton
import triton.language as tl

from mstarc_runtime.engines.early_triton import in_turn
from mstarc_runtime.sampling.draw_passes_triton import _best, _key, _level, _reached, _value


@triton.jit
def draw_cut(
    x,
    tops,
    places,
    broken,
    temperatures,
    top_k,
    top_p,
    numbers,
    floors,
    stays,
    floor_ties,
    sixteens,
    levels,
    aboves,
    wanteds,
    gathered,
    counts,
    masses,
    ids,
    usable,
    vocab,
    MASS: tl.constexpr,
    FLOORED: tl.constexpr,
    COLDEST: tl.constexpr,
    LEVELS_EACH: tl.constexpr,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    WIDE: tl.constexpr,
    GATHERED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The cut of a row among what was gathered.

    Without MASS, for top-k: writes the cut (`floors`; -1 if it is off), how many of the ids on it stay (`stays`) and how many are on it in
    each split (`floor_ties`). With it: picks the id of the row.
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
    have = tl.load(counts + row * SPLITS + lane)
    most = tl.max(have, 0)
    member = tl.arange(0, SPLITS * GATHERED)
    place = gathered + row * SPLITS * SHARE + (member // GATHERED) * SHARE + member % GATHERED
    have_here = tl.load(counts + row * SPLITS + member // GATHERED)
    low, high = _bounds(place, have_here, most, SPLITS, GATHERED)
    cut, above = _cut_key(place, have_here, most, low, high, best, heat, wanted, above, MASS, SPLITS, GATHERED)
    mass = tl.load(masses + row * SPLITS + lane)
    mass, ties = _around_cut(gathered, have, most, row, cut, mass, best, heat, MASS, SPLITS, SHARE, GATHERED)
    if MASS:
        cut, stay, mass, ties = _staying(
            top_p, floors, stays, floor_ties, sixteens, row, level, cut, wanted, above, most, mass, ties, best, heat,
            FLOORED, LEVELS_EACH, SPLITS,
        )  # fmt: skip
        _pick(
            x, tops, places, broken, temperatures, numbers, ids, usable, row, cut, stay, mass, ties, best, heat, vocab,
            SPLITS, SHARE, WIDE,
        )  # fmt: skip
    else:
        k = tl.load(top_k + row)
        on = (k > 0) & (k < vocab)
        tl.store(floors + row, tl.where(on, cut, -1))
        tl.store(stays + row, tl.where(on, wanted - above, 0.0))
        tl.store(floor_ties + row * SPLITS + lane, tl.where(on, ties, 0))


@triton.jit
def _bounds(place, have, most, SPLITS: tl.constexpr, GATHERED: tl.constexpr):
    """The smallest and the largest key of what was gathered. Lanes [SPLITS * GATHERED] begin at `place`; their splits hold `have`, the
    fullest of them `most`."""
    member = tl.arange(0, SPLITS * GATHERED)
    lowest = tl.full([SPLITS * GATHERED], 4294967295, tl.int64)
    highest = tl.zeros([SPLITS * GATHERED], tl.int64)
    for start in range(0, most, GATHERED):
        inside = start + member % GATHERED < have
        key = _key(tl.load(place + start, mask=inside, other=0.0))
        lowest = tl.minimum(lowest, tl.where(inside, key, 4294967295))
        highest = tl.maximum(highest, tl.where(inside, key, 0))
    return tl.min(lowest, 0), tl.max(highest, 0)


@triton.jit
def _cut_key(
    place, have, most, low, high, best, heat, wanted, above,
    MASS: tl.constexpr, SPLITS: tl.constexpr, GATHERED: tl.constexpr,
):  # fmt: skip
    """The key that brings the sum from `above` to `wanted`, and the sum of what lies above it: four bits at a time, the highest first.
    Bits in which `low` and `high` agree need no sum."""
    digit = tl.arange(0, 16)
    member = tl.arange(0, SPLITS * GATHERED)
    cut = tl.zeros([], tl.int64)
    for step in range(8):
        shift = 28 - 4 * step
        if low >> shift == high >> shift:
            cut = high >> shift
        else:
            acc = tl.zeros([16, SPLITS * GATHERED], tl.float32)
            for start in range(0, most, GATHERED):
                inside = start + member % GATHERED < have
                some = tl.load(place + start, mask=inside, other=0.0)
                key = _key(some)
                inside = inside & ((key >> (shift + 4)) == cut)
                weight = tl.full([SPLITS * GATHERED], 1.0, tl.float32)
                if MASS:
                    weight = tl.exp((some - best) / heat)
                which = 15 - ((key >> shift) & 15).to(tl.int32)
                acc += tl.where((digit[:, None] == which[None, :]) & inside[None, :], weight[None, :], 0.0)
            found, above = _reached(tl.sum(acc.to(tl.float64), 1), above, wanted)
            cut = cut * 16 + 15 - found
    return cut, above


@triton.jit
def _around_cut(
    gathered, have, most, row, cut, mass, best, heat,
    MASS: tl.constexpr, SPLITS: tl.constexpr, SHARE: tl.constexpr, GATHERED: tl.constexpr,
):  # fmt: skip
    """By split [SPLITS]: `mass` with the weights of what was gathered above the cut, and how many lie on it."""
    lane = tl.arange(0, SPLITS)
    column = tl.arange(0, GATHERED)
    ties = tl.zeros([SPLITS], tl.int32)
    for start in range(0, most, GATHERED):
        spot = (row * SPLITS + lane[:, None]) * SHARE + start + column[None, :]
        inside = (start + column)[None, :] < have[:, None]
        some = tl.load(gathered + spot, mask=inside, other=0.0)
        key = _key(some)
        if MASS:
            weight = tl.exp((some - best) / heat).to(tl.float64)
            mass += tl.sum(tl.where(inside & (key > cut), weight, 0.0), 1)
        ties += tl.sum((inside & (key == cut)).to(tl.int32), 1)
    return mass, ties


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
    x,
    tops,
    places,
    broken,
    temperatures,
    numbers,
    ids,
    usable,
    row,
    cut,
    stay,
    mass,
    ties,
    best,
    heat,
    vocab,
    SPLITS: tl.constexpr,
    SHARE: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The id of a row: where the weights that stay, summed in id order, pass the number; the best one at temperature 0.

    By split: the `mass` above the cut and how many `ties` lie on it; `stay` of all ties stay.
    """
    lane = tl.arange(0, SPLITS)
    tops_here = tl.load(tops + row * SPLITS + lane)
    temperature = tl.load(temperatures + row)
    tie = tl.where(cut >= 0, tl.exp((_value(cut) - best) / heat), 0.0).to(tl.float64)
    counts = ties.to(tl.float64)
    earlier = tl.cumsum(counts, 0) - counts
    kept = tl.minimum(tl.maximum(stay - earlier, 0.0), counts)
    sums = mass + tie * kept
    upto = tl.cumsum(sums, 0)
    total = tl.max(upto, 0)
    target = tl.load(numbers + row) * total
    passed = tl.sum((upto <= target).to(tl.int32), 0)
    split = tl.minimum(passed, tl.sum((upto < total).to(tl.int32), 0))
    base = tl.sum(tl.where(lane < split, sums, 0.0), 0)
    seen = tl.sum(tl.where(lane < split, counts, 0.0), 0)
    at = split * SHARE + tl.arange(0, WIDE)
    inside = (at < (split + 1) * SHARE) & (at < vocab)
    value = tl.load(x + row * vocab + at, mask=inside, other=float("-inf"))
    key = _key(value)
    on_cut = inside & (key == cut)
    rank = seen + tl.cumsum(on_cut.to(tl.int32), 0)
    stays_in = inside & ((key > cut) | (on_cut & (rank <= stay)))
    weight = tl.where(stays_in, tl.exp((value - best) / heat).to(tl.float64), 0.0)
    running = base + tl.cumsum(weight, 0)
    first = tl.min(tl.where((running > target) & (weight > 0), at, 2147483647), 0)
    last = tl.max(tl.where(weight > 0, at, 0), 0)
    drawn = tl.where(first < 2147483647, first, last)
    greedy = tl.min(tl.where(tops_here == best, tl.load(places + row * SPLITS + lane), 2147483647), 0)
    fine = (tl.max(tl.load(broken + row * SPLITS + lane), 0) == 0) & (best > float("-inf")) & (best < float("inf"))
    found = tl.where(temperature > 0, drawn, greedy)
    tl.store(ids + row, tl.where(fine, found, 0).to(tl.int64))
    tl.store(usable + row, fine)
