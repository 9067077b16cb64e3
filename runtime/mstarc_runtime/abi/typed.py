"""What a client may give for a declared type: one rule for whoever serves a request and for the interpreter.

Takes plain values (numbers, texts, nested lists of numbers) and raises `NotTaken`, whose text follows the name of the param or input.
"""

from __future__ import annotations

import base64
import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

#: least and largest
WHOLE = {"i64": (-(2**63), 2**63 - 1), "i32": (-(2**31), 2**31 - 1), "u8": (0, 255)}
#: what is not less than this is rounded to infinity
FLOATS = {"f32": 2.0**128 - 2.0**103, "bf16": 2.0**128 - 2.0**119, "f16": 65520.0}
_I64 = WHOLE["i64"]
_MAX_DIMS = 32


class NotTaken(ValueError):
    """A value cannot stand for a type: `must be i64, not text`."""


def scalar(kind: str, value: Any, members: Sequence[str] = ()) -> Any:
    """The value of a host type: int, float, bool, text, bytes, or an enum of these members. Raises NotTaken."""
    match kind:
        case "bool":
            return _of(bool, value, "true or false")
        case "text":
            return _text(value)
        case "enum" if not isinstance(value, str) or value not in members:
            raise NotTaken(f"must be one of {', '.join(members)}, not {reprlib.repr(value)}")
        case "bytes":
            return _bytes(value)
        case "int":
            return _whole(value)
        case "float":
            return _float(value)
    return value


def _of(kind: type, value: Any, what: str) -> Any:
    if not isinstance(value, kind):
        raise NotTaken(f"must be {what}, not {reprlib.repr(value)}")
    return value


def _text(value: Any) -> Any:
    try:
        _of(str, value, "text").encode()
    except UnicodeEncodeError:  # half of a pair
        raise NotTaken("is not valid UTF-8 text") from None
    return value


def _bytes(value: Any) -> bytes:
    """Bytes, or the base64 text that stands for them in JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise NotTaken("must be bytes as base64 text") from None


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotTaken(f"must be a number, not {reprlib.repr(value)}")
    return value


def _whole(value: Any) -> int:
    """A whole number; 3.0 is one."""
    if isinstance(_number(value), float) and not value.is_integer():
        raise NotTaken(f"must be a whole number, not {value!r}")
    if not _I64[0] <= value <= _I64[1]:
        raise NotTaken("must be a whole number that 64 bits hold")
    return int(value)


def _float(value: Any) -> float:
    try:
        found = float(_number(value))
    except OverflowError:
        raise NotTaken("must be a number that 64 bits hold") from None
    if not math.isfinite(found):
        raise NotTaken(f"must be finite, not {value!r}")
    return found


def kind_of(part: Any) -> str:
    """The kind of a part, an object or a mapping; "" of what has none."""
    kind = part.get("kind") if isinstance(part, Mapping) else getattr(part, "kind", None)
    return kind if isinstance(kind, str) else ""


def check_parts(members: Sequence[str], value: Any) -> None:
    """Whether the value is a list whose parts are of these kinds. Raises NotTaken."""
    if not isinstance(value, list | tuple):
        raise NotTaken(f"must be a list of parts, not {type(value).__name__}")
    for place, part in enumerate(value):
        kind = kind_of(part)
        if kind and members and kind not in members:
            raise NotTaken(
                f"takes parts of the kinds {', '.join(members)}; part {place} is of kind {reprlib.repr(kind)}"
            )


# ---------------------------------------------------------------------------------------------------------------- tensors


def tensor_shape(dtype: str, value: Any, depth: int = 0) -> tuple[int, ...]:
    """The shape of a number, or of nested lists of numbers. Raises NotTaken for another type or range, and for rows of unequal lengths."""
    if depth > _MAX_DIMS:
        raise NotTaken(f"has more than {_MAX_DIMS} dims")
    if not isinstance(value, list | tuple):
        _check_row(dtype, (value,))
        return ()
    if not any(isinstance(item, list | tuple) for item in value):
        _check_row(dtype, value)
        return (len(value),)
    if not all(isinstance(item, list | tuple) for item in value):
        raise NotTaken("is ragged: a list holds numbers and lists")
    first, *others = (tensor_shape(dtype, item, depth + 1) for item in value)
    for other in others:
        if other != first:
            raise NotTaken(f"is ragged: one item has the shape {list(first)}, another {list(other)}")
    return (len(value), *first)


def _check_row(dtype: str, row: Sequence[Any]) -> None:
    """Numbers of the dtype: none is rounded, none is read out of a text, a truth value is no number."""
    wanted = (bool,) if dtype == "bool" else (int,) if dtype in WHOLE else (int, float)
    for kind in set(map(type, row)):
        if not issubclass(kind, wanted) or (kind is bool and dtype != "bool"):
            raise NotTaken(f"must be {dtype}, not {_KINDS.get(kind, 'values of another kind')}")
    if dtype in WHOLE:
        low, high = WHOLE[dtype]
        if not all(low <= item <= high for item in row):
            raise NotTaken(f"must be in the range of {dtype}")
    elif dtype in FLOATS:
        limit = FLOATS[dtype]
        if not all(-limit < item < limit for item in row):  # nan is not, either
            raise NotTaken(f"must be finite and in the range of {dtype}")


_KINDS = {bool: "true or false", float: "floating-point numbers", int: "whole numbers", str: "text", type(None): "null"}


def check_dims(
    dims: Sequence[int | str | None], shape: Sequence[int], name: str, lengths: dict[str, tuple[int, str]]
) -> None:
    """Whether the shape of input `name` is as declared. Raises NotTaken.

    dims: a length, the name of a free one, or None for any. lengths: of free dims, what inputs before it said, and which; is added to.
    """
    if len(shape) != len(dims):
        raise NotTaken(f"has {len(shape)} dims; it must have {len(dims)}")
    for place, (dim, length) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int) and length != dim:
            raise NotTaken(f"has the length {length} in dim {place}; it must be {dim}")
        if isinstance(dim, str):
            known, other = lengths.setdefault(dim, (length, name))
            if length != known:
                raise NotTaken(f"has the length {length} in dim {place}, but `{other}` says that {dim} is {known}")
