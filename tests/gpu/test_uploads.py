"""Host values on the device: what they are there, and that nobody waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.abi.levels import Levels  # noqa: E402
from mstarc_runtime.arrays import TorchArrays  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(INTERPRETED, reason="uploads need a CUDA device")]


def test_levels() -> None:
    """They are scaled on the device: equal but for the last bit of a product and a sum."""
    levels = Levels(np.arange(256, dtype=np.uint8).reshape(4, 64), 2 / 255, -1)
    arrays = TorchArrays("cuda")
    arrays.asarray(levels)  # kernels are loaded
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = arrays.asarray(levels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.dtype == torch.float32 and found.device.type == "cuda" and found.shape == (4, 64)
    assert np.abs(arrays.to_host(found) - np.asarray(levels)).max() <= 2.4e-7
