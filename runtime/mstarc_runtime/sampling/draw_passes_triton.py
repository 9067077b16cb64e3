"""Triton kernels of `draw_triton`, which says what each does and in which order. Row tables are those of `sampling.device`."""

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
    acc = tl.zeros(
        [16, BLOCK], tl.float32
    )  # so that a thread has all bins of its ids; a lane adds few weights, none above 1
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
    digit = tl.arange(0, 16)
    lane = tl.arange(0, SPLITS)
    have = tl.load(counts + row * SPLITS + lane)
    most = tl.max(have, 0)
    member = tl.arange(0, SPLITS * GATHERED)
    place = gathered + row * SPLITS * SHARE + (member // GATHERED) * SHARE + member % GATHERED
    have_here = tl.load(counts + row * SPLITS + member // GATHERED)
    lowest = tl.full([SPLITS * GATHERED], 4294967295, tl.int64)
    highest = tl.zeros([SPLITS * GATHERED], tl.int64)
    for start in range(0, most, GATHERED):
        inside = start + member % GATHERED < have_here
        key = _key(tl.load(place + start, mask=inside, other=0.0))
        lowest = tl.minimum(lowest, tl.where(inside, key, 4294967295))
        highest = tl.maximum(highest, tl.where(inside, key, 0))
    low, high = tl.min(lowest, 0), tl.max(highest, 0)
    cut = tl.zeros([], tl.int64)
    for step in range(8):
        shift = 28 - 4 * step
        if low >> shift == high >> shift:
            cut = high >> shift
        else:
            acc = tl.zeros([16, SPLITS * GATHERED], tl.float32)
            for start in range(0, most, GATHERED):
                inside = start + member % GATHERED < have_here
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
    mass = tl.load(masses + row * SPLITS + lane)
    ties = tl.zeros([SPLITS], tl.int32)
    column = tl.arange(0, GATHERED)
    for start in range(0, most, GATHERED):
        spot = (row * SPLITS + lane[:, None]) * SHARE + start + column[None, :]
        inside = (start + column)[None, :] < have[:, None]
        some = tl.load(gathered + spot, mask=inside, other=0.0)
        key = _key(some)
        if MASS:
            weight = tl.exp((some - best) / heat).to(tl.float64)
            mass += tl.sum(tl.where(inside & (key > cut), weight, 0.0), 1)
        ties += tl.sum((inside & (key == cut)).to(tl.int32), 1)

    if MASS:
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
        cut = tl.where(falls, floor, cut)
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


@triton.jit
def draw_remember(
    seen, counts, ids, active, usable, vocab, PENALTY: tl.constexpr, DRAWN: tl.constexpr, EARLY: tl.constexpr
):
    """One id of a row joins its history if the row is active: it counts for the penalty and, if it was DRAWN, as a draw."""
    in_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    on = tl.load(active + row) != 0
    if DRAWN:
        on = on & (tl.load(usable + row) != 0)
        tl.store(counts + row, tl.load(counts + row) + on.to(tl.int64))
    if PENALTY:
        token = tl.load(ids + row)
        tl.store(seen + row * vocab + token, 1, mask=on & (token >= 0) & (token < vocab))
