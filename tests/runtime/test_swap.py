"""A pool that is too small for all: the youngest requests wait with their pages on the host, and every answer is what it is alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from mstarc_runtime.worker import kv
from mstarc_runtime.worker.device_regions import DeviceOptions
from mstarc_runtime.worker.rank import Regions
from mstarc_runtime.worker.swap import Swap
from tests.runtime import tiny
from tests.runtime.device_harness import Ask, LateRunner, Report, assert_same, run


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freed pages, on the host too, hold NaN: whoever reads one gives wrong answers."""
    made = kv._pool

    def pool(*args: Any) -> Any:
        found = made(*args)
        found.poison = True
        return found

    monkeypatch.setattr(kv, "_pool", pool)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What pools moved, and which requests waited."""
    seen: dict[str, Any] = {"bytes": 0, "waited": set(), "most": 0}
    forget = Swap.forget

    def forgets(swap: Swap, request: int) -> None:
        seen["bytes"] = max(seen["bytes"], swap.out_bytes)
        seen["waited"].add(request)
        seen["most"] = max(seen["most"], len(swap.waiting))
        forget(swap, request)

    monkeypatch.setattr(Swap, "forget", forgets)
    return seen


def spoken(rng: random.Random, **given: Any) -> Ask:
    params = {
        "temperature": rng.choice([0.0, 0.6, 1.2]),
        "top_p": rng.choice([0.5, 0.8, 1.0]),
        "repetition_penalty": rng.choice([1.0, 1.3]),
        "max_tokens": rng.choice([20, 40, 60]),
        "ignore_eos": rng.random() < 0.8,
        **given,
    }
    prompt = " ".join(str(rng.randrange(tiny.FIRST, tiny.VOCAB)) for _ in range(rng.randrange(1, 40)))
    return Ask({"text": prompt}, params, seed=rng.randrange(2**63), delay=rng.randrange(0, 90))


PLACES: list[Regions] = ["host", DeviceOptions(LateRunner(2), 7, 1), DeviceOptions(LateRunner(0), 3, 0)]
places = pytest.mark.parametrize("regions", PLACES, ids=["host", "device", "short runs"])


async def both(
    asks: list[Ask], regions: Regions, pages: int, swap: int | None = None, ranks: int = 1, shuffle: int | None = None
) -> Report:
    """The requests over a large pool on the host, and over a small one."""
    wanted = await run(tiny.speech(capacity=35, ranks=ranks), "speech", asks, "host")
    small = tiny.speech(capacity=35, ranks=ranks, pages=pages, swap=swap)
    found = await run(small, "speech", asks, regions, shuffle)
    assert_same(found, wanted, asks)
    return found


@places
@pytest.mark.parametrize("seed", range(2))
async def test_a_pool_for_one_serves_many(seed: int, regions: Regions, moves: dict[str, Any]) -> None:
    rng = random.Random(seed)
    await both([spoken(rng) for _ in range(8)], regions, pages=7 + 2 * seed, swap=80)
    assert moves["bytes"] and moves["most"] > 1


@places
async def test_cancels_of_those_who_wait(regions: Regions, moves: dict[str, Any]) -> None:
    rng = random.Random(7)
    asks = [spoken(rng, max_tokens=60, ignore_eos=True) for _ in range(8)]
    for ask in asks[1::2]:
        ask.cancel_after = rng.randrange(1, 4)
    await both(asks, regions, pages=8, swap=80)
    assert moves["bytes"]


@places
async def test_streams_to_another_rank(regions: Regions, moves: dict[str, Any]) -> None:
    rng = random.Random(11)
    await both([spoken(rng) for _ in range(6)], regions, pages=7, swap=60, ranks=2, shuffle=3)
    assert moves["bytes"]


async def test_the_host_s_memory_bounds_who_is_let_in(moves: dict[str, Any]) -> None:
    """Seven pages each at most: of a pool of seven and two on the host, two requests never run at once, and nothing is moved."""
    rng = random.Random(1)
    asks = [spoken(rng, max_tokens=60, ignore_eos=True, temperature=0.0) for _ in range(3)]
    for ask in asks:
        ask.inputs["text"] = " ".join("9" * 40)
    await both(asks, "host", pages=7, swap=2)
    assert moves["most"] == moves["bytes"] == 0
