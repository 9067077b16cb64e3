"""Whether a request is served as written: its inputs and params by name, type, shape and range, as the runtime admits them.

Takes what a client gave; raises `RequestRefused`. What a type takes is in `mstarc_runtime.abi.typed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from mstarc.interp.errors import RequestRefused
from mstarc.ir.core import Program, Request
from mstarc.ir.declarations import Param
from mstarc.ir.fold import FoldError, Scope, fold
from mstarc.ir.types import Enum, Expr, Lit, Parts, Ref, Scalar, Struct, Tensor, Type
from mstarc_runtime.abi.typed import NotTaken, check_dims, check_parts, scalar, tensor_shape


def check_names(program: Program, request: Request, inputs: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Each name is one that the request takes, and none that it needs is left out. A value of None counts as left out."""
    known = [param.name for param in program.params]
    taken = [value.name for value in request.inputs]
    for name in params:
        if name not in known:
            other = f"; `{name}` is an input" if name in taken else _meant(name, known, taken)
            raise RequestRefused(f"unknown parameter `{name}`{other}", name)
    for name in inputs:
        if name not in taken:
            other = f"; `{name}` is a param" if name in known else _meant(name, taken)
            raise RequestRefused(f"request `{request.name}` takes no input `{name}`{other}", name)
    for value in request.inputs:
        if inputs.get(value.name) is None and not _optional(value.type):
            raise RequestRefused(f"request `{request.name}` needs the input `{value.name}`", value.name)


def _optional(kind: Type) -> bool:
    return getattr(kind, "optional", False)


def check_inputs(request: Request, inputs: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The inputs that are there. Each is of its type, and as long as the inputs before it say."""
    return _fields([(value.name, value.type) for value in request.inputs], inputs, scope)


def _fields(declared: Sequence[tuple[str, Type]], given: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    found = {}
    lengths: dict[str, tuple[int, str]] = {}  # of free dims: how long, and the input that says so
    for name, kind in declared:
        if given.get(name) is not None:
            with _named(f"input `{name}`", name):
                found[name] = _value(name, kind, given[name], scope, lengths)
    return found


def _value(name: str, kind: Type, value: Any, scope: Scope, lengths: dict[str, tuple[int, str]]) -> Any:
    match kind:
        case Tensor(dtype=dtype, dims=dims):
            shape = tuple(value.shape) if hasattr(value, "shape") else tensor_shape(dtype, value)
            check_dims([_dim(dim, scope) for dim in dims], shape, name, lengths)
        case Scalar(kind_name):
            return scalar(kind_name, value)
        case Enum(members):
            return scalar("enum", value, members)
        case Parts(members):
            check_parts(members, value)
        case Struct(part, fields):
            return SimpleNamespace(kind=part, **_part(part, fields, value, scope))
    return value


def _part(kind: str, fields: Sequence[tuple[str, Type]], value: Any, scope: Scope) -> dict[str, Any]:
    """A value of a declared type, by field."""
    given = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
    if given is None:
        raise NotTaken(f"must be an object with the fields of `{kind}`")
    names = [field for field, _ in fields]
    for name in given:
        if name not in (*names, "kind"):
            raise NotTaken(f"takes no field `{name}`{_meant(name, names)}")
    for name, inner in fields:
        if given.get(name) is None and not _optional(inner):
            raise NotTaken(f"needs the field `{name}`")
    return dict.fromkeys(names) | _fields(fields, given, scope)


def _dim(dim: Expr, scope: Scope) -> int | str | None:
    """A length, the name of a free one, or None for what is computed from these."""
    match dim:
        case Lit(value) if isinstance(value, int):
            return value
        case Ref("dim", name):
            return name
        case Ref("config"):
            try:
                found = fold(dim, scope)
            except FoldError:
                return None
            return found if isinstance(found, int) else None
    return None


def param_value(param: Param, value: Any) -> Any:
    """The value as the param's type has it."""
    members = param.type.members if isinstance(param.type, Enum) else ()
    kind = param.type.name if isinstance(param.type, Scalar) else "enum"
    with _named(f"`{param.name}`", param.name):
        return scalar(kind, value, members)


@contextmanager
def _named(what: str, field: str) -> Iterator[None]:
    """Inside, a value that is not taken is told with its name."""
    try:
        yield
    except NotTaken as error:
        raise RequestRefused(f"{what} {error}", field) from None


def _meant(name: str, known: Sequence[str], inputs: Sequence[str] = ()) -> str:
    """The nearest known name as a question, else all of them."""
    close = get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    listed = ", ".join(f"`{each}`" for each in known) or "none"
    return f"; there are {listed}" + (f", and the inputs {', '.join(f'`{each}`' for each in inputs)}" if inputs else "")
