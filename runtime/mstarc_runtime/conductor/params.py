"""Checks what a client sent against the tables of the generated conductor. Every refusal names the field."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mstarc_runtime.errors import BadRequest, meant
from mstarc_runtime.program import ConductorProgram, Entry, Input, Param, Part


def check_params(program: ConductorProgram, given: Mapping[str, Any], request: Any) -> SimpleNamespace:
    """Params of one request: checked, with defaults. `request` is what computed defaults read; its `params` fill up in order."""
    known = {param.name for param in program.PARAMS}
    for name in given:
        if name not in known:
            raise BadRequest(f"unknown parameter `{name}`{meant(name, known)}", name)
    values = SimpleNamespace()
    request.params = values
    for param in program.PARAMS:
        if given.get(param.name) is not None:
            setattr(values, param.name, _checked(param, given[param.name]))
        elif not param.computed:
            if param.default is None:
                raise BadRequest(f"parameter `{param.name}` is required", param.name)
            setattr(values, param.name, param.default)
    for param in program.PARAMS:
        if param.computed and not hasattr(values, param.name):
            setattr(values, param.name, getattr(program, f"default_{param.name}")(request))
    for param in program.PARAMS:
        if param.ranged and given.get(param.name) is not None:
            _check_range(param, getattr(values, param.name), *getattr(program, f"range_{param.name}")(request))
    return values


def _checked(param: Param, value: Any) -> Any:
    """One value of the declared kind within its range."""
    if param.kind == "bool":
        if not isinstance(value, bool):
            raise BadRequest(f"`{param.name}` must be true or false, not {value!r}", param.name)
        return value
    if param.kind == "enum":
        if value not in param.members:
            raise BadRequest(f"`{param.name}` must be one of {', '.join(param.members)}, not {value!r}", param.name)
        return value
    if param.kind == "text":
        if not isinstance(value, str):
            raise BadRequest(f"`{param.name}` must be text, not {value!r}", param.name)
        return value
    if param.kind == "bytes":
        return _bytes(param.name, value)
    return _number(param, value)


def _bytes(name: str, value: Any) -> bytes:
    """Bytes, or the base64 text that stands for them in JSON."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        raise BadRequest(f"`{name}` must be bytes as base64 text", name) from None


def _number(param: Param, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"`{param.name}` must be a number, not {value!r}", param.name)
    if param.kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise BadRequest(f"`{param.name}` must be a whole number, not {value!r}", param.name)
        value = int(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"`{param.name}` must be finite, not {value!r}", param.name)
    _check_range(param, value, param.low, param.high)
    try:
        return float(value) if param.kind == "float" else value
    except OverflowError:
        raise BadRequest(f"`{param.name}` must be a number that 64 bits hold", param.name) from None


def _check_range(param: Param, value: float, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        raise BadRequest(f"`{param.name}` must be in {low}..{high}, not {value}", param.name)


def check_inputs(entry: Entry, given: Mapping[str, Any], config: Any) -> SimpleNamespace:
    """Inputs of one request by attribute; an optional one that is missing is None. `config`: config values by attribute."""
    return SimpleNamespace(**_fields(f"request `{entry.name}`", "input", entry.inputs, given, config))


def _fields(owner: str, what: str, items: tuple[Input, ...], given: Mapping[str, Any], config: Any) -> dict[str, Any]:
    """Each of the items by name, checked."""
    known = {item.name for item in items}
    for name in given:
        if name not in known:
            raise BadRequest(f"{owner} takes no {what} `{name}`{meant(name, known)}", str(name))
    found = {}
    lengths: dict[str, tuple[int, str]] = {}  # of free dims: how long, and the item that says so
    for item in items:
        value = given.get(item.name)
        if value is None and not item.optional:
            raise BadRequest(f"{owner} needs the {what} `{item.name}`", item.name)
        found[item.name] = checked = None if value is None else _input(item, value, config)
        if item.dims is not None and checked is not None:
            _check_dims(item.name, item.dims, np.shape(checked), config, lengths)
    return found


def _check_dims(
    name: str, dims: Sequence[int | str | None], shape: Sequence[int], config: Any, lengths: dict[str, tuple[int, str]]
) -> None:
    """Whether a shape is as declared, and as long as the inputs before it."""
    if len(shape) != len(dims):
        raise BadRequest(f"input `{name}` has {len(shape)} dims; it must have {len(dims)}", name)
    for k, (dim, length) in enumerate(zip(dims, shape, strict=True)):
        wanted = getattr(config, dim, None) if isinstance(dim, str) else dim
        if isinstance(wanted, int) and length != wanted:
            raise BadRequest(f"dim {k} of input `{name}` is {length}; it must be {wanted}", name)
        if isinstance(dim, str) and wanted is None:
            known, other = lengths.setdefault(dim, (length, name))
            if length != known:
                text = f"dim {k} of input `{name}` is {length}, but `{other}` says that {dim} is {known}"
                raise BadRequest(text, name)


_NUMPY = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "float32",
    "i64": "int64",
    "i32": "int32",
    "u8": "uint8",
    "bool": "bool",
}
_KINDS = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}  # kinds of numpy that are taken for a kind


def _input(item: Input, value: Any, config: Any) -> Any:
    if item.kind == "text" and not isinstance(value, str):
        raise BadRequest(f"input `{item.name}` must be text, not {type(value).__name__}", item.name)
    if item.kind == "text" and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadRequest(f"input `{item.name}` is not valid UTF-8 text", item.name)
    if item.kind == "parts" and not isinstance(value, list | tuple):
        raise BadRequest(f"input `{item.name}` must be a list of parts, not {type(value).__name__}", item.name)
    if item.kind == "enum" and value not in item.members:
        raise BadRequest(f"input `{item.name}` must be one of {', '.join(item.members)}, not {value!r}", item.name)
    if item.kind == "part":
        return _part(item, value, config)
    if item.kind == "bytes":
        return _bytes(item.name, value)
    return _tensor(item, value) if item.kind == "tensor" else value


def _part(item: Input, value: Any, config: Any) -> Part:
    """A value of a declared type: an object with its fields, or a part of that kind."""
    kind = item.members[0]
    given = {k: v for k, v in vars(value).items() if k != "kind"} if isinstance(value, Part) else value
    if not isinstance(given, Mapping):
        raise BadRequest(f"input `{item.name}` must be an object with the fields of `{kind}`", item.name)
    return Part(kind, **_fields(f"input `{item.name}`", "field", item.fields, given, config))


def _tensor(item: Input, value: Any) -> Any:
    """An array of the input's type: numbers as they are given, none rounded or read out of a text; a scalar for no dims."""
    wanted = np.dtype(_NUMPY[item.dtype])
    try:
        given = np.asarray(value)
        if given.size and given.dtype.kind not in _KINDS[wanted.kind]:
            raise BadRequest(f"input `{item.name}` must be {item.dtype}, not {_what(given)}", item.name)
        with np.errstate(over="ignore"):
            array = given.astype(wanted)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadRequest(f"input `{item.name}` must be {item.dtype}: {error}", item.name) from error
    if wanted.kind == "f" and not np.isfinite(array).all():
        raise BadRequest(f"input `{item.name}` must be finite and in the range of {item.dtype}", item.name)
    if wanted.kind in "iu" and not np.array_equal(array, given):
        raise BadRequest(f"input `{item.name}` must be in the range of {item.dtype}", item.name)
    return array.item() if array.ndim == 0 else array


def _what(given: Any) -> str:
    return {"U": "text", "f": "floating-point numbers", "b": "true or false"}.get(
        given.dtype.kind, "values of another kind"
    )
