"""The attention of frames with parted warps against the oracle in float64: Hopper only, as no interpreter knows its instructions."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.engines import attend_frames  # noqa: E402
from mstarc_runtime.engines.attend_triton import attend_slots  # noqa: E402 (needs triton)
from tests.gpu.test_attend_triton import check, check_appended, i32, make, oracle  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        INTERPRETED or torch.cuda.get_device_capability()[0] != 9, reason="its instructions are those of Hopper GPUs"
    ),
]
LENGTHS = [[0, 128, 31 * 258], [515, 64, 258], [100, 1000, 3]]
CASES = [  # rows, shares, type, frozen
    (258, 1, torch.bfloat16, False),
    (257, 8, torch.bfloat16, False),
    (264, 3, torch.bfloat16, True),
    (258, 2, torch.float16, False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_frames(case: tuple[int, int, torch.dtype, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts of whole pages, begun ones and none; more shares than blocks; what nobody may see is NaN."""
    rows, splits, dtype, frozen = case
    monkeypatch.setattr(attend_frames, "_splits", lambda *_: splits)
    for lengths in LENGTHS:
        given = make(rows + splits, lengths, [rows] * 3, 3, 3, 64, dtype, 64)
        assert attend_frames.takes(given.data, given.q, given.k, given.v, rows, 64, 0.3)
        active = [True, splits > 1, lengths[2] != 258]
        expected = oracle(given, False, True, 0.3, active)
        before = given.data.clone()
        found = attend_slots(
            given.data, given.q, given.k, given.v, given.table, i32(lengths), torch.tensor(active, device=DEVICE),
            rows_per_slot=rows, page_size=64, causal=False, frozen=frozen, scale=0.3,
        )  # fmt: skip
        check(found, expected)
        check_appended(given, before, [on and not frozen for on in active])


def test_alone_and_in_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request's result has the same bits whatever the others of the batch are, as long as the shares are the same."""
    monkeypatch.setattr(attend_frames, "_splits", lambda *_: 2)
    lengths = [700, 0, 64, 258]
    case = make(5, lengths, [258] * 4, 2, 2, 64, torch.bfloat16, 64)

    def attend(first: int, last: int) -> torch.Tensor:
        rows = slice(258 * first, 258 * last)
        return attend_slots(
            case.data, case.q[rows], case.k[rows], case.v[rows], case.table[first:last], i32(lengths[first:last]), None,
            rows_per_slot=258, page_size=64, causal=False, frozen=True, scale=0.3,
        )  # fmt: skip

    together = attend(0, 4)
    for first in (0, 2):
        assert torch.equal(attend(first, first + 2), together[258 * first : 258 * (first + 2)])
