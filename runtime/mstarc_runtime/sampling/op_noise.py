"""The generator that an op with the attribute `random` is handed: normals keyed per request, call site and execution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mstarc_runtime.arrays import Arrays
from mstarc_runtime.sampling.philox import DrawKey, KeyedGenerator, site_hash


class OpNoise:
    """Draws of one call; one key per row. Each `normal` goes on where the last one ended, so their order is part of the result.

    A call on one request (a stateless op without `batch stack`) has no dim of rows. On a GPU the numbers are made there.
    """

    def __init__(self, arrays: Arrays, keys: Sequence[DrawKey], stacked: bool) -> None:
        self._arrays, self._stacked = arrays, stacked
        self._on_gpu = arrays.device is not None and arrays.device.type == "cuda"
        if self._on_gpu:
            self._draws = DeviceDraws(arrays, keys)
        else:
            self._generators = [KeyedGenerator(key) for key in keys]

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [*shape], or [B, *shape] where arguments have the requests on dim 0."""
        if self._on_gpu:
            drawn = self._draws.normal(*shape)
            return drawn if self._stacked else drawn[0]
        rows = [generator.normal(*shape) for generator in self._generators]
        return self._arrays.stack(rows) if self._stacked else self._arrays.asarray(rows[0])


class DeviceDraws:
    """Keyed draws of some rows on the device, whose keys are of one site."""

    def __init__(self, arrays: Arrays, keys: Sequence[DrawKey]) -> None:
        seeds = np.array([key.seed % (1 << 64) for key in keys], dtype=np.uint64).view(np.int64)
        counts = np.array([key.j for key in keys], dtype=np.int64)
        self._seed, self._j = arrays.asarray(np.stack([seeds, counts]))
        self._site = site_hash(keys[0].site)
        self._blocks = 0

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [B, *shape]."""
        from mstarc_runtime.sampling.philox_torch import normals

        made = normals(shape, self._seed, self._site, self._j, self._blocks)
        self._blocks += -(-math.prod(shape) // 4)
        return made
