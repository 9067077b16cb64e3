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
            seed, j = arrays.asarray(key_columns(keys))
            self._draws = DeviceDraws(seed, j, keys[0].site)
        else:
            self._generators = [KeyedGenerator(key) for key in keys]

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [*shape], or [B, *shape] where arguments have the requests on dim 0."""
        if self._on_gpu:
            drawn = self._draws.normal(*shape)
            return drawn if self._stacked else drawn[0]
        rows = [generator.normal(*shape) for generator in self._generators]
        return self._arrays.stack(rows) if self._stacked else self._arrays.asarray(rows[0])


def key_columns(keys: Sequence[DrawKey]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Seed (its 64 bits) and count of each key, i64 [2, B]."""
    seeds = np.array([key.seed % (1 << 64) for key in keys], dtype=np.uint64).view(np.int64)
    return np.stack([seeds, np.array([key.j for key in keys], dtype=np.int64)])


class DeviceDraws:
    """Keyed draws of B rows on the device at one site: seed and count i64 [B]."""

    def __init__(self, seed: Any, j: Any, site: str) -> None:
        self._seed, self._j, self._site = seed, j, site_hash(site)
        self._blocks = 0

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [B, *shape]."""
        from mstarc_runtime.sampling.philox_torch import normals

        made = normals(shape, self._seed, self._site, self._j, self._blocks)
        self._blocks += -(-math.prod(shape) // 4)
        return made
