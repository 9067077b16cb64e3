"""The sampler of captured loops draws the ids that the host's sampler draws, whatever the settings, histories and ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mstarc_runtime.arrays import TorchArrays
from mstarc_runtime.sampling import philox
from mstarc_runtime.sampling.device import BLOCK, SamplerPlan, SamplerRows, Site
from mstarc_runtime.sampling.op_noise import DeviceDraws, key_columns
from mstarc_runtime.sampling.philox_torch import normals, uniforms
from mstarc_runtime.sampling.sampler import BadLogits, History, Row, Settings, draw

FULL = SamplerPlan(greedy=False, penalty=True, top_k=True, top_p=True)


class Twin:
    """Rows of the device sampler and the host's rows with the same settings and histories."""

    def __init__(
        self, chosen: list[Settings], plan: SamplerPlan, vocab: int, over: list[Tensor | None], device: str = "cpu"
    ) -> None:
        self.settings, self.over = chosen, over
        self.histories = [History() for _ in chosen]
        self.rows = SamplerRows(plan, len(chosen), vocab, torch.device(device))
        self.seeds = [(7919 * n * 2**40 + n) % 2**64 for n in range(len(chosen))]
        self.seed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in self.seeds])
        self.seed = self.seed.to(device)
        self.site = Site(philox.site_hash("w/s"), len(chosen), torch.device(device))
        self.j = [0] * len(chosen)
        for n, (one, ids) in enumerate(zip(chosen, over, strict=True)):
            self.rows.put([n], [one], [0], [[] if ids is None else [ids]])

    def host(self, logits: Tensor, active: list[bool]) -> list[int | None]:
        """Ids of the active rows; None where the logits are unusable."""
        found: list[int | None] = []
        for n, on in enumerate(active):
            if not on:
                found.append(None)
                continue
            key = philox.DrawKey(self.seeds[n], "w/s", self.j[n])
            self.j[n] += 1
            try:
                row = Row(self.settings[n], self.histories[n], key, self.over[n])
                found.append(int(draw(logits[n : n + 1], [row])))
            except BadLogits:
                found.append(None)
        return found

    def device(self, logits: Tensor, active: list[bool]) -> list[int | None]:
        on = torch.tensor(active, device=logits.device)
        number = self.site.number(self.seed, len(active), on)
        ids, usable = self.rows.draw(logits, number, on)
        assert ((ids >= 0) & (ids < logits.shape[1])).all()
        return [int(i) if a and u else None for i, a, u in zip(ids, active, usable, strict=True)]


any_settings = st.builds(
    Settings,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7, 1e-30, 1e-42]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 10_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    chosen=st.lists(any_settings, min_size=1, max_size=5),
    vocab=st.sampled_from([1, 3, 17, BLOCK - 1, BLOCK, BLOCK + 1, 1700]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 4.0]),
    levels=st.sampled_from([0, 1, 4]),
    seed=st.integers(0, 2**31),
    steps=st.integers(1, 4),
)
def test_random_settings_and_logits(
    chosen: list[Settings], vocab: int, spread: float, levels: int, seed: int, steps: int
) -> None:
    make = torch.Generator().manual_seed(seed)
    over = [torch.randint(0, vocab + 3, (n,), generator=make) if n else None for n in range(len(chosen))]
    twin = Twin(chosen, FULL, vocab, over)
    for step in range(steps):
        logits = torch.randn(len(chosen), vocab, generator=make) * spread
        if levels:  # ties: at many places few values
            logits = (logits * levels).round() / levels
        if step % 2:  # some ids are ruled out altogether, sometimes all but one
            logits[:, 1:][torch.rand(len(chosen), vocab - 1, generator=make) < (0.3 if seed % 3 else 1.0)] = -torch.inf
        active = [bool((seed >> (5 * step + n)) % 4) for n in range(len(chosen))]
        assert twin.device(logits, active) == twin.host(logits, active)
    assert twin.rows.count.tolist() == [history.count for history in twin.histories]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_suppression_by_count(dtype: torch.dtype, temperature: float) -> None:
    plan = SamplerPlan.of(
        {
            "temperature": "param:t",
            "repetition_penalty": "param:r",
            "suppress": [3, 4],
            "suppress_first": [5, 6],
            "min_tokens": "param:m",
            "ends": [7, 1],
        }
    )
    chosen = [
        Settings(temperature, 0, 1.0, 1.5, suppress=(3, 4), suppress_first=(5, 6), min_tokens=m, ends=(7, 1))
        for m in (0, 1, 3)
    ]
    twin = Twin(chosen, plan, 9, [None] * 3)
    make = torch.Generator().manual_seed(4)
    for _ in range(30):
        logits = (torch.randn(3, 9, generator=make) * 2).to(dtype)
        assert twin.device(logits, [True] * 3) == twin.host(logits, [True] * 3)


@pytest.mark.parametrize("plan", [FULL, SamplerPlan.of({"temperature": 0}), SamplerPlan.of({})])
def test_a_row_without_a_usable_logit_is_found_and_hits_no_other(plan: SamplerPlan) -> None:
    chosen = [Settings(0.0 if plan.greedy else 1.0)] * 5
    twin = Twin(chosen, plan, 600, [None] * 5)
    logits = torch.randn(5, 600, generator=torch.Generator().manual_seed(1))
    logits[1, 77] = torch.nan
    logits[2, 599] = torch.inf
    logits[3] = -torch.inf
    found = twin.device(logits, [True] * 5)
    assert found == twin.host(logits, [True] * 5)
    assert [n for n, token in enumerate(found) if token is None] == [1, 2, 3]
    assert twin.rows.count.tolist() == [1, 0, 0, 0, 1]


def test_a_real_vocabulary() -> None:
    """The sizes of a speech model; flat and peaked rows, the settings of its spec."""
    chosen = [Settings(0.6, 0, 0.8, 1.3), Settings(1.0, 50, 1.0), Settings(0.0, 0, 0.8, 1.3), Settings(2.0, 0, 1.0)]
    twin = Twin(chosen, FULL, 156_940, [torch.arange(5, 4000, 7), None, None, None])
    make = torch.Generator().manual_seed(2)
    for spread in (0.3, 3.0, 12.0):
        logits = torch.randn(4, 156_940, generator=make) * spread
        assert twin.device(logits, [True] * 4) == twin.host(logits, [True] * 4)


def test_tokens_of_the_context_count_for_the_penalty() -> None:
    rows = SamplerRows(FULL, 2, 10, torch.device("cpu"))
    for n in range(2):
        rows.put([n], [Settings(0.0, repetition_penalty=100.0)], [0], [[torch.tensor([-1, 1, 99])]])
    rows.note(torch.tensor([3, 3]), torch.tensor([True, False]))
    rows.note(torch.tensor([12, -1]), torch.tensor([True, True]))
    assert [row.nonzero()[:, 0].tolist() for row in rows.seen] == [[1, 3], [1]]
    logits = torch.tensor([0.0, 9.0, 0.0, 8.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]).expand(2, 10)
    ids, _ = rows.draw(logits, torch.zeros(2, dtype=torch.float64), torch.tensor([True, True]))
    assert ids.tolist() == [5, 3]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.text(max_size=8))
@settings(max_examples=200, deadline=None)
def test_random_numbers_are_those_of_the_host(seed: int, j: int, site: str) -> None:
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed])
    found = uniforms(signed, philox.site_hash(site), torch.tensor([j]))
    assert found.tolist() == philox.uniforms([philox.DrawKey(seed, site, j)]).tolist()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"temperature": 0, "suppress": [1]}, SamplerPlan(True, False, False, False, (1,))),
        ({"temperature": "param:t", "top_p": 1.0, "top_k": 0}, SamplerPlan(False, False, False, False)),
        ({"top_p": "param:p", "repetition_penalty": 1.2}, SamplerPlan(False, True, False, True)),
    ],
)
def test_a_plan_holds_what_requests_can_ask(given: dict[str, Any], wanted: SamplerPlan) -> None:
    assert SamplerPlan.of(given) == wanted


def test_lists_that_depend_on_the_request_and_ids_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="`suppress` of a sampler differs"):
        SamplerPlan.of({"suppress": "param:never"})
    with pytest.raises(ValueError, match="from 3 to 12, the vocabulary has 10"):
        SamplerRows(SamplerPlan.of({"suppress": [3, 12]}), 1, 10, torch.device("cpu"))


@pytest.mark.parametrize("shape", [(1,), (4,), (3, 7), (1030,)])
@pytest.mark.parametrize("skip", [0, 5])
def test_normals_on_tensors_are_those_of_the_host(shape: tuple[int, ...], skip: int) -> None:
    seeds, j = [5, 2**63 + 1, 2**64 - 1], [0, 3, 2**33]
    signed = torch.tensor([seed - 2**64 if seed >= 2**63 else seed for seed in seeds])
    found = normals(shape, signed, philox.site_hash("w/x"), torch.tensor(j), skip)
    wanted = [philox.normals(shape, philox.DrawKey(seed, "w/x", k), skip) for seed, k in zip(seeds, j, strict=True)]
    torch.testing.assert_close(found, torch.stack([torch.from_numpy(w) for w in wanted]), atol=1e-6, rtol=1e-6)


def test_device_draws_go_on_where_the_last_call_ended() -> None:
    keys = [philox.DrawKey(2**64 - 2, "w/x", 4), philox.DrawKey(7, "w/x", 0)]
    seed, j = TorchArrays().asarray(key_columns(keys))
    draws = DeviceDraws(seed, j, "w/x")
    hosts = [philox.KeyedGenerator(key) for key in keys]
    for shape in ((3,), (2, 5), (1,)):
        wanted = torch.stack([torch.from_numpy(host.normal(*shape)) for host in hosts])
        torch.testing.assert_close(draws.normal(*shape), wanted, atol=1e-6, rtol=1e-6)
