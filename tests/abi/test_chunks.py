"""Chunk arithmetic: the chunker against first principles, and the closed forms against the chunker, by brute force."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from mstarc_runtime.abi.chunks import (
    Chunker,
    ChunkInfo,
    Fixed,
    LeftContext,
    Phrase,
    Policy,
    SlidingWindow,
    aligned,
    capacity_sum,
    chunks,
    firings,
    fresh_tail,
    least_capacity,
    overlap,
    peek,
    policy_of,
    tail_possible,
    zero_of,
)

RATED: list[Fixed | SlidingWindow | LeftContext] = [
    *(Fixed(k) for k in range(1, 9)),
    *(SlidingWindow(w, s) for w in range(1, 9) for s in range(1, w + 1)),
    *(LeftContext(c, left) for c in range(1, 9) for left in range(c + 1)),
]
END_RULES = ("drop", "partial", "pad:zero", "pad:repeat")


def drain(chunker: Chunker[int]) -> list[ChunkInfo[int]]:
    """Every chunk that is due now."""
    out = []
    while chunker.ready():
        out.append(chunker.take())
    return out


def run(
    policy: Policy, at_end: str, items: int, cuts: frozenset[int] = frozenset(), late: bool = False
) -> list[ChunkInfo[int]]:
    """All chunks of the stream 1..items; `late`: the consumer starts when the producer has ended."""
    chunker: Chunker[int] = Chunker(policy, at_end)
    out = []
    for i in range(items):
        chunker.push(i + 1, cut=i in cuts)
        if not late:
            out += drain(chunker)
    chunker.end()
    out += drain(chunker)
    assert chunker.ended() and chunker.held == 0
    return out


def expected(policy: Policy, at_end: str, items: int) -> list[tuple[int, int, int]]:
    """(start, count, new) straight from the words of the language page, without a buffer."""
    out = []
    seen = 0
    while True:
        if isinstance(policy, SlidingWindow):
            start = len(out) * policy.stride
            stop = start + policy.size
        elif isinstance(policy, LeftContext):
            start, stop = max(0, seen - policy.left), seen + policy.chunk
        else:
            assert isinstance(policy, Fixed)
            start, stop = seen, seen + policy.size
        if stop > items:
            break
        out.append((start, stop - start, stop - seen))
        seen = stop
    if at_end != "drop" and items > seen:
        out.append((start, items - start, items - seen))
    return out


@pytest.mark.parametrize("policy", RATED, ids=str)
def test_chunks_are_those_of_the_definition(policy: Fixed | SlidingWindow | LeftContext) -> None:
    for items, at_end in product(range(41), END_RULES):
        got = run(policy, at_end, items)
        assert [(c.start, c.count, c.new) for c in got] == expected(policy, at_end, items)
        assert [c.index for c in got] == list(range(len(got)))
        assert [c.first for c in got] == [i == 0 for i in range(len(got))]
        for c in got:
            stream = tuple(range(c.start + 1, c.start + c.count + 1))
            filler = 0 if at_end == "pad:zero" else stream[-1]
            assert c.items == stream + (filler,) * c.padded
            full = peek(policy, c.index)
            assert c.tail == (c.count < full)
            assert len(c.items) == (full if at_end.startswith("pad") else c.count)


@pytest.mark.parametrize("policy", RATED, ids=str)
def test_no_chunk_depends_on_when_the_consumer_looks(policy: Policy) -> None:
    for items, at_end in product(range(25), END_RULES):
        assert run(policy, at_end, items) == run(policy, at_end, items, late=True)


@pytest.mark.parametrize("policy", RATED, ids=str)
def test_closed_forms(policy: Fixed | SlidingWindow | LeftContext) -> None:
    for items in range(41):
        got = run(policy, "partial", items)
        assert firings(policy, items) == sum(not c.tail for c in got)
        assert fresh_tail(policy, items) == sum(c.new for c in got if c.tail)
        for at_end in END_RULES:
            assert chunks(policy, items, at_end) == len(run(policy, at_end, items))
        assert all(c.count - c.new == overlap(policy) for c in got[1:])
    assert tail_possible(policy) == any(fresh_tail(policy, items) for items in range(41))


def finishes(policy: Policy, capacity: int, burst: int, total: int) -> bool:
    """Whether a producer that pushes `burst` items at once gets `total` items through a buffer of `capacity`."""
    chunker: Chunker[int] = Chunker(policy, "partial")
    sent = 0
    while sent < total:
        if chunker.held + burst <= capacity:
            for _ in range(burst):
                chunker.push(0)
            sent += burst
        elif chunker.ready():
            chunker.take()
        else:
            return False
    return True


@pytest.mark.parametrize("policy", [*RATED, *(Phrase(k) for k in range(1, 9))], ids=str)
def test_least_capacity_is_enough_and_one_less_is_not(policy: Policy) -> None:
    for burst in range(1, 1 if isinstance(policy, Phrase) else 7):
        least = least_capacity(policy, burst)
        assert finishes(policy, least, burst, burst * 60)
        assert not finishes(policy, least - 1, burst, burst * 60)
        assert capacity_sum(policy, burst).startswith(f"{least} = ")
    if isinstance(policy, Phrase):
        assert finishes(policy, least_capacity(policy), 1, 60)
        assert not finishes(policy, least_capacity(policy) - 1, 1, 60)


def test_the_sums_add_up() -> None:
    assert capacity_sum(LeftContext(25, 10), 1) == "35 = 1 + 25 + 10 - gcd(1, 25)"
    assert capacity_sum(SlidingWindow(28, 7), 1) == "28 = 1 + 28 - 1"


def test_aligned_pairs_are_exactly_those_that_agree_for_every_count() -> None:
    news = {
        policy: [[c.new for c in run(policy, "partial", items)] for items in (*range(20), 31, 40)] for policy in RATED
    }
    for a, b in product(RATED, RATED):
        assert aligned(a, b) == (news[a] == news[b]), (a, b)


def test_phrases_end_at_cuts_and_at_max() -> None:
    rng = random.Random(5)
    for _ in range(300):
        most, items = rng.randint(1, 6), rng.randint(0, 40)
        cuts = frozenset(i for i in range(items) if rng.random() < 0.25)
        want, begun = [], []
        for i in range(items):
            begun.append(i + 1)
            if i in cuts or len(begun) == most:
                want.append((tuple(begun), False))
                begun = []
        if begun:
            want.append((tuple(begun), True))
        for late in (False, True):
            got = run(Phrase(most), "partial", items, cuts, late)
            assert [(c.items, c.tail) for c in got] == want
            assert all(c.new == c.count for c in got)
        assert [c.items for c in run(Phrase(most), "drop", items, cuts)] == [w for w, tail in want if not tail]


def test_held_counts_retained_context() -> None:
    chunker: Chunker[int] = Chunker(LeftContext(4, 3), "drop")
    for i in range(4):
        chunker.push(i)
    assert chunker.held == 4
    chunker.take()
    assert chunker.held == 3
    chunker.push(9)
    chunker.end()
    assert chunker.held == 0 and chunker.ended()


def test_misuse_is_refused() -> None:
    chunker: Chunker[int] = Chunker(Fixed(2))
    with pytest.raises(RuntimeError, match="no chunk"):
        chunker.take()
    chunker.end()
    with pytest.raises(RuntimeError, match="after the end"):
        chunker.push(1)
    with pytest.raises(ValueError, match="length to be padded"):
        Chunker(Phrase(3), "pad:zero")
    with pytest.raises(ValueError, match="end rule"):
        Chunker(Fixed(1), "flush")
    for name, args in [
        ("fixed", {"size": 0}),
        ("sliding_window", {"size": 2, "stride": 3}),
        ("left_context", {"chunk": 2, "left": 3}),
        ("phrase", {"max": 0}),
        ("phrase", {}),
        ("window", {"size": 1}),
    ]:
        with pytest.raises(ValueError):
            policy_of(name, args)


def test_policies_by_name() -> None:
    assert policy_of("fixed", {"size": 3}) == Fixed(3)
    assert policy_of("sliding_window", {"size": 28, "stride": 7}) == SlidingWindow(28, 7)
    assert policy_of("left_context", {"chunk": 25, "left": 10}) == LeftContext(25, 10)
    assert policy_of("phrase", {"cut": "ends", "max": 64}) == Phrase(64)
    assert Chunker(Fixed(1)).single and not Chunker(Fixed(2)).single


def test_fillers_keep_their_kind() -> None:
    assert zero_of(7) == 0 and zero_of(2.5) == 0.0
    for dtype in (np.bool_, np.int64, np.float32):
        filler = zero_of(np.ones(3, dtype))
        assert filler.dtype == dtype and not filler.any()
