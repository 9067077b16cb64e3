"""GGUF files: metadata and dequantised tensors, from a memory map.

The layout is that of the GGUF specification, versions 2 and 3, little endian: header, key-value pairs, tensor infos, aligned data.
The header is parsed here, since a vocabulary of 50 000 strings takes the `gguf` package's reader many seconds; its block formats
are used as they are.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mstarc_runtime.errors import LoadError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST = 1 << 32  # a larger count or length is damage


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A stored tensor: `shape` row-major (GGUF lists dims the other way round), `kind` a GGML quantisation type."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # bytes from the start of the data section


class _Cursor:
    """Reads little-endian values in order; running off the end is a ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def scalar(self, code: str) -> Any:
        size = struct.calcsize("<" + code)
        self._need(size)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value

    def string(self) -> str:
        size = self.scalar("Q")
        self._need(size)
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, count = self.scalar("I"), self.scalar("Q")
        if count > _MOST:
            raise ValueError(f"an array of {count} values")
        if item in _SCALARS:
            size = struct.calcsize("<" + _SCALARS[item]) * count
            self._need(size)
            self.at += size
            return list(struct.unpack_from(f"<{count}{_SCALARS[item]}", self.data, self.at - size))
        return [self.value(item) for _ in range(count)]

    def _need(self, size: int) -> None:
        if self.at + size > len(self.data):
            raise ValueError(f"the file ends after {len(self.data)} bytes, {self.at + size} are needed")


class GgufFile:
    """An opened GGUF file. `fields` is the metadata, `tensors` the infos by name. Raises LoadError if it is not GGUF or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            cursor = _Cursor(self._data)
            if self._data[:4] != b"GGUF":
                raise ValueError("it does not start with GGUF")
            cursor.at = 4
            version, tensors, fields = cursor.scalar("I"), cursor.scalar("Q"), cursor.scalar("Q")
            if version not in (2, 3) or max(tensors, fields) > _MOST:
                raise ValueError(f"version {version} with {tensors} tensors and {fields} fields")
            self.fields: dict[str, Any] = {}
            for _ in range(fields):
                key = cursor.string()
                self.fields[key] = cursor.value(cursor.scalar("I"))
            infos = [_tensor_info(cursor) for _ in range(tensors)]
        except (OSError, ValueError, KeyError, struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"{path} cannot be read as GGUF: {error}") from error
        self.tensors = {info.name: info for info in infos}
        alignment = int(self.fields.get("general.alignment", 32)) or 32
        self._start = -(-cursor.at // alignment) * alignment

    def field(self, key: str, kind: Callable[[Any], Any] = int) -> Any:
        """A metadata value that must exist. Raises LoadError naming it."""
        if key not in self.fields:
            raise LoadError(f"{self.path.name}: metadata `{key}` is missing")
        return kind(self.fields[key])

    def tensor(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A tensor dequantised to f32. Raises LoadError if it is missing, cut off or of a type without a dequantiser."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        if name not in self.tensors:
            raise LoadError(f"{self.path.name}: tensor `{name}` is missing")
        info = self.tensors[name]
        try:
            kind = GGMLQuantizationType(info.kind)
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if info.shape[-1] % block:
                raise ValueError(f"rows of {info.shape[-1]} values in blocks of {block}")
            shape = (*info.shape[:-1], info.shape[-1] // block * block_bytes)
            raw = np.frombuffer(self._data, np.uint8, int(np.prod(shape)), self._start + info.offset).reshape(shape)
            values = dequantize(raw.view(np.float32) if kind is GGMLQuantizationType.F32 else raw, kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise LoadError(f"{self.path.name}: tensor `{name}` cannot be dequantised: {error}") from error
        result: np.ndarray[Any, np.dtype[np.float32]] = np.asarray(values, dtype=np.float32).reshape(info.shape)
        return result


def _tensor_info(cursor: _Cursor) -> TensorInfo:
    name, dims = cursor.string(), cursor.scalar("I")
    if dims > 8:
        raise ValueError(f"tensor `{name}` has {dims} dims")
    shape = tuple(cursor.scalar("Q") for _ in range(dims))[::-1]
    return TensorInfo(name, shape, cursor.scalar("I"), cursor.scalar("Q"))
