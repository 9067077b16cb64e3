"""Arrays in requests and answers: as JSON or as msgpack.

| in JSON | in msgpack | is |
| --- | --- | --- |
| nested lists of numbers | the same | an array of the dtype that the input has |
| `{"dtype": "float32", "shape": [2, 3], "data": "<base64>"}` | the same with bytes for `data` | an array, little-endian, C order |
| – | `{"__ndarray__": true, "dtype", "shape", "data"}`, keys as bytes or text | the same, as robots' clients write it |
| `{"data": "<base64>"}` | bytes | the content of a file: an image, a recording, a video |

Answers hold nested lists, or with `"tensors": "base64"` the second form; in msgpack the third.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mstarc_runtime.errors import BadRequest

MSGPACK = "application/msgpack"
MSGPACK_KINDS = (MSGPACK, "application/x-msgpack", "application/vnd.msgpack")
MAX_DIMS = 32
_KINDS = "biuf"  # of dtypes that may come: bool, whole numbers, floating-point numbers
_ARRAY, _NUMBER = "__ndarray__", "__npgeneric__"
_DEEPEST = 64
_APART = 2**16  # bytes of an array beyond which a copy costs more than a piece of its own
_PIECE = 2**23  # bytes that are handed to a connection at once
_MAPS = (*range(0x80, 0x90), 0xDE, 0xDF)  # first bytes of msgpack's values
_LISTS = (*range(0x90, 0xA0), 0xDC, 0xDD)
_BYTES = (0xC4, 0xC5, 0xC6)
_MAP32, _LIST32, _BYTES32 = b"\xdf", b"\xdd", b"\xc6"  # of msgpack, before a length of four bytes
Piece: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Form:
    """How an answer is written. `packed`: arrays in JSON as base64."""

    binary: bool = False
    packed: bool = False


JSON = Form()

# ----------------------------------------------------------------------------------------------------------------- reading


def parse_msgpack(body: bytes | memoryview) -> Any:
    """A msgpack value with its arrays; keys become text. Raises BadRequest that says where what is wrong stands."""
    try:
        return _rich(msgspec.msgpack.decode(body, type=msgspec.Raw), "", 0)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise BadRequest(f"the message is not valid msgpack: {error}") from None


def _rich(raw: msgspec.Raw, field: str, depth: int) -> Any:
    """A value. Large arrays stay where they lie in the message."""
    if depth > _DEEPEST:
        raise BadRequest("the message is nested too deeply", field or None)
    first = memoryview(raw)[0]
    if first in _MAPS:
        items = msgspec.msgpack.decode(raw, type=dict[Any, msgspec.Raw])
        named = {_key(key, field): item for key, item in items.items()}
        if _ARRAY in named or is_array_object(named):
            return read_array({key: _content(item) for key, item in named.items()}, field)
        if _NUMBER in named:
            return _number({key: msgspec.msgpack.decode(item) for key, item in named.items()}, field)
        return {key: _rich(item, f"{field}.{key}" if field else key, depth + 1) for key, item in named.items()}
    if first in _LISTS:
        with suppress(msgspec.ValidationError):
            return msgspec.msgpack.decode(raw, type=list[int | float | bool | str | None])
        raws = msgspec.msgpack.decode(raw, type=list[msgspec.Raw])
        return [_rich(item, f"{field}[{index}]", depth + 1) for index, item in enumerate(raws)]
    value = msgspec.msgpack.decode(raw)
    if not isinstance(value, str | bytes | bool | int | float | None):
        raise BadRequest(f"`{field}` is a {type(value).__name__}, which msgpack extends itself by", field or None)
    return value


def _content(raw: msgspec.Raw) -> Any:
    """A field of an array. Many bytes are a view of the message, aligned or not."""
    view = memoryview(raw)
    return msgspec.msgpack.decode(raw, type=memoryview if view[0] in _BYTES and len(view) > _APART else Any)


def _key(key: Any, field: str) -> str:
    try:
        found = key.decode("utf-8") if isinstance(key, bytes) else key
    except UnicodeDecodeError:
        found = None
    if not isinstance(found, str):
        raise BadRequest(f"a key of `{field or 'the message'}` is no text: {key!r:.80}", field or None)
    return found


def is_array_object(value: Any) -> bool:
    """Whether a JSON object stands for an array."""
    return isinstance(value, Mapping) and value.keys() == {"dtype", "shape", "data"}


def read_array(value: Mapping[str, Any], field: str) -> NDArray[Any]:
    """The array that an object with `dtype`, `shape` and `data` stands for. Raises BadRequest naming the field."""
    dtype, shape, data = _dtype(value.get("dtype"), field), value.get("shape"), value.get("data")
    if isinstance(data, str):
        data = read_base64(data, f"{field}.data")
    if not isinstance(data, bytes | memoryview):
        raise BadRequest(f"`{field}.data` must be the array's bytes", f"{field}.data")
    if (
        not isinstance(shape, list | tuple)
        or len(shape) > MAX_DIMS
        or not all(isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim < 2**40 for dim in shape)
    ):
        raise BadRequest(f"`{field}.shape` must be a list of up to {MAX_DIMS} lengths", f"{field}.shape")
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        text = f"`{field}.data` has {len(data)} bytes; {dtype.name} {list(shape)} has {expected}"
        raise BadRequest(text, f"{field}.data")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _dtype(name: Any, field: str) -> np.dtype[Any]:
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else name
    try:
        found = np.dtype(name) if isinstance(name, str) and len(name) < 16 else None
    except TypeError:
        found = None
    if found is None or found.kind not in _KINDS or found.itemsize > 8:
        raise BadRequest(f"`{field}.dtype` must name a dtype such as float32, int64 or uint8", f"{field}.dtype")
    return found


def _number(value: Mapping[str, Any], field: str) -> Any:
    dtype, data = _dtype(value.get("dtype"), field), value.get("data")
    if not isinstance(data, bool | int | float):
        raise BadRequest(f"`{field}.data` must be a number", f"{field}.data")
    return dtype.type(data).item()


def read_base64(value: Any, field: str) -> bytes:
    """Bytes of a base64 text. Raises BadRequest naming the field."""
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise BadRequest(f"`{field}` must be base64", field) from None


def read_medium(value: Any, field: str) -> Any:
    """An image, a recording or a video: bytes of a file, an array, or a list of these. Raises BadRequest naming the field."""
    if isinstance(value, bytes | np.ndarray):
        return value
    if isinstance(value, list):
        return [read_medium(item, f"{field}[{index}]") for index, item in enumerate(value)]
    if is_array_object(value):
        return read_array(value, field)
    if isinstance(value, Mapping) and value.keys() == {"data"}:
        return read_base64(value["data"], f"{field}.data")
    return read_base64(value, field)


# ----------------------------------------------------------------------------------------------------------------- writing


def plain(value: Any, form: Form) -> Any:
    """A value as JSON or msgpack holds it. In JSON bytes are base64, nan and infinity null."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return value if form.binary or math.isfinite(value) else None
    if isinstance(value, bytes):
        return value if form.binary else base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): plain(item, form) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, form) for item in value]
    return _array(np.asarray(value), form)


def _array(array: NDArray[Any], form: Form) -> Any:
    if array.ndim == 0:
        return plain(array.item(), form)
    if not form.binary and not form.packed:
        return _lists(array)
    whole = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if form.binary:
        names = {b"dtype": whole.dtype.str, b"shape": list(whole.shape)}
        return {_ARRAY.encode(): True, b"data": whole.reshape(-1).view(np.uint8).data, **names}
    data = base64.b64encode(whole.reshape(-1).view(np.uint8).data).decode()
    return {"dtype": whole.dtype.name, "shape": list(whole.shape), "data": data}


def _lists(array: NDArray[Any]) -> Any:
    """Nested lists; nan and infinity, which JSON lacks, are null."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return np.where(np.isfinite(array), array.astype(object), np.asarray(None)).tolist()
    return array.tolist()


def pack(value: Any) -> bytes:
    """msgpack of a value that `plain` gave."""
    return msgspec.msgpack.encode(value)


def pieces(value: Any) -> list[Piece]:
    """As `pack`, in parts that follow one another: large arrays stand there with their own memory, which is not copied."""
    found: list[Piece] = []
    small = bytearray()
    _write(value, small, found)
    return [*found, bytes(small)] if small else found


def _write(value: Any, small: bytearray, found: list[Piece]) -> None:
    """Append msgpack of a value to `small`, and move that to `found` before each piece that stays as it is."""
    if isinstance(value, dict):
        small += _MAP32 + struct.pack(">I", len(value))
        for key, item in value.items():
            small += pack(key)
            _write(item, small, found)
    elif isinstance(value, list):
        small += _LIST32 + struct.pack(">I", len(value))
        for item in value:
            _write(item, small, found)
    elif isinstance(value, memoryview) and value.nbytes >= _APART:
        small += _BYTES32 + struct.pack(">I", value.nbytes)
        found.append(bytes(small))
        small.clear()
        found += [value[at : at + _PIECE] for at in range(0, value.nbytes, _PIECE)]
    else:
        small += pack(value)
