"""Region loops captured into CUDA graphs show what the host's loop shows on the same GPU; the sampler draws the host's ids there."""

from __future__ import annotations

import random

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.abi.linked import CacheLink  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.sampling.device import SamplerPlan  # noqa: E402
from mstarc_runtime.sampling.sampler import Settings  # noqa: E402
from mstarc_runtime.worker.device_regions import DeviceOptions  # noqa: E402
from mstarc_runtime.worker.device_runner import GraphRunner  # noqa: E402
from tests.runtime import tiny  # noqa: E402
from tests.runtime.device_harness import Ask, assert_same, run  # noqa: E402
from tests.runtime.test_device_regions import spoken  # noqa: E402
from tests.sampling.test_device import FULL, Twin  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(INTERPRETED, reason="CUDA graphs need a CUDA device")]


@pytest.fixture(autouse=True)
def exact_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV in f32, so that two ways to compute an entry do not round it to two neighbours."""

    def pool(cache: CacheLink, device: torch.device, pools: int, ranks: int) -> PagedPool:
        geometry = Geometry(cache.layers, cache.heads, cache.kv_heads, cache.head_dim)
        return PagedPool(geometry, cache.pages, device=device, swap=cache.swap or 0)

    monkeypatch.setattr("mstarc_runtime.worker.kv._pool", pool)


def options(unroll: int = 7, ahead: int = 1) -> DeviceOptions:
    return DeviceOptions(GraphRunner(torch.device("cuda:0")), unroll, ahead)


@pytest.mark.parametrize(("unroll", "ahead"), [(1, 1), (7, 0), (7, 1), (14, 2)])
@pytest.mark.parametrize("seed", range(3))
async def test_captured_loops_equal_the_host_s(unroll: int, ahead: int, seed: int) -> None:
    rng = random.Random(100 * seed + 10 * unroll + ahead)
    asks = [spoken(rng, temperature=rng.choice([0.0, 0.8, 2.0])) for _ in range(14)]
    for ask in asks:
        if rng.random() < 0.15:
            ask.cancel_after = rng.randrange(1, 3)
    linked = tiny.speech(device="cuda", bad=rng.choice([-1, 9, 20]), capacity=rng.choice([28, 64]))
    wanted = await run(linked, "speech", asks, "host")
    found = await run(linked, "speech", asks, options(unroll, ahead))
    assert found.loops and found.host_iterations == 0
    assert_same(found, wanted, asks, 1e-3)


@pytest.mark.parametrize("seed", range(3))
async def test_a_pool_for_one_serves_many(seed: int) -> None:
    """Pages go to pinned memory and come back, behind the captured runs that used them."""
    rng = random.Random(seed)
    asks = [spoken(rng, max_tokens=rng.choice([20, 60])) for _ in range(12)]
    for ask in asks[::4]:
        ask.cancel_after = rng.randrange(1, 3)
    wanted = await run(tiny.speech(device="cuda"), "speech", asks, "host")
    for regions in ("host", options()):
        found = await run(tiny.speech(device="cuda", pages=7 + seed, swap=90), "speech", asks, regions)
        assert_same(found, wanted, asks, 1e-3)


@pytest.mark.parametrize("bound", [1, 3, 6, 7, 8, 13, 14, 15])
async def test_a_bound_at_every_place_of_a_run(bound: int) -> None:
    rng = random.Random(bound)
    asks = [spoken(rng, max_tokens=bound, ignore_eos=True), spoken(rng, max_tokens=40)]
    linked = tiny.speech(device="cuda")
    assert_same(await run(linked, "speech", asks, options()), await run(linked, "speech", asks, "host"), asks, 1e-3)


async def test_the_default_on_a_gpu_is_the_device() -> None:
    asks = [Ask({"text": "9 10 11"}, {"max_tokens": 30, "ignore_eos": True}, seed=1)]
    found = await run(tiny.speech(device="cuda"), "speech", asks, "auto")
    assert found.loops and found.host_iterations == 0


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("spread", [0.3, 4.0, 12.0])
def test_draws_on_a_gpu_equal_the_host_s(captured: bool, spread: float) -> None:
    """The vocabulary and the settings of a speech model, and rows with other settings beside them."""
    vocab = 156_940
    chosen = [
        Settings(0.6, 0, 0.8, 1.3),
        Settings(1.0, 50, 1.0),
        Settings(0.0, 0, 0.8, 1.3),
        Settings(2.0, 0, 1.0),
        Settings(1.0, 7, 0.3),
    ]
    over = [torch.arange(5, 4000, 7), None, None, None, None]
    host = Twin(chosen, FULL, vocab, over)
    device = Twin(chosen, FULL, vocab, over, "cuda")
    make = torch.Generator().manual_seed(int(spread * 10))
    static = torch.zeros(5, vocab, device="cuda")
    on = torch.ones(5, dtype=torch.bool, device="cuda")

    def step() -> torch.Tensor:
        return device.rows.draw(static, device.site.number(device.seed, 5, on), on)[0]

    replay = step
    if captured:
        with torch.inference_mode():
            step()
        device = Twin(chosen, FULL, vocab, over, "cuda")
        with torch.inference_mode():
            replay = GraphRunner(torch.device("cuda:0")).capture(step)
    for _ in range(12):
        logits = torch.randn(5, vocab, generator=make) * spread
        with torch.inference_mode():
            static.copy_(logits)
            found = replay().tolist()
        assert found == host.host(logits, [True] * 5)


def test_unusable_rows_on_a_gpu() -> None:
    for plan in (FULL, SamplerPlan.of({"temperature": 0})):
        twin = Twin([Settings(0.0 if plan.greedy else 1.0)] * 5, plan, 600, [None] * 5, "cuda")
        logits = torch.randn(5, 600, generator=torch.Generator().manual_seed(1))
        logits[1, 77], logits[2, 599], logits[3] = torch.nan, torch.inf, -torch.inf
        found = twin.device(logits.cuda(), [True] * 5)
        assert [n for n, token in enumerate(found) if token is None] == [1, 2, 3]
