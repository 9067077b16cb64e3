"""The few array verbs that a worker needs, for numpy and for torch: a worker of numpy components never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Arrays(Protocol):
    """One array library. Arrays of a batch have the rows on dim 0."""

    name: str
    device: Any  # of torch; None for numpy

    def asarray(self, value: Any) -> Any:
        """A host value (number, bool, list, numpy array) or an array, as an array of this library on the worker's device."""
        ...

    def stack(self, items: Sequence[Any]) -> Any: ...

    def cat(self, items: Sequence[Any]) -> Any: ...

    def select(self, array: Any, rows: Sequence[int]) -> Any: ...

    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...

    def zeros_like(self, array: Any) -> Any: ...


class NumpyArrays:
    """numpy on the host."""

    name = "numpy"
    device = None

    def asarray(self, value: Any) -> Any:
        return np.asarray(value)

    def stack(self, items: Sequence[Any]) -> Any:
        return np.stack([np.asarray(item) for item in items])

    def cat(self, items: Sequence[Any]) -> Any:
        if not items:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([np.atleast_1d(np.asarray(item)) for item in items])

    def select(self, array: Any, rows: Sequence[int]) -> Any:
        return array[list(rows)]

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def zeros_like(self, array: Any) -> Any:
        return np.zeros_like(array)


class TorchArrays:
    """torch on one device. Host float arrays keep their dtype; Python floats become f32 (language: rounded on upload)."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)

    def asarray(self, value: Any) -> Any:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value if value.flags.c_contiguous else value.copy()).to(self.device)
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return torch.from_numpy(array).to(self.device)

    def stack(self, items: Sequence[Any]) -> Any:
        return self.torch.stack([self.asarray(item) for item in items])

    def cat(self, items: Sequence[Any]) -> Any:
        if not items:
            return self.torch.zeros(0, dtype=self.torch.int64, device=self.device)
        arrays = [self.asarray(item) for item in items]
        return self.torch.cat([array[None] if array.ndim == 0 else array for array in arrays])

    def select(self, array: Any, rows: Sequence[int]) -> Any:
        return array[self.torch.tensor(list(rows), device=array.device)]

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        if isinstance(array, self.torch.Tensor):
            plain = array.detach().cpu()
            host: np.ndarray[Any, Any] = (plain.float() if plain.dtype == self.torch.bfloat16 else plain).numpy()
            return host
        return np.asarray(array)

    def zeros_like(self, array: Any) -> Any:
        return self.torch.zeros_like(array)
