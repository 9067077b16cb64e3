"""The attention of prompts with parted warps against the oracle in float64: Hopper only, as no interpreter knows its instructions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.engines import attend_prompts, attend_triton  # noqa: E402
from mstarc_runtime.engines.attend_triton import attend_packed, attend_slots  # noqa: E402 (needs triton)
from tests.gpu.test_attend_triton import check, check_appended, i32, make, oracle  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        INTERPRETED or torch.cuda.get_device_capability()[0] != 9, reason="its instructions are those of Hopper GPUs"
    ),
]


class Heads(NamedTuple):
    """Query heads, KV heads and their size."""

    heads: int
    kv_heads: int
    dim: int


@dataclass
class Seen:
    """How often the kernel under test was launched."""

    launches: int = 0


BATCHES = {  # lengths, rows
    "alone": ([0], [968]),
    "after": ([4097], [128]),
    "begun": ([64, 100, 1000, 1], [129, 3, 70, 200]),
    "short": ([0, 500, 0, 64], [700, 1, 130, 33]),
}
CASES = [  # heads, batch, causal, programs that run at once, type
    (Heads(8, 1, 256), "alone", False, 132, torch.bfloat16),
    (Heads(8, 1, 256), "begun", False, 132, torch.bfloat16),
    (Heads(8, 1, 256), "begun", True, 132, torch.float16),
    (Heads(24, 8, 128), "alone", True, 132, torch.bfloat16),
    (Heads(24, 8, 128), "after", True, 1000, torch.bfloat16),
    (Heads(6, 2, 128), "begun", True, 1, torch.bfloat16),
    (Heads(6, 2, 128), "begun", False, 1000, torch.bfloat16),
    (Heads(24, 8, 128), "short", True, 132, torch.bfloat16),
    (Heads(3, 3, 64), "begun", True, 1, torch.bfloat16),
    (Heads(3, 3, 64), "short", True, 1000, torch.float16),
]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Counts launches, since a test of a path that is not taken proves nothing."""
    seen, launch = Seen(), attend_prompts.attend_prompts

    def counted(*args: Any, **options: Any) -> torch.Tensor:
        seen.launches += 1
        return launch(*args, **options)

    monkeypatch.setattr(attend_prompts, "attend_prompts", counted)
    return seen


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed(case: tuple[Heads, str, bool, int, torch.dtype], seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole pages, begun ones and none; more parts than blocks; what nobody may see is NaN, the rows of nobody too."""
    shape, batch, causal, programs, dtype = case
    monkeypatch.setattr(attend_triton, "PROGRAMS", programs)
    lengths, rows = BATCHES[batch]
    spare = 37
    whole = make(sum(rows), [*lengths, 0], [*rows, spare], *shape, dtype, 64)
    for x in (whole.q, whole.k, whole.v):
        x[sum(rows) :] = float("nan")
    count = len(rows)
    given = replace(whole, table=whole.table[:count], lengths=lengths, rows=rows)
    real = replace(given, q=whole.q[: sum(rows)], k=whole.k[: sum(rows)], v=whole.v[: sum(rows)])
    expected = oracle(real, causal, True, 0.1)
    before = given.data.clone()
    starts = [sum(rows[:b]) for b in range(count + 1)]
    none = 29  # requests that are not there, as a graph for many has them
    table = torch.cat([given.table, given.table[:1].expand(none, -1)])
    found = attend_packed(
        given.data, given.q, given.k, given.v, table, i32([*lengths, *[7] * none]), i32([*starts, *starts[-1:] * none]),
        most_rows=len(given.q), page_size=64, causal=causal, frozen=False, scale=0.1,
    )  # fmt: skip
    check(found[: sum(rows)], expected)
    check_appended(replace(real, data=given.data), before, [True] * count)
    assert seen.launches == 1


@pytest.mark.parametrize("frozen", [False, True], ids=["written", "frozen"])
@pytest.mark.parametrize("shape", [Heads(8, 1, 256), Heads(4, 4, 64)], ids=str)
def test_slots(shape: Heads, frozen: bool, seen: Seen) -> None:
    """Equal numbers of rows, and requests that are not active."""
    lengths, active = [968, 0, 70], [True, True, False]
    given = make(5, lengths, [150] * 3, *shape, torch.bfloat16, 64)
    expected = oracle(given, True, True, 0.1, active)
    before = given.data.clone()
    found = attend_slots(
        given.data, given.q, given.k, given.v, given.table, i32(lengths), torch.tensor(active, device=DEVICE),
        rows_per_slot=150, page_size=64, causal=True, frozen=frozen, scale=0.1,
    )  # fmt: skip
    check(found, expected)
    check_appended(given, before, [on and not frozen for on in active])
    assert seen.launches == 1


def test_the_same_bits(seen: Seen) -> None:
    """Many launches of the same rows give the same bits: no part is read before it is there."""
    lengths, rows = BATCHES["alone"]
    given = make(3, lengths, rows, 8, 1, 256, torch.bfloat16, 64)

    def attend() -> torch.Tensor:
        return attend_packed(
            given.data, given.q, given.k, given.v, given.table, i32(lengths), i32([0, *rows]),
            most_rows=rows[0], page_size=64, causal=False, frozen=True, scale=0.1,
        )  # fmt: skip

    first = attend()
    assert all(torch.equal(attend(), first) for _ in range(200))
    assert seen.launches == 201
