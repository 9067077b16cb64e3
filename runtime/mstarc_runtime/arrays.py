"""The few array verbs that a worker needs, for numpy and for torch: a worker of numpy components never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mstarc_runtime.abi.levels import Levels
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.memory import room

_NAMES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i64": "int64",
    "i32": "int32",
    "u8": "uint8",
    "bool": "bool",
}


class Arrays(Protocol):
    """One array library. Arrays of a batch have the rows on dim 0."""

    name: str
    device: Any  # of torch; None for numpy

    def asarray(self, value: Any) -> Any:
        """A host value (number, bool, list, numpy array, Levels) or an array, as an array of this library on the worker's device."""
        ...

    def stack(self, items: Sequence[Any]) -> Any: ...

    def cat(self, items: Sequence[Any]) -> Any: ...

    def select(self, array: Any, rows: Sequence[int]) -> Any: ...

    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...

    def zeros_like(self, array: Any) -> Any: ...

    def resized(self, array: Any, rows: int) -> Any:
        """The array with so many rows: cut off, or followed by zeros."""
        ...

    def cast(self, array: Any, dtype: str) -> Any:
        """The array in a float type of the language: f32, f16 or bf16."""
        ...

    def zeros(self, dtype: str, dims: Sequence[int]) -> Any:
        """Zeros of a dtype as the language names it (`i64`, `f32`, `bool`, …)."""
        ...

    def room(self, size: int) -> np.ndarray[Any, Any]:
        """Memory of the host for an array that comes from elsewhere, u8 [size]: of the kind that the device copies from."""
        ...


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

    def resized(self, array: Any, rows: int) -> Any:
        more = max(0, rows - len(array))
        return np.pad(array[:rows], [(0, more)] + [(0, 0)] * (array.ndim - 1))

    def cast(self, array: Any, dtype: str) -> Any:
        if dtype == "bf16":
            raise RequestFailed("numpy has no bf16; components with ARRAYS = numpy use f32 or f16")
        return array.astype({"f32": np.float32, "f16": np.float16}[dtype])

    def zeros(self, dtype: str, dims: Sequence[int]) -> Any:
        return np.zeros(tuple(dims), dtype=_NAMES[dtype])

    def room(self, size: int) -> np.ndarray[Any, Any]:
        return room(size)


class TorchArrays:
    """torch on one device. Host float arrays keep their dtype; Python floats become f32 (language: rounded on upload)."""

    name = "torch"

    def __init__(self, device: str = "cpu") -> None:
        import torch

        self.torch = torch
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        self.device = found
        if found.type == "cuda":
            torch.cuda.set_device(found)  # where kernels of this process are launched

    def allow_tf32(self, on: bool) -> None:
        """Whether f32 matrix products of this process may run in TF32 on a GPU (a node asks for it with `stateless(tf32)`)."""
        self.torch.backends.cuda.matmul.allow_tf32 = on

    def asarray(self, value: Any) -> Any:
        torch = self.torch
        if isinstance(value, torch.Tensor):
            return self._upload(value)
        if isinstance(value, np.ndarray):
            return self._upload(torch.from_numpy(value if value.flags.c_contiguous else value.copy()))
        if isinstance(value, Levels):
            return (self.asarray(value.levels) * value.scale).add_(value.offset)
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        return self._upload(torch.from_numpy(array))

    def _upload(self, tensor: Any) -> Any:
        """A tensor on the worker's device. What comes from the host goes through pinned memory, so that nobody waits for the device."""
        if self.device.type != "cuda" or tensor.device == self.device:
            return tensor.to(self.device)
        if tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def stack(self, items: Sequence[Any]) -> Any:
        tensor = self.torch.Tensor
        if set(map(type, items)) == {np.int64}:
            return self.asarray(np.array(items))
        if all(isinstance(item, tensor) and item.device.type == "cpu" for item in items):
            return self._upload(self.torch.stack(list(items)))  # one copy
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
        return self.torch.zeros_like(self.asarray(array))

    def resized(self, array: Any, rows: int) -> Any:
        found = array.new_zeros(rows, *array.shape[1:])
        found[: len(array)] = array[:rows]
        return found

    def cast(self, array: Any, dtype: str) -> Any:
        return array.to({"f32": self.torch.float32, "f16": self.torch.float16, "bf16": self.torch.bfloat16}[dtype])

    def zeros(self, dtype: str, dims: Sequence[int]) -> Any:
        return self.torch.zeros(tuple(dims), dtype=getattr(self.torch, _NAMES[dtype]), device=self.device)

    def room(self, size: int) -> np.ndarray[Any, Any]:
        if self.device.type != "cuda":
            return room(size)
        pinned: np.ndarray[Any, Any] = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True).numpy()
        return pinned
