"""An f32 array whose values lie on 256 even levels, such as pixels in [-1, 1]: it travels, and is uploaded, as a quarter of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray


class Levels(NDArrayOperatorsMixin):
    """Stands for the f32 array `levels * scale + offset`, computed in f32. An extern may give it where an f32 array is declared.

    Ops get the array itself, made where they run (`arrays.Arrays.asarray`); host Python that computes with it does so too.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, levels: NDArray[np.uint8], scale: float, offset: float) -> None:
        self.levels, self.scale, self.offset = levels, float(scale), float(offset)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.levels.shape

    @property
    def ndim(self) -> int:
        return self.levels.ndim

    def __len__(self) -> int:
        return len(self.levels)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the values are computed: they cannot be had without a copy")
        values = self.levels * np.float32(self.scale) + np.float32(self.offset)
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        plain = (np.asarray(value) if isinstance(value, Levels) else value for value in inputs)
        return getattr(ufunc, method)(*plain, **named)
