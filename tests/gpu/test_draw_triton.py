"""The kernels of the sampler draw the host's ids, whatever the settings, histories and ties."""

from __future__ import annotations

import random

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.sampling import draw_triton  # noqa: E402
from mstarc_runtime.sampling.device import SamplerPlan  # noqa: E402
from mstarc_runtime.sampling.sampler import Settings  # noqa: E402
from tests.sampling.test_device import FULL, Twin  # noqa: E402

pytestmark = pytest.mark.gpu
PLANS = {
    "all": FULL,
    "top_p": SamplerPlan(False, True, False, True),
    "top_k": SamplerPlan(False, False, True, False),
    "plain": SamplerPlan(False, False, False, False),
}


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs programs one by one."""
    if INTERPRETED:
        for name, value in (("SPLITS", 4), ("BLOCK", 512), ("BLOCK_BINS", 256)):
            monkeypatch.setattr(draw_triton, name, value)


def chosen_by(rng: random.Random, plan: SamplerPlan) -> Settings:
    return Settings(
        rng.choice([0.0, 0.3, 1.0, 1.7, 1e-30]),
        rng.choice([0, 1, 2, 5, 50, 10_000]) if plan.top_k else 0,
        rng.choice([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]) if plan.top_p else 1.0,
        rng.choice([1.0, 1.3, 0.7]) if plan.penalty else 1.0,
    )


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(6 if INTERPRETED else 60))
def test_random_settings_and_logits(name: str, seed: int) -> None:
    rng, make, plan = random.Random(seed), torch.Generator().manual_seed(seed), PLANS[name]
    vocab = rng.choice([1, 17, 1023, 1025] + [5000, 70_000] * (not INTERPRETED))
    rows = rng.randrange(1, 3 if INTERPRETED else 9)
    over = [torch.randint(0, vocab + 3, (n,), generator=make) if n else None for n in range(rows)]
    twin = Twin([chosen_by(rng, plan) for _ in range(rows)], plan, vocab, over, DEVICE)
    on = torch.ones(rows, dtype=torch.bool, device=DEVICE)
    for step in range(2):
        logits = torch.randn(rows, vocab, generator=make) * rng.choice([0.0, 0.01, 1.0, 4.0])
        levels = rng.choice([0, 1, 4])
        if levels:  # ties: at many places few values
            logits = (logits * levels).round() / levels
        if step:
            logits[:, 1:][torch.rand(rows, vocab - 1, generator=make) < rng.choice([0.3, 1.0])] = -torch.inf
        wanted = twin.host(logits, [True] * rows)
        number = twin.site.number(twin.seed, rows, on)
        ids, usable = draw_triton.draw(twin.rows, logits.to(DEVICE), number, on)
        assert usable.all()
        assert ids.tolist() == wanted
        assert twin.rows.count.tolist() == [step + 1] * rows


def test_only_active_rows_remember_and_only_ids_of_the_vocabulary() -> None:
    rows = Twin([Settings(0.0, repetition_penalty=1.3)] * 5, FULL, 10, [None] * 5, DEVICE).rows
    ids = torch.tensor([3, 3, 12, -1, 4], device=DEVICE)
    on = torch.tensor([True, False, True, True, True], device=DEVICE)
    draw_triton.remember(rows, ids, on)
    assert [row.nonzero()[:, 0].tolist() for row in rows.seen] == [[3], [], [], [], [4]]
    assert rows.count.tolist() == [0] * 5


def test_only_active_rows_that_can_be_drawn_count_as_draws() -> None:
    rows = Twin([Settings(0.0, repetition_penalty=1.3)] * 3, FULL, 10, [None] * 3, DEVICE).rows
    logits = torch.zeros(3, 10, device=DEVICE)
    logits[:2, 4], logits[2] = 1.0, torch.nan
    number = torch.full((3,), 0.5, dtype=torch.float64, device=DEVICE)
    ids, usable = draw_triton.draw(rows, logits, number, torch.tensor([True, False, True], device=DEVICE))
    assert (ids.tolist(), usable.tolist()) == ([4, 4, 0], [True, True, False])
    assert [row.nonzero()[:, 0].tolist() for row in rows.seen] == [[4], [], []]
    assert rows.count.tolist() == [1, 0, 0]


def test_unusable_rows_and_suppression() -> None:
    plan = SamplerPlan.of({"suppress": [3, 4], "suppress_first": [5], "min_tokens": "param:m", "ends": [7, 1]})
    settings = [Settings(t, suppress=(3, 4), suppress_first=(5,), min_tokens=2, ends=(7, 1)) for t in (0.0, 1.0)] * 3
    twin = Twin(settings, plan, 9, [None] * 6, DEVICE)
    on = torch.ones(6, dtype=torch.bool, device=DEVICE)
    for step in range(4):
        logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(step)) * 2
        logits[3, 8], logits[4, 0], logits[5] = torch.nan, torch.inf, -torch.inf
        wanted = twin.host(logits, [True] * 6)
        ids, usable = draw_triton.draw(twin.rows, logits.to(DEVICE), twin.site.number(twin.seed, 6, on), on)
        assert usable.tolist() == [True, True, True, False, False, False]
        assert ids.tolist() == [token or 0 for token in wanted]
        assert twin.rows.count.tolist() == [step + 1] * 3 + [0] * 3
