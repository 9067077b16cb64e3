"""Positions of packed rows and rows that become entries, against plain torch."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.engines import attend_torch, places_triton  # noqa: E402

pytestmark = pytest.mark.gpu
CASES = [
    ([5], 8),
    ([3, 0, 9], 16),
    ([1, 1, 1, 1], 4),
    ([0, 0], 3),
    ([130, 70], 256),
]  # rows of each request, rows in all
PAGE = 4


@pytest.mark.parametrize(("takes", "rows"), CASES, ids=str)
def test_places(takes: list[int], rows: int) -> None:
    """Rows that are nobody's get some position and write nothing."""
    starts = torch.tensor([0, *takes], device=DEVICE).cumsum(0).int()
    position = torch.arange(len(takes), device=DEVICE).int() * 7 + 2
    for seq in (True, False):
        found = places_triton.positions_of(position, starts, rows, seq)
        assert torch.equal(found[: sum(takes)], attend_torch.positions_of(position, starts, rows, seq)[: sum(takes)])
    length = torch.arange(len(takes), device=DEVICE).int() * 3 + 1
    pages = -(-(max(takes) + 3 * len(takes)) // PAGE)
    table = torch.randperm(len(takes) * pages, device=DEVICE).int().view(len(takes), pages)
    kv = torch.randn(rows, 5, 6, device=DEVICE)  # heads of something else lie between
    before = torch.randn(4, table.numel() * PAGE, 6, device=DEVICE)
    found, wanted = before.clone(), before.clone()
    for data, append in ((found, places_triton.append_packed), (wanted, attend_torch.append_packed)):
        append(data, kv[:, :2], kv[:, 3:], table, length, starts, page_size=PAGE)
    assert torch.equal(found, wanted)
