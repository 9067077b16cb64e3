"""f32 arrays on 256 even levels: what they stand for, how they travel, and what ops get."""

from __future__ import annotations

import numpy as np
import torch

from mstarc_runtime.abi.levels import Levels
from mstarc_runtime.abi.linked import PortLink
from mstarc_runtime.abi.messages import Start
from mstarc_runtime.arrays import NumpyArrays, TorchArrays
from mstarc_runtime.program import plain, rich
from mstarc_runtime.transport.wire import decode, encode
from mstarc_runtime.worker.results import ResultCheck

EVERY = np.arange(256, dtype=np.uint8).reshape(2, 128)
PIXELS = Levels(EVERY, 2 / 255, -1)
VALUES = (EVERY / 255.0 * 2 - 1).astype(np.float32)


def test_they_are_an_f32_array_for_host_python() -> None:
    assert PIXELS.shape == (2, 128) and PIXELS.ndim == 2 and len(PIXELS) == 2
    assert np.asarray(PIXELS).dtype == np.float32 and np.abs(np.asarray(PIXELS) - VALUES).max() <= 2e-7
    assert PIXELS[0, 0] == -1 and PIXELS[1, 127] == 1
    for got, wanted in (
        (PIXELS + 1, VALUES + 1),
        (1 - PIXELS, 1 - VALUES),
        (PIXELS * PIXELS, VALUES**2),
        (np.sqrt(PIXELS + 1), np.sqrt(VALUES + 1)),
    ):
        assert got.dtype == np.float32 and np.abs(got - wanted).max() <= 1e-6
    assert np.array_equal(np.stack([PIXELS, PIXELS])[1], np.asarray(PIXELS))


def test_an_extern_may_give_them_for_an_f32_array() -> None:
    check = ResultCheck.of_extern("cameras", "here", [PortLink(name="cameras", dtype="f32", dims=[None, 128])])
    check.outcome(PIXELS)


def test_they_travel_as_their_levels() -> None:
    large = Levels(np.arange(40_000, dtype=np.int64).astype(np.uint8).reshape(200, 200), 0.5, 3.0)
    frames = encode(Start(1, 2, "look", [plain(large), plain([PIXELS])], 0, []))
    assert sum(len(frame) for frame in frames) < large.levels.nbytes + 1000
    got, (inner,) = (rich(value) for value in decode(frames).args)  # type: ignore[attr-defined]
    assert isinstance(got, Levels) and np.array_equal(got.levels, large.levels)
    assert np.array_equal(np.asarray(got), np.asarray(large)) and np.array_equal(np.asarray(inner), np.asarray(PIXELS))


def test_ops_get_the_array() -> None:
    on_torch = TorchArrays().asarray(PIXELS)
    assert isinstance(on_torch, torch.Tensor) and on_torch.dtype == torch.float32
    assert np.abs(on_torch.numpy() - VALUES).max() <= 2e-7
    assert np.array_equal(PIXELS.levels, EVERY)  # not written over
    assert np.array_equal(NumpyArrays().asarray(PIXELS), np.asarray(PIXELS))
    assert np.array_equal(TorchArrays().to_host(PIXELS), np.asarray(PIXELS))
