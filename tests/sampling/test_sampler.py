"""The sampler against a plain oracle, row by row: order of rules, ties, histories, keys, and independence of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.sampling.philox import DrawKey, uniforms
from mstarc_runtime.sampling.sampler import BadLogits, History, Row, Settings, draw

VOCAB = 50


def history(*ids: int) -> History:
    made = History()
    for token in ids:
        made.append(torch.tensor(token))
    return made


def row(
    settings: Settings, j: int = 0, over: list[int] | None = None, drawn: tuple[int, ...] = (), seed: int = 5
) -> Row:
    return Row(settings, history(*drawn), DrawKey(seed, "w/s", j), None if over is None else torch.tensor(over))


def oracle(logits: list[float], settings: Settings, drawn: tuple[int, ...], over: list[int], number: float) -> int:
    """Sentence 2, one row, in Python floats."""
    z = list(logits)
    for token in set(drawn) | set(over):
        z[token] = z[token] / settings.repetition_penalty if z[token] > 0 else z[token] * settings.repetition_penalty
    banned = set(settings.suppress)
    banned |= set(settings.suppress_first) if not drawn else set()
    banned |= set(settings.ends) if len(drawn) < settings.min_tokens else set()
    for token in banned:
        z[token] = -math.inf
    order = sorted(range(len(z)), key=lambda token: (-z[token], token))
    if settings.temperature == 0:
        return order[0]
    order = order[: settings.top_k or len(z)]
    weight = {token: math.exp((z[token] - z[order[0]]) / settings.temperature) for token in order}
    total, before, kept = sum(weight.values()), 0.0, []
    for token in order:
        if kept and settings.top_p < 1 and before >= settings.top_p * total:
            break
        kept.append(token)
        before += weight[token]
    target, passed = number * sum(weight[token] for token in kept), 0.0
    for token in sorted(kept):
        passed += weight[token]
        if passed > target:
            return token
    return max(kept)


SETTINGS = [
    Settings(temperature=0.0),
    Settings(temperature=0.7),
    Settings(temperature=1.3, top_k=5),
    Settings(temperature=1.0, top_p=0.6),
    Settings(temperature=1.0, top_k=8, top_p=0.5),
    Settings(temperature=0.9, repetition_penalty=1.7, top_k=1000),
    Settings(temperature=0.0, repetition_penalty=1.3, suppress=(3, 4, 5)),
    Settings(temperature=2.0, suppress=(0, 1), suppress_first=(2, 7, 9), top_p=0.9),
    Settings(temperature=0.8, ends=(11, 12), min_tokens=3, top_k=3),
    Settings(temperature=1.0, top_p=0.0),
    Settings(temperature=0.0, suppress_first=(2, 7, 9)),
]


@pytest.mark.parametrize("seed", range(25))
def test_a_mixed_batch_equals_the_oracle_and_every_row_alone(seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(SETTINGS), VOCAB, generator=make) * 3
    if seed % 3 == 0:
        logits = logits.round()  # many ties
    drawn = [tuple(torch.randint(0, VOCAB, (n % 5,), generator=make).tolist()) for n in range(len(SETTINGS))]
    over = [torch.randint(0, VOCAB, (4,), generator=make).tolist() for _ in SETTINGS]
    rows = [row(s, seed, o, d) for s, o, d in zip(SETTINGS, over, drawn, strict=True)]
    kept = logits.clone()
    found = draw(logits, rows).tolist()
    assert torch.equal(kept, logits)
    numbers = uniforms([r.key for r in rows]).tolist()
    for n, (settings, line) in enumerate(zip(SETTINGS, logits.double().tolist(), strict=True)):
        assert found[n] == oracle(line, settings, drawn[n], over[n], numbers[n]), settings
        alone = row(settings, seed, over[n], drawn[n])
        assert draw(logits[n : n + 1], [alone]).tolist() == [found[n]]
        assert alone.history.ids.tolist() == [*drawn[n], found[n]]


def test_greedy_takes_the_lowest_id_on_ties() -> None:
    logits = torch.zeros(3, 5000)
    logits[0, [17, 4999, 18]] = 2.0
    logits[1, 4998:] = 1.0
    assert draw(logits, [row(Settings(temperature=0.0))] * 3).tolist() == [17, 4998, 0]


def test_ties_at_the_cut_keep_the_lowest_ids() -> None:
    logits = torch.zeros(1, VOCAB)
    seen = {int(draw(logits, [row(Settings(top_k=3), j)])) for j in range(60)}
    assert seen == {0, 1, 2}
    seen = {int(draw(logits, [row(Settings(top_p=0.099), j)])) for j in range(80)}
    assert seen == {0, 1, 2, 3, 4}


def test_top_p_beyond_the_candidates_of_a_flat_row() -> None:
    vocab = 4000
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(0)) * 0.01
    settings = Settings(top_p=0.8)
    for j in range(30):
        found = int(draw(logits, [row(settings, j)]))
        number = float(uniforms([DrawKey(5, "w/s", j)])[0])
        assert found == oracle(logits[0].double().tolist(), settings, (), [], number)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    count = 8000
    rows = [row(Settings(temperature=0.5), j) for j in range(count)]
    found = np.bincount(draw(logits.expand(count, 4), rows).numpy(), minlength=4)
    wanted = torch.softmax(logits.double() / 0.5, 0).numpy() * count
    assert (((found - wanted) ** 2) / wanted).sum() < 16.3  # chi-square, 3 degrees, 0.001


def test_the_key_decides_and_the_place_in_the_batch_does_not() -> None:
    logits = torch.zeros(4, 1000)
    keys = [DrawKey(1, "w/a", 0), DrawKey(1, "w/b", 0), DrawKey(2, "w/a", 0), DrawKey(1, "w/a", 1)]
    first = draw(logits, [Row(Settings(), History(), key) for key in keys]).tolist()
    assert len(set(first)) == 4
    again = draw(logits, [Row(Settings(), History(), key) for key in reversed(keys)]).tolist()
    assert again == first[::-1]


def test_the_penalty_counts_an_id_once_and_own_draws_always() -> None:
    logits = torch.tensor([[3.0, 2.8, -1.0, 0.0]])
    settings = Settings(temperature=0.0, repetition_penalty=1.05)
    assert int(draw(logits, [row(settings, drawn=(0,))])) == 0  # 3 / 1.05 is still the largest
    assert int(draw(logits, [row(settings, drawn=(0, 0, 0))])) == 0
    assert int(draw(logits, [row(Settings(temperature=0.0, repetition_penalty=1.1), drawn=(0,))])) == 1
    assert int(draw(logits, [row(Settings(temperature=0.0, repetition_penalty=1.1), over=[0])])) == 1
    assert (
        int(draw(torch.tensor([[-1.0, -1.1]]), [row(Settings(temperature=0.0, repetition_penalty=1.5), over=[0, 99])]))
        == 1
    )


def test_min_tokens_and_first_count_own_draws() -> None:
    logits = torch.tensor([[0.0, 9.0, 5.0]])
    settings = Settings(temperature=0.0, ends=(1,), min_tokens=2)
    one = row(settings)
    assert [int(draw(logits, [one])) for _ in range(4)] == [2, 2, 1, 1]
    first = row(Settings(temperature=0.0, suppress_first=(1,)))
    assert [int(draw(logits, [first])) for _ in range(3)] == [2, 1, 1]


def test_lists_of_ids_may_come_from_json() -> None:
    settings = Settings(temperature=0.0, suppress=[0], suppress_first=[1])  # type: ignore[arg-type]
    assert int(draw(torch.tensor([[9.0, 8.0, 7.0]]), [row(settings)])) == 2


def test_a_long_history_is_kept_in_order() -> None:
    made = history(*range(200))
    assert made.count == 200 and made.ids.tolist() == list(range(200))


def test_rows_that_cannot_be_drawn_are_named_and_nothing_changes() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = float("nan")
    rows = [row(Settings()), row(Settings()), row(Settings(suppress=(0, 1, 2, 3)))]
    with pytest.raises(BadLogits) as caught:
        draw(logits, rows)
    assert caught.value.rows == [1, 2]
    assert [r.history.count for r in rows] == [0, 0, 0]


@pytest.mark.parametrize(
    "name, value",
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 1.01),
        ("top_k", -1),
        ("repetition_penalty", 0.0),
        ("min_tokens", -1),
    ],
)
def test_settings_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(BadRequest, match=f"`{name}` is") as caught:
        Settings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name


def test_suppressed_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(BadRequest, match="vocabulary has 4"):
        draw(torch.zeros(1, 4), [row(Settings(suppress=(4,)))])


def test_half_precision_logits_are_left_alone() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    assert int(draw(logits, [row(Settings(temperature=0.0, suppress=(2,)))])) == 1
    assert logits.tolist() == [[1.0, 2.0, 3.0]]
