"""The Triton attention against an oracle in float64 that shares nothing with it, on fresh random inputs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.gpu.kernels import INTERPRETED, device_for_kernels, dtypes_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.engines import attend_triton  # noqa: E402
from mstarc_runtime.engines.attend_triton import attend_packed, attend_slots  # noqa: E402 (needs triton)

pytestmark = pytest.mark.gpu
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@dataclass
class Case:
    """One launch. Everything that no row may see is NaN."""

    data: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    lengths: list[int]
    rows: list[int]
    page_size: int


def make(
    seed: int,
    lengths: list[int],
    rows: list[int],
    heads: int,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    page_size: int,
) -> Case:
    """Contexts of those lengths on scattered pages, and packed rows. q, k, v are views of one matrix, as a fused product gives."""
    draw = torch.Generator().manual_seed(seed)
    pick = random.Random(seed)
    width = max(-(-(length + count) // page_size) for length, count in zip(lengths, rows, strict=True))
    total = len(lengths) * width + 3
    pages = pick.sample(range(total), len(lengths) * width)
    table = torch.tensor(pages, dtype=torch.int32).view(len(lengths), width)
    data = torch.full((2 * kv_heads, total * page_size, dim), float("nan"))
    for b, length in enumerate(lengths):
        entry = torch.arange(length)
        slots = table[b].long()[entry // page_size] * page_size + entry % page_size
        data[:, slots] = torch.randn(2 * kv_heads, length, dim, generator=draw)
    qkv = torch.randn(sum(rows), heads + 2 * kv_heads, dim, generator=draw).to(DEVICE, dtype)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    return Case(data.to(DEVICE, dtype), q, k, v, table.to(DEVICE), lengths, rows, page_size)


def oracle(case: Case, causal: bool, own: bool, scale: float, active: list[bool] | None = None) -> Tensor:
    """[ΣT, heads, dim] in float64: one softmax over a dense mask per request, entries gathered by slot."""
    q, k, v = (part.double() for part in (case.q, case.k, case.v))
    kv_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    out = torch.zeros_like(q)
    first = 0
    for b, rows in enumerate(case.rows):
        length = case.lengths[b] if active is None or active[b] else 0
        entry = torch.arange(length, device=DEVICE)
        past = case.data[:, case.table[b].long()[entry // case.page_size] * case.page_size + entry % case.page_size]
        keys, values = past.double().split([kv_heads, kv_heads])
        seen = torch.ones(rows, length, dtype=torch.bool, device=DEVICE)
        mine = slice(first, first + rows)
        if own:
            keys = torch.cat([keys, k[mine].transpose(0, 1)], 1)
            values = torch.cat([values, v[mine].transpose(0, 1)], 1)
            among = torch.ones(rows, rows, dtype=torch.bool, device=DEVICE)
            seen = torch.cat([seen, among.tril() if causal else among], 1)
        if keys.shape[1]:
            asked = q[mine].view(rows, kv_heads, group, -1)
            scores = torch.einsum("rhgd,hed->hgre", asked, keys) * scale
            weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
            out[mine] = torch.einsum("hgre,hed->rhgd", weights, values).reshape(rows, -1, q.shape[2])
        first += rows
    return out.cpu()


def check(result: Tensor, expected: Tensor) -> None:
    assert torch.isfinite(result).all()
    error = (result.cpu().double() - expected).norm() / expected.norm().clamp(min=1e-9)
    assert error < BOUNDS[result.dtype], float(error)


def check_appended(case: Case, before: Tensor, active: list[bool]) -> None:
    """Active requests hold their rows as entries; nothing else has changed, bit for bit."""
    expected = before.clone()
    first = 0
    for b, rows in enumerate(case.rows):
        entry = case.lengths[b] + torch.arange(rows if active[b] else 0, device=DEVICE)
        slots = case.table[b].long()[entry // case.page_size] * case.page_size + entry % case.page_size
        mine = slice(first, first + len(entry))
        expected[:, slots] = torch.cat([case.k[mine], case.v[mine]], 1).transpose(0, 1)
        first += rows
    torch.testing.assert_close(case.data, expected, rtol=0, atol=0, equal_nan=True)


def i32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


SHAPES = [  # lengths, rows per slot, heads, kv_heads, dim, page size
    ([0, 1, 63, 64, 65, 130], 1, 6, 2, 64, 16),
    ([200], 1, 3, 1, 128, 64),
    ([7, 33], 5, 8, 1, 256, 16),
    ([70, 0], 50, 2, 2, 24, 64),
]
if not INTERPRETED:
    SHAPES += [
        ([0, 5, 1000, 1024, 3000, 16000] * 3, 1, 24, 8, 128, 64),
        ([968, 30], 50, 8, 1, 256, 64),
        ([258 * 3, 258 * 31], 258, 16, 16, 64, 64),
        ([4000], 512, 12, 4, 128, 16),
    ]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("frozen", [False, True], ids=["written", "frozen"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_slots(
    shape: tuple[list[int], int, int, int, int, int], causal: bool, frozen: bool, dtype: torch.dtype
) -> None:
    lengths, rows, heads, kv_heads, dim, page_size = shape
    case = make(len(lengths) + rows, lengths, [rows] * len(lengths), heads, kv_heads, dim, dtype, page_size)
    active = [b % 3 != 1 for b in range(len(lengths))]
    expected = oracle(case, causal, True, 0.3, active)
    before = case.data.clone()
    flags = torch.tensor(active, device=DEVICE)
    result = attend_slots(
        case.data, case.q, case.k, case.v, case.table, i32(lengths), flags,
        rows_per_slot=rows, page_size=page_size, causal=causal, frozen=frozen, scale=0.3,
    )  # fmt: skip
    check(result, expected)
    check_appended(case, before, [on and not frozen for on in active])


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_rows_by_whole_pages(causal: bool, splits: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of frames, whatever the type: pages that are full, begun, and none; unequal numbers of rows."""
    monkeypatch.setattr(attend_triton, "_by_pages", lambda *_: True)
    monkeypatch.setattr(attend_triton, "_splits", lambda *_: splits)
    lengths, active = [128, 70, 0, 5], [True, True, True, False]
    slots = make(splits, lengths, [70] * 4, 4, 2, 32, dtype, 64)
    before = slots.data.clone()
    found = attend_slots(
        slots.data, slots.q, slots.k, slots.v, slots.table, i32(lengths), torch.tensor(active, device=DEVICE),
        rows_per_slot=70, page_size=64, causal=causal, frozen=False, scale=0.3,
    )  # fmt: skip
    check(found, oracle(replace(slots, data=before), causal, True, 0.3, active))
    check_appended(slots, before, active)
    packed = make(splits, lengths, [3, 70, 70, 1], 4, 2, 32, dtype, 64)
    before = packed.data.clone()
    found = attend_packed(
        packed.data, packed.q, packed.k, packed.v, packed.table, i32(lengths), i32([0, 3, 73, 143, 144]),
        most_rows=70, page_size=64, causal=causal, frozen=False, scale=0.3,
    )  # fmt: skip
    check(found, oracle(replace(packed, data=before), causal, True, 0.3))
    check_appended(packed, before, [True] * 4)


RAGGED = [([0, 17, 90], [40, 1, 7], 6, 2, 64, 16), ([0], [130], 3, 1, 32, 16)]
if not INTERPRETED:
    RAGGED += [
        ([0, 500, 0, 64], [700, 1, 129, 33], 24, 8, 128, 64),
        ([0], [968], 8, 1, 256, 64),
    ]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_packed(shape: tuple[list[int], list[int], int, int, int, int], causal: bool, dtype: torch.dtype) -> None:
    lengths, rows, heads, kv_heads, dim, page_size = shape
    case = make(sum(rows), lengths, rows, heads, kv_heads, dim, dtype, page_size)
    expected = oracle(case, causal, True, dim**-0.5)
    before = case.data.clone()
    starts = [sum(rows[:b]) for b in range(len(rows) + 1)]
    result = attend_packed(
        case.data, case.q, case.k, case.v, case.table, i32(lengths), i32(starts),
        most_rows=max(rows), page_size=page_size, causal=causal, frozen=False, scale=dim**-0.5,
    )  # fmt: skip
    check(result, expected)
    check_appended(case, before, [True] * len(rows))


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_a_cross_source_alone(dtype: torch.dtype) -> None:
    """No own rows; a source without entries gives zeros."""
    case = make(3, [0, 45, 100], [2, 2, 2], 4, 2, 64, dtype, 16)
    expected = oracle(case, False, False, 0.2)
    before = case.data.clone()
    result = attend_slots(
        case.data, case.q, None, None, case.table, i32([0, 45, 100]), None,
        rows_per_slot=2, page_size=16, causal=False, frozen=True, scale=0.2,
    )  # fmt: skip
    check(result, expected)
    assert not result[:2].any()
    torch.testing.assert_close(case.data, before, rtol=0, atol=0, equal_nan=True)
