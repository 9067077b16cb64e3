"""Host numbers in single precision: tables are f32 element by element, and what meets an element is rounded first."""

from __future__ import annotations

import numpy as np
import pytest

from mstarc_runtime.abi.host_math import F32, linspace, shift

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("count", [1, 2, 3, 10, 50, 200])
def test_linspace_is_torchs(count: int) -> None:
    assert np.array_equal(np.array(linspace(1, 0, count), dtype=np.float32), torch.linspace(1, 0, count).numpy())


@pytest.mark.parametrize("by", [0.1, 1.0, 3.0, 10.0])
def test_shift_is_torchs(by: float) -> None:
    times = torch.linspace(1, 0, 50)
    due = by * times / (1 + (by - 1) * times)
    np.testing.assert_array_equal(np.array(shift(linspace(1, 0, 50), by), dtype=np.float32), due.numpy())


def test_what_meets_a_table_element_is_rounded_first() -> None:
    tenth = F32(0.1)
    assert float(tenth) != 0.1
    assert tenth == 0.1
    assert not tenth < 0.1 and not tenth > 0.1
    assert isinstance(1 - tenth, F32) and isinstance(-tenth, F32)
    assert tenth + 0.2 == F32(float(np.float32(0.1) + np.float32(0.2)))


def test_arrays_keep_their_precision() -> None:
    tenth, row = F32(0.1), np.ones(2, np.float32)
    for found in (tenth * row, row * tenth, row - tenth, tenth - row):
        assert found.dtype == np.float32
    assert (row - tenth)[0] == np.float32(1) - np.float32(0.1)
    for found in (tenth * torch.ones(2), torch.ones(2) * tenth, torch.ones(2) - tenth):
        assert found.dtype == torch.float32
    assert (torch.ones(2).bfloat16() * tenth).dtype == torch.bfloat16


def test_a_table_needs_an_element() -> None:
    with pytest.raises(ValueError, match="linspace needs at least one element, not 0"):
        linspace(0, 1, 0)
