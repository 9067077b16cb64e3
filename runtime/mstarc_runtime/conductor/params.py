"""Checks what a client sent against the tables of the generated conductor. Every refusal names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

import numpy as np

from mstarc_runtime.errors import BadRequest
from mstarc_runtime.program import ConductorProgram, Entry, Input, Param


def check_params(program: ConductorProgram, given: Mapping[str, Any], request: Any) -> SimpleNamespace:
    """Params of one request: checked, with defaults. `request` is what computed defaults read; its `params` fill up in order."""
    known = {param.name for param in program.PARAMS}
    for name in given:
        if name not in known:
            raise BadRequest(f"unknown parameter `{name}`{_nearest(name, known)}", name)
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
    return values


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


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
    return _number(param, value)


def _number(param: Param, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"`{param.name}` must be a number, not {value!r}", param.name)
    if param.kind == "int":
        if isinstance(value, float) and not value.is_integer():
            raise BadRequest(f"`{param.name}` must be a whole number, not {value!r}", param.name)
        value = int(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"`{param.name}` must be finite, not {value!r}", param.name)
    if (param.low is not None and value < param.low) or (param.high is not None and value > param.high):
        raise BadRequest(f"`{param.name}` must be in {param.low}..{param.high}, not {value}", param.name)
    try:
        return float(value) if param.kind == "float" else value
    except OverflowError:
        raise BadRequest(f"`{param.name}` must be a number that 64 bits hold", param.name) from None


def check_inputs(entry: Entry, given: Mapping[str, Any]) -> SimpleNamespace:
    """Inputs of one request by attribute; an optional one that is missing is None."""
    known = {item.name for item in entry.inputs}
    for name in given:
        if name not in known:
            raise BadRequest(f"request `{entry.name}` takes no input `{name}`{_nearest(name, known)}", name)
    values = SimpleNamespace()
    for item in entry.inputs:
        value = given.get(item.name)
        if value is None and not item.optional:
            raise BadRequest(f"request `{entry.name}` needs the input `{item.name}`", item.name)
        setattr(values, item.name, None if value is None else _input(item, value))
    return values


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


def _input(item: Input, value: Any) -> Any:
    if item.kind == "text" and not isinstance(value, str):
        raise BadRequest(f"input `{item.name}` must be text, not {type(value).__name__}", item.name)
    if item.kind == "text" and any("\ud800" <= character <= "\udfff" for character in value):
        raise BadRequest(f"input `{item.name}` is not valid UTF-8 text", item.name)
    if item.kind == "parts" and not isinstance(value, list | tuple):
        raise BadRequest(f"input `{item.name}` must be a list of parts, not {type(value).__name__}", item.name)
    return _tensor(item, value) if item.kind == "tensor" else value


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
    if item.ndim is not None and array.ndim != item.ndim:
        raise BadRequest(f"input `{item.name}` has {array.ndim} dims; it must have {item.ndim}", item.name)
    if wanted.kind == "f" and not np.isfinite(array).all():
        raise BadRequest(f"input `{item.name}` must be finite and in the range of {item.dtype}", item.name)
    if wanted.kind in "iu" and not np.array_equal(array, given):
        raise BadRequest(f"input `{item.name}` must be in the range of {item.dtype}", item.name)
    return array.item() if array.ndim == 0 else array


def _what(given: Any) -> str:
    return {"U": "text", "f": "floating-point numbers", "b": "true or false"}.get(
        given.dtype.kind, "values of another kind"
    )
