"""The generator that an op with the attribute `random` is handed: normals keyed per request, call site and execution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstarc_runtime.arrays import Arrays
from mstarc_runtime.sampling.philox import DrawKey, KeyedGenerator


class OpNoise:
    """Draws of one call; one key per row. Each `normal` goes on where the last one ended, so their order is part of the result.

    A call on one request (a stateless op without `batch stack`) has no dim of rows.
    """

    def __init__(self, arrays: Arrays, keys: Sequence[DrawKey], stacked: bool) -> None:
        self._arrays = arrays
        self._generators = [KeyedGenerator(key) for key in keys]
        self._stacked = stacked

    def normal(self, *shape: int) -> Any:
        """Standard normals f32 [*shape], or [B, *shape] where arguments have the requests on dim 0."""
        rows = [generator.normal(*shape) for generator in self._generators]
        return self._arrays.stack(rows) if self._stacked else self._arrays.asarray(rows[0])
