"""What the component of an op or an extern gives, against what the spec declares: dtype, rank, and the dims that are numbers.

One that gives something else is told by op (or extern) and port, where it happened, instead of failing somewhere behind.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from mstarc_runtime.abi.linked import OpLink, PortLink
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.program import Part

_FLOATS = ("float32", "float16", "bfloat16")  # stand in for each other
_NAMES = {
    "f32": _FLOATS, "f16": _FLOATS, "bf16": _FLOATS, "i64": ("int64",), "i32": ("int32",), "u8": ("uint8",), "bool": ("bool",)
}  # fmt: skip
_SCALARS: dict[str, type | tuple[type, ...]] = {"i64": int, "i32": int, "u8": int, "bool": bool}
_HOST: dict[str, type | tuple[type, ...]] = {
    "int": (int, np.integer), "float": (int, float, np.integer, np.floating), "text": str, "bytes": bytes, "list": (list, tuple)
}  # fmt: skip


class ComponentError(RequestFailed):
    """A component or an extern gave what the spec does not declare."""


class ResultCheck:
    """The declared results of one op. Its methods raise ComponentError naming op, port, and both types."""

    def __init__(self, op: str, component: str, link: OpLink) -> None:
        self._op = op
        self._component = component
        self._ports = link.outputs
        self._count = link.results
        self._kinds = tuple(link.result_kinds)
        self._known = [_dtypes(port) for port in link.outputs]

    @classmethod
    def of_extern(cls, name: str, bound_to: str, ports: Sequence[PortLink]) -> ResultCheck:
        """The declared results of an extern, for `outcome`."""
        return cls(f"extern {name}", bound_to, OpLink(name=name, params=[], results=len(ports), outputs=list(ports)))

    def outcome(self, value: Any) -> None:
        """The results of one request."""
        for port, known, each in zip(self._ports, self._known, self._several(value), strict=False):
            self._check(port, known, each, 0)

    def columns(self, value: Any) -> None:
        """The results of several requests, which stand on a dim 0 before those that are declared."""
        for port, known, each in zip(self._ports, self._known, self._several(value), strict=False):
            self._check(port, known, each, 1)

    def packed(self, value: Any) -> Any:
        """As `columns`, of a transformer op: a result whose first dim is free holds the rows of all requests on it. Gives `value`."""
        kinds = self._kinds or ("row",) * self._count
        for port, known, kind, each in zip(self._ports, self._known, kinds, self._several(value), strict=False):
            self._check(port, known, each, int(kind == "row"))
        return value

    def _several(self, value: Any) -> Sequence[Any]:
        if self._count == 1 and not isinstance(value, tuple):
            return (value,)
        given = len(value) if isinstance(value, tuple) else 0 if value is None else 1
        if given != self._count:
            raise ComponentError(f"`{self._component}` gives {given} results for `{self._op}`, which has {self._count}")
        return value or ()

    def _check(self, port: PortLink, known: frozenset[Any], value: Any, batch: int) -> None:
        if (value is None and port.optional) or not port.dtype:
            return
        if port.dtype == "part":
            self._check_part(port, value)
            return
        if port.dtype in _HOST:
            if not isinstance(value, _HOST[port.dtype]):
                raise self._fault(port, _kind(value))
            if port.dtype == "list":
                self._check_items(port, value)
            return
        shape = getattr(value, "shape", None)
        if shape is None:
            if port.dims or batch or not isinstance(value, _SCALARS.get(port.dtype, (int, float))):
                raise self._fault(port, _kind(value))
            return
        known = known if value.dtype in known else _dtypes(port)  # torch may have come since
        if value.dtype not in known or len(shape) != len(port.dims) + batch:
            raise self._fault(port, _told(value.dtype, shape, batch))
        for have, want in zip(shape[batch:], port.dims, strict=True):
            if want is not None and have != want:
                raise self._fault(port, _told(value.dtype, shape, batch))

    def _check_items(self, port: PortLink, items: Any) -> None:
        """Each is a part of a kind that the list may hold."""
        kinds = {member.kind: member for member in port.fields}
        for place, item in enumerate(items):
            found = kinds.get(item.kind) if isinstance(item, Part) else None
            if kinds and found is None:
                what = f"{_kind(item)} as `{port.name}[{place}]`"
                raise ComponentError(
                    f"`{self._component}` gives {what} of `{self._op}`, whose list holds {', '.join(f'`{kind}`' for kind in kinds)}"
                )
            if found is not None:
                self._check_part(replace(found, name=f"{port.name}[{place}]"), item)

    def _check_part(self, port: PortLink, value: Any) -> None:
        if not isinstance(value, Part) or (port.kind and value.kind != port.kind):
            raise self._fault(port, _kind(value))
        for field in port.fields:
            inner = replace(field, name=f"{port.name}.{field.name}")
            self._check(inner, _dtypes(field), getattr(value, field.name, None), 0)

    def _fault(self, port: PortLink, found: str) -> ComponentError:
        dims = ", ".join("any" if dim is None else str(dim) for dim in port.dims)
        wanted = f"{port.dtype}[{dims}]" if port.dims else f"`{port.kind}`" if port.kind else port.dtype
        return ComponentError(
            f"`{self._component}` gives {found} as `{port.name}` of `{self._op}`, which the spec declares as {wanted}"
        )


def _kind(value: Any) -> str:
    """What a value is, with the shape of an array."""
    if isinstance(value, Part):
        return f"a part of kind `{value.kind}`"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if not shape else _told(value.dtype, shape, 0)


def _told(dtype: Any, shape: Sequence[int], batch: int) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{name} {list(shape[batch:])}" if batch <= len(shape) else f"{name} without a dim of requests"


def _dtypes(port: PortLink) -> frozenset[Any]:
    """dtype objects of numpy and, if it is there, torch that a port takes."""
    names = _NAMES.get(port.dtype, ())
    torch = sys.modules.get("torch")
    ours = [np.dtype(name) for name in names if name != "bfloat16"]
    theirs = [] if torch is None else [getattr(torch, name) for name in names]
    return frozenset([*ours, *theirs])
