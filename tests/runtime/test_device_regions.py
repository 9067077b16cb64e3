"""Region loops on the device show what the host's loop shows: the generated bodies of shipped specs over tiny models, on the CPU."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest

from mstarc_runtime.abi.linked import LoopLink, ShapeLink
from mstarc_runtime.package import load_worker
from mstarc_runtime.program import Part
from mstarc_runtime.worker.device_regions import DeviceOptions, limited
from mstarc_runtime.worker.device_state import LoopState
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.rank import Rank
from tests.runtime import tiny
from tests.runtime.device_harness import Ask, DirectRunner, LateRunner, Report, TogetherRunner, assert_same, run


def options(unroll: int = 7, ahead: int = 1, looks: int = 3) -> DeviceOptions:
    return DeviceOptions(LateRunner(looks) if looks else DirectRunner(), unroll, ahead)


def spoken(rng: random.Random, **given: Any) -> Ask:
    """A request of `speech` with random settings."""
    params = {
        "temperature": rng.choice([0.0, 0.6, 1.2]),
        "top_p": rng.choice([0.5, 0.8, 1.0]),
        "repetition_penalty": rng.choice([1.0, 1.3]),
        "max_tokens": rng.choice([1, 2, 7, 8, 30, 60]),
        "ignore_eos": rng.random() < 0.6,
        **given,
    }
    prompt = " ".join(str(rng.randrange(tiny.FIRST, tiny.VOCAB)) for _ in range(rng.randrange(1, 40)))
    return Ask({"text": prompt}, params, seed=rng.randrange(2**63), delay=rng.randrange(0, 60))


async def both(linked: Any, entry: str, asks: list[Ask], chosen: DeviceOptions) -> Report:
    wanted = await run(linked, entry, asks, "host")
    found = await run(linked, entry, asks, chosen)
    assert_same(found, wanted, asks)
    assert found.loops, "nothing ran on the device"
    return found


@pytest.mark.parametrize("unroll", [1, 7, 14])
@pytest.mark.parametrize(("ahead", "looks"), [(0, 0), (1, 0), (1, 3), (2, 7)])
async def test_rows_that_join_and_leave(unroll: int, ahead: int, looks: int) -> None:
    rng = random.Random(unroll * 100 + ahead * 10 + looks)
    asks = [spoken(rng) for _ in range(12)]
    found = await both(tiny.speech(), "speech", asks, options(unroll, ahead, looks))
    assert found.host_iterations == 0


@pytest.mark.parametrize("unroll", [1, 3, 7])
async def test_text_and_everything_its_walks_leave(unroll: int) -> None:
    rng = random.Random(unroll)
    asks = []
    for _ in range(8):
        texts = [" ".join(str(rng.randrange(8, 40)) for _ in range(rng.randrange(1, 9))) for _ in range(3)]
        params = {
            "max_tokens": rng.choice([1, 5, 40]),
            "temperature": rng.choice([0.0, 1.5]),
            "top_k": rng.choice([0, 3]),
            "top_p": rng.choice([0.7, 1.0]),
            "repetition_penalty": rng.choice([0.8, 1.0, 1.4]),
            "ignore_eos": rng.random() < 0.5,
        }
        messages = [Part("text", role="user", text=text) for text in texts]
        asks.append(Ask({"messages": messages}, params, seed=rng.randrange(2**60), delay=rng.randrange(40)))
    found = await both(tiny.chat(), "chat", asks, options(unroll))
    assert found.host_iterations == 0


@pytest.mark.parametrize("bound", range(1, 16))
async def test_a_bound_at_every_place_of_a_run(bound: int) -> None:
    rng = random.Random(bound)
    asks = [spoken(rng, max_tokens=bound, ignore_eos=True), spoken(rng, max_tokens=40)]
    await both(tiny.speech(), "speech", asks, options())


@pytest.mark.parametrize("seed", range(12))
async def test_stops_at_every_place_of_a_run(seed: int) -> None:
    """Random draws from few ids: the end id comes after a different number of draws in every request."""
    rng = random.Random(seed)
    asks = [spoken(rng, temperature=2.0, top_p=1.0, max_tokens=80, ignore_eos=False) for _ in range(6)]
    found = await both(tiny.speech(), "speech", asks, options())
    assert len({one.counts["speak.frames"] % 7 for one in found.seen}) > 1


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("capacity", [28, 31, 35, 60])
async def test_credit_that_runs_out(capacity: int, ranks: int) -> None:
    rng = random.Random(capacity)
    asks = [spoken(rng, max_tokens=60, ignore_eos=True) for _ in range(5)]
    await both(tiny.speech(capacity=capacity, ranks=ranks), "speech", asks, options(14))


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_row_with_bad_logits_fails_alone(ahead: int) -> None:
    rng = random.Random(3)
    asks = [spoken(rng, temperature=1.5, top_p=1.0, max_tokens=60, ignore_eos=True) for _ in range(8)]
    found = await both(tiny.speech(bad=11), "speech", asks, options(7, ahead))
    failed = [one for one in found.seen if one.error is not None]
    assert 0 < len(failed) < len(asks)
    assert all("hold NaN" in (one.error or "") for one in failed)


async def test_a_prompt_with_bad_logits_fails_alone_though_it_is_learnt_late() -> None:
    given = {"max_tokens": 40, "ignore_eos": True, "temperature": 0.7}
    asks = [Ask({"text": text}, given, seed=n) for n, text in enumerate(["9 10 13", "9 10 11", "12 13 14", "11"])]
    found = await both(tiny.speech(bad=11), "speech", asks, options(looks=6))
    assert ["hold NaN" in (one.error or "") and not one.events for one in found.seen][1::2] == [True, True]


@pytest.mark.parametrize("epoch", [5, 8, 12])
async def test_a_prompt_with_bad_logits_shows_no_token(epoch: int) -> None:
    """The reply emits its first token before its first step: what was drawn from NaN is not seen, though it comes with the news."""
    given = {"max_tokens": 20, "ignore_eos": True, "temperature": 0.7}
    asks = [
        Ask({"messages": [Part("text", role="user", text=text)]}, given, seed=n)
        for n, text in enumerate(["9 10 13", "9 10 11", "12 13 14", "11"])
    ]
    found = await both(tiny.chat(bad=11), "chat", asks, DeviceOptions(TogetherRunner(epoch), 7, 1))
    assert [one.error is not None for one in found.seen] == [False, True, False, True]
    assert [one.events for one in found.seen][1::2] == [[], []]


@pytest.mark.parametrize("seed", range(6))
async def test_cancels_between_runs(seed: int) -> None:
    rng = random.Random(seed)
    asks = [spoken(rng, max_tokens=60, ignore_eos=True) for _ in range(8)]
    for ask in asks[::2]:
        ask.cancel_after = rng.randrange(1, 4)
    await both(tiny.speech(), "speech", asks, options(7, 1, rng.randrange(5)))


async def test_the_room_of_a_context_ends_as_on_the_host() -> None:
    """The prompt has 30 entries, the context room for 33: the loop may write 3 times, the fourth call fails the request."""
    prompt = " ".join("9" * 30)
    asks = [Ask({"text": prompt}, {"max_tokens": n, "ignore_eos": True, "temperature": 0.0}, seed=1) for n in (2, 3)]
    linked = tiny.speech(context=33)
    found = await both(linked, "speech", asks, options())
    assert [one.counts["context:main"] for one in found.seen] == [32, 33]


async def test_a_full_pool_fails_who_needs_more_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission keeps requests from meeting this; without it a row takes the pages of younger ones, and fails when there are no more.

    The pool has 96 entries: room for the first request, and for neither of the others even if it is alone.
    """
    monkeypatch.setattr("mstarc_runtime.conductor.room.Room.pages_of", lambda room, needs: {})
    given = {"ignore_eos": True, "temperature": 0.0}
    asks = [Ask({"text": "9 10"}, {"max_tokens": n, **given}, seed=n) for n in (20, 100, 100)]
    found = await run(tiny.speech(pages=6), "speech", asks, options())
    failed = [one.error for one in found.seen if one.error is not None]
    assert len(failed) == 2 and all("the KV cache has no room" in error for error in failed)
    assert found.seen[0].counts["context:main"] == 22


async def test_values_that_fit_no_row_fail_their_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that join together: an integer that 64 bits do not hold, which a param without a range lets in."""
    columns = LoopState._columns

    def with_wide(state: LoopState) -> Any:
        return [*columns(state), (state.iter, lambda entrant: 2**70 if entrant.session.seed == 2 else entrant.done)]

    monkeypatch.setattr(LoopState, "_columns", with_wide)
    given = {"ignore_eos": True, "temperature": 0.0, "max_tokens": 9}
    asks = [Ask({"text": "9 10"}, given, seed=n) for n in (1, 2, 3)]
    found = await run(tiny.speech(), "speech", asks, options())
    assert ["OverflowError" in (one.error or "") for one in found.seen] == [False, True, False]
    assert [one.counts.get("context:main") for one in found.seen][::2] == [11, 11]


async def test_without_memory_for_captures_everything_runs_on_the_host() -> None:
    class Full(DirectRunner):
        def capture(self, work: Any) -> Any:
            raise RuntimeError("CUDA out of memory")

    given = {"max_tokens": 6, "ignore_eos": True, "temperature": 0.7}
    asks = [Ask({"messages": [Part("text", role="user", text="9 10 13")]}, given, seed=n) for n in range(2)]
    wanted = await run(tiny.chat(), "chat", asks, "host")
    found = await run(tiny.chat(), "chat", asks, DeviceOptions(Full(), 7, 1))
    assert_same(found, wanted, asks)
    assert not found.loops and all(one.error is None for one in found.seen)


async def test_more_requests_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mstarc_runtime.worker.rank.MAX_ROWS", 3)
    rng = random.Random(9)
    asks = [spoken(rng, max_tokens=rng.choice([3, 20, 40])) for _ in range(10)]
    found = await both(tiny.speech(), "speech", asks, options())
    assert found.loops[0].state.rows == 3


async def test_loops_are_captured_before_the_first_request() -> None:
    loop = LoopLink(walk="speak", label="frames", kind="max", region="speak_frames", carry=[ShapeLink(dtype="i64")])
    linked = msgspec.structs.replace(tiny.speech(), loops=[msgspec.structs.replace(loop, unroll=7)])
    said: list[tuple[int, int, str]] = []
    rank = Rank(linked, 0, load_worker(linked), None, OpTable(linked, 0), options(0))
    rank.warm_up(lambda done, total, what: said.append((done, total, what)))
    [captured] = rank.scheduler.device_loops()
    buckets = 5  # 1, 2, 4, 8 and all rows
    assert said[0] == (0, buckets, "capturing speak.frames") and said[-1][:2] == (buckets, buckets)
    assert captured.unroll == 7 and captured.empty()
    found = rank.scheduler.device_loop(("speak_frames", (((), "torch.int64"),)), "speak", (), ())
    assert found is captured


def test_no_more_iterations_begin_than_may_run_ahead() -> None:
    for unroll, ahead, most in itertools.product(range(1, 15), range(4), range(40)):
        k, runs = limited(unroll, ahead, most)
        assert 1 <= k <= unroll and 0 <= runs <= ahead
        assert (runs + 1) * k - 1 <= most, "the first of them stops, the others have begun"
        assert k == unroll or k == most + 1, "no smaller than it has to be"
        assert runs == ahead or (runs + 2) * k - 1 > most


@pytest.mark.parametrize(
    ("most", "unroll", "ahead"), [(0, 1, 0), (2, 3, 0), (6, 7, 0), (12, 7, 0), (13, 7, 1), (None, 7, 1)]
)
async def test_a_placement_says_how_far_a_loop_runs_ahead(most: int | None, unroll: int, ahead: int) -> None:
    rng = random.Random(most)
    shape = [ShapeLink(dtype="i64")]
    loop = LoopLink(walk="speak", label="frames", kind="max", region="speak_frames", carry=shape, unroll=7, ahead=most)
    linked = msgspec.structs.replace(tiny.speech(), loops=[loop])
    found = await both(linked, "speech", [spoken(rng) for _ in range(6)], options(0))
    assert {(loop.unroll, loop.ahead) for loop in found.loops} == {(unroll, ahead)}


async def test_what_has_no_fixed_shape_runs_on_the_host() -> None:
    linked = tiny.chat()
    op = msgspec.structs.replace(linked.nodes[0].ops[1], random=False, params=["packed"])
    node = msgspec.structs.replace(linked.nodes[0], ops=[linked.nodes[0].ops[0], op])
    linked = msgspec.structs.replace(linked, nodes=[node])
    rank = Rank(linked, 0, load_worker(linked), None, OpTable(linked, 0), options())
    carry = (rank.arrays.asarray(0),)
    assert rank.scheduler.device_loop(("answer_speaking", (((), "torch.int64"),)), "answer", carry, ()) is None
    assert rank.scheduler.device_loops() == []


@pytest.mark.parametrize("seed", range(12))
async def test_everything_at_once(seed: int) -> None:
    rng = random.Random(1000 + seed)
    asks = [spoken(rng, temperature=rng.choice([0.0, 0.8, 2.0])) for _ in range(rng.randrange(2, 20))]
    for ask in asks:
        if rng.random() < 0.2:
            ask.cancel_after = rng.randrange(1, 3)
    linked = tiny.speech(capacity=rng.choice([28, 40, 512]), bad=rng.choice([-1, 9, 20]), ranks=rng.choice([1, 2]))
    chosen = options(rng.choice([1, 2, 7, 14]), rng.randrange(3), rng.randrange(6))
    wanted = await run(linked, "speech", asks, "host")
    found = await run(linked, "speech", asks, chosen, shuffle=seed)
    assert_same(found, wanted, asks)
