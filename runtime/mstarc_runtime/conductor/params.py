"""Checks what a client sent against the tables of the generated conductor. Every refusal names the field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from mstarc_runtime.abi.typed import FLOATS, WHOLE, NotTaken, check_dims, check_parts, scalar, tensor_shape
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
    with _named(f"`{param.name}`", param.name):
        found = scalar(param.kind, value, param.members)
    if param.kind in ("int", "float"):
        _check_range(param, found, param.low, param.high)
    return found


@contextmanager
def _named(what: str, field: str) -> Iterator[None]:
    """Inside, a value that is not taken is told with its name."""
    try:
        yield
    except NotTaken as error:
        raise BadRequest(f"{what} {error}", field) from None


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
            dims = [getattr(config, dim, dim) if isinstance(dim, str) else dim for dim in item.dims]
            with _named(f"input `{item.name}`", item.name):
                check_dims(dims, np.shape(checked), item.name, lengths)
    return found


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
    if item.kind == "part":
        return _part(item, value, config)
    with _named(f"input `{item.name}`", item.name):
        if item.kind == "parts":
            check_parts(item.members, value)
        return _tensor(item.dtype, value) if item.kind == "tensor" else scalar(item.kind, value, item.members)


def _part(item: Input, value: Any, config: Any) -> Part:
    """A value of a declared type: an object with its fields, or a part of that kind."""
    kind = item.members[0]
    given = {k: v for k, v in vars(value).items() if k != "kind"} if isinstance(value, Part) else value
    if not isinstance(given, Mapping):
        raise BadRequest(f"input `{item.name}` must be an object with the fields of `{kind}`", item.name)
    return Part(kind, **_fields(f"input `{item.name}`", "field", item.fields, given, config))


def _tensor(dtype: str, value: Any) -> Any:
    """An array of a dtype: numbers as they are given, none rounded or read out of a text; a scalar for no dims. Raises NotTaken."""
    wanted = np.dtype(_NUMPY[dtype])
    if isinstance(value, list) and any(hasattr(item, "dtype") for item in value):
        value = _stacked(value)
    if not hasattr(value, "dtype"):
        tensor_shape(dtype, value)
        array = np.asarray(value, wanted)
        return array.item() if array.ndim == 0 else array
    given = np.asarray(value)
    if given.size and given.dtype.kind not in _KINDS[wanted.kind]:
        raise NotTaken(f"must be {dtype}, not {_NAMES.get(given.dtype.kind, 'values of another kind')}")
    if dtype in WHOLE and given.size and given.dtype != wanted:
        low, high = WHOLE[dtype]
        if not low <= int(given.min()) <= int(given.max()) <= high:
            raise NotTaken(f"must be in the range of {dtype}")
    with np.errstate(over="ignore"):
        array = given.astype(wanted)
    if wanted.kind == "f":
        held = np.abs(array) < FLOATS["bf16"] if dtype == "bf16" else np.isfinite(array)  # bf16 comes as f32
        if not held.all():
            raise NotTaken(f"must be finite and in the range of {dtype}")
    return array.item() if array.ndim == 0 else array


def _stacked(items: list[Any]) -> Any:
    """Arrays on a new dim 0."""
    try:
        return np.asarray(items)
    except ValueError:
        raise NotTaken("is ragged: its items differ in shape") from None


_NAMES = {
    "U": "text",
    "f": "floating-point numbers",
    "b": "true or false",
    "i": "whole numbers",
    "u": "whole numbers",
}  # of the kinds of numpy
