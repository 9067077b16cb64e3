"""The attention kernel of decode steps against rotation and an oracle in float64, on fresh random inputs."""

from __future__ import annotations

import random

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.engines.attend_step_triton import attend_step  # noqa: E402 (needs triton)
from tests.gpu.test_attend_triton import Case, check, check_appended, make, oracle  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
SHAPES = [  # lengths, heads, kv_heads, dim, page size, parts of the product
    ([0, 1, 63, 64, 65, 130], 6, 2, 64, 16, 3),
    ([200], 3, 1, 128, 64, 1),
]
if not INTERPRETED:
    SHAPES += [
        ([0, 5, 1000, 1024, 3000, 16000] * 3, 24, 8, 128, 64, 3),
        ([700], 24, 8, 128, 64, 4),
        ([90] * 70, 24, 8, 128, 64, 3),
    ]


def turned(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """[n, heads, dim] by angles [n, dim / 2], in float64; pairs are half a head apart."""
    pairs = torch.view_as_complex(torch.stack(x.double().chunk(2, -1), -1))
    spun = pairs * torch.polar(torch.ones_like(angle).double(), angle.double())[:, None]
    return torch.cat([spun.real, spun.imag], -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", range(len(SHAPES)))
def test_against_the_oracle(case: int, dtype: torch.dtype) -> None:
    lengths, heads, kv_heads, dim, page_size, parts = SHAPES[case]
    made = make(case, lengths, [1] * len(lengths), heads, kv_heads, dim, dtype, page_size)
    draw = torch.Generator().manual_seed(case)
    qkv = torch.randn(parts, len(lengths), heads + 2 * kv_heads, dim, generator=draw).to(DEVICE)
    angle = torch.randn(len(lengths), dim // 2, generator=draw).to(DEVICE) * 20
    active = [random.Random(case).random() < 0.7 for _ in lengths]
    whole = qkv.double().sum(0)
    q, k, v = whole.tensor_split([heads, heads + kv_heads], 1)
    q, k, v = (part.to(dtype) for part in (turned(q, angle), turned(k, angle), v))
    expected = Case(made.data.clone(), q, k, v, made.table, lengths, [1] * len(lengths), page_size)
    arrived = torch.zeros(len(lengths) * kv_heads, dtype=torch.int32, device=DEVICE)
    for _ in range(2):  # the second time over entries that the first has appended
        result = attend_step(
            made.data, qkv, angle.cos(), angle.sin(), made.table,
            torch.tensor(lengths, dtype=torch.int32, device=DEVICE), torch.tensor(active, device=DEVICE), arrived,
            page_size=page_size, scale=dim**-0.5,
        )  # fmt: skip
        check(result, oracle(expected, True, True, dim**-0.5, active))
        assert not arrived.any()
    appended = made.data.clone()
    for b, length in enumerate(lengths):  # rounding may differ in the last bit
        if active[b]:
            slot = made.table[b, length // page_size] * page_size + length % page_size
            mine = torch.cat([expected.k[b], expected.v[b]])
            assert (appended[:, slot].double() - mine.double()).norm() < 1e-2 * mine.double().norm()
            appended[:, slot] = mine
    before, made.data = expected.data, appended
    made.k, made.v = expected.k, expected.v
    check_appended(made, before, active)
