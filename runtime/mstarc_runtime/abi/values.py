"""Arrays as bytes: a numpy array or torch tensor to (dtype name, shape, bytes) and back.

torch is used only if the process has imported it already; a process of numpy components never loads it. Bytes are
little-endian, C order. An array comes back as numpy, except for the dtypes numpy lacks (bfloat16, float8): those come
back as torch tensors, and a process without torch gets a `WireError` that says so (or, with `bits=True`, the raw bits
as an unsigned array of the same shape). What comes back owns its memory and may be written to.

Other values of a message (bool, int within 64 bits, float, str, bytes, None, lists, str-keyed dicts) need nothing from
here. A tuple comes back as a list, a numpy scalar as a Python number.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from mstarc_runtime.errors import RuntimeFault

MAX_DIMS = 32

_NUMPY = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}
# dtype name -> the unsigned integer of the same width, for dtypes that only torch knows
_TORCH_ONLY = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class WireError(RuntimeFault):
    """A value cannot travel, or bytes that arrived are not a message of this ABI."""


@dataclass(frozen=True, slots=True)
class Flat:
    """An array taken apart. `data` is a contiguous one-dimensional uint8 view or copy of the source's bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def is_array(value: Any) -> bool:
    """Whether `value` is a numpy array or a torch tensor. Loads nothing."""
    return isinstance(value, np.ndarray) or _is_tensor(value)


def flatten(value: Any) -> Flat:
    """Bytes of an array. A tensor on a device is copied to the host, which waits for the device. WireError if it cannot travel."""
    if _is_tensor(value):
        return _flatten_tensor(value)
    name = _NAMES.get(value.dtype) or value.dtype.name  # of another byte order, for one
    if name not in _NUMPY:
        raise WireError(
            f"an array of dtype {value.dtype} cannot travel; dtypes that can: {', '.join([*_NUMPY, *_TORCH_ONLY])}"
        )
    plain = np.ascontiguousarray(value, dtype=_NUMPY[name])
    return Flat(name, value.shape, _bytes_of(plain))


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of an array of that dtype and shape. WireError if the dtype is unknown or the shape is not one."""
    if len(shape) > MAX_DIMS or any(dim < 0 for dim in shape):
        raise WireError(f"{shape} is not a shape of up to {MAX_DIMS} dims")
    carrier = _NUMPY.get(_TORCH_ONLY.get(dtype, dtype))
    if carrier is None:
        raise WireError(f"unknown dtype {dtype!r}")
    return carrier.itemsize * math.prod(shape)


def restore(dtype: str, shape: tuple[int, ...], data: np.ndarray[Any, Any], bits: bool = False) -> Any:
    """The array of `data`, a writable one-dimensional uint8 array whose memory the result takes over.

    WireError if the size does not fit, or if the dtype needs torch and this process has not imported it (`bits` False).
    """
    expected = size_of(dtype, shape)
    if data.nbytes != expected:
        raise WireError(f"{dtype}{list(shape)} takes {expected} bytes, {data.nbytes} came")
    if dtype in _NUMPY:
        return _shaped(data, dtype, shape)
    raw = _shaped(data, _TORCH_ONLY[dtype], shape)
    if bits:
        return raw
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, dtype):
        raise WireError(
            f"a {dtype} array arrived in a process without torch: numpy has no {dtype}. "
            "Convert it to float32 before it is sent, or import torch in this process"
        )
    return torch.from_numpy(raw.view(f"i{raw.itemsize}")).view(getattr(torch, dtype))


def _shaped(data: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    try:
        return data.view(_NUMPY[dtype]).reshape(shape)
    except ValueError as error:  # dims that numpy cannot hold, such as (0, 2**63)
        raise WireError(f"{list(shape)} is not a shape that numpy holds: {error}") from None


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)  # absent while torch is half imported
    return tensor is not None and isinstance(value, tensor)


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _flatten_tensor(tensor: Any) -> Flat:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout is not torch.strided or tensor.is_quantized or (name not in _NUMPY and name not in _TORCH_ONLY):
        raise WireError(
            f"a tensor of dtype {name} and layout {tensor.layout} cannot travel; make it dense and of a plain dtype"
        )
    host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if name in _TORCH_ONLY:
        host = host.view(torch.int16 if _TORCH_ONLY[name] == "uint16" else torch.uint8)
    return Flat(name, tuple(tensor.shape), _bytes_of(host.numpy()))
