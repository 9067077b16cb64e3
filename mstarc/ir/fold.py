"""Evaluates expressions of the IR, the same way wherever they are evaluated: at link, at admission and in the interpreter.

Host numbers are Python's (floats are f64), those of tables f32 (`mstarc_runtime.abi.host_math`). Device values take part through
Python's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from mstarc.ir.types import (
    Apply,
    Binary,
    Expr,
    FieldOf,
    IfThen,
    Index,
    ListOf,
    Lit,
    Range,
    Ref,
    Slice,
    Unary,
    ValueId,
    Var,
)
from mstarc_runtime.abi.formula import OPS
from mstarc_runtime.abi.host_math import linspace, shift


class FoldError(ValueError):
    """An expression has no value: a name is unknown, a division by zero, an index out of range. The message names it."""


class _Absent:
    """The value of an optional that was not bound, and of `next` after the end. Falsy; there is one, `ABSENT`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()


class Scope(Protocol):
    """Where names get their values. Each method raises `FoldError` for a name that it does not know."""

    def ref(self, ref: Ref) -> Any: ...

    def var(self, ident: ValueId) -> Any: ...

    def field(self, ident: ValueId, name: str) -> Any:
        """A field of a value; `field_of` does it for all but chunk handles."""
        ...

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        """The built-ins that need more than their arguments: `given wants last guide`."""
        ...


def fold(expr: Expr, scope: Scope) -> Any:
    """The value of the expression. Raises `FoldError`."""
    return _FOLDS[type(expr)](expr, scope)


def _ref(expr: Ref, scope: Scope) -> Any:
    return expr.name if expr.scope == "member" else scope.ref(expr)


def _unary(expr: Unary, scope: Scope) -> Any:
    x = fold(expr.x, scope)
    return -x if expr.op == "-" else _not(x)


def _if_then(expr: IfThen, scope: Scope) -> Any:
    return fold(expr.a if fold(expr.cond, scope) else expr.b, scope)


def _field(expr: FieldOf, scope: Scope) -> Any:
    if isinstance(expr.base, Var):
        return scope.field(expr.base.id, expr.name)
    return field_of(fold(expr.base, scope), expr.name)


def _range(expr: Range, scope: Scope) -> list[int]:
    kept = set(flat_ids(fold(expr.exclude, scope))) if expr.exclude is not None else set()
    return [i for i in range(fold(expr.low, scope), fold(expr.high, scope) + 1) if i not in kept]


#: settings of a sampler that are lists of ids
ID_LISTS = ("suppress", "suppress_first", "ends")


def flat_ids(value: Any) -> list[int]:
    """Token ids from an id, a list of ids, or a list of lists (`suppress = [3, 10..20]`). Raises FoldError for what is no id."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [i for item in value for i in flat_ids(item)]
    if isinstance(value, bool) or not isinstance(value, int):
        raise FoldError(f"`{value}` is no token id")
    return [value]


def _not(x: Any) -> Any:
    return not x if isinstance(x, bool) or x is ABSENT else x ^ True


def _binary(expr: Binary, scope: Scope) -> Any:
    op, right = expr.op, expr.b
    a = fold(expr.a, scope)
    if op in ("and", "or"):
        if isinstance(a, bool):
            return fold(right, scope) if a is (op == "and") else a
        b = fold(right, scope)
        return a & b if op == "and" else a | b
    b = fold(right, scope)
    try:
        return OPS[op](a, b)
    except ZeroDivisionError:
        raise FoldError(f"`{a} {op} {b}` divides by zero") from None
    except TypeError:
        raise FoldError(f"`{op}` does not apply to {_named(a)} and {_named(b)}") from None


def _named(x: Any) -> str:
    return "an absent value" if x is ABSENT else f"{type(x).__name__} {str(x)[:40]!r}"


def _apply(fn: str, args: tuple[Any, ...], scope: Scope) -> Any:
    match fn:
        case "present":
            return args[0] is not ABSENT
        case "linspace":
            try:
                return linspace(*args)
            except ValueError as error:
                raise FoldError(str(error)) from None
        case "shift":
            return shift(*args)
        case "len":
            return len(args[0])
        case "min":
            return min(args)
        case "max":
            return max(args)
        case _:
            return scope.apply(fn, args)


def _index(base: Any, indices: tuple[Expr | Slice, ...], scope: Scope) -> Any:
    keys: list[Any] = []
    for i in indices:
        if isinstance(i, Slice):
            keys.append(slice(*(None if end is None else fold(end, scope) for end in (i.low, i.high))))
        else:
            keys.append(fold(i, scope))
    try:
        if not isinstance(base, (list, tuple)):
            return base[keys[0] if len(keys) == 1 else tuple(keys)]
        for key in keys:
            base = base[key]
    except (IndexError, TypeError) as error:
        raise FoldError(f"index {', '.join(map(str, keys))}: {error}") from None
    return base


def field_of(base: Any, name: str) -> Any:
    """A field of a part: a key of a mapping or an attribute. Raises `FoldError`."""
    if isinstance(base, Mapping) and name in base:
        return base[name]
    try:
        return getattr(base, name)
    except AttributeError:
        raise FoldError(f"{_named(base)} has no field `{name}`") from None


_FOLDS: dict[type, Callable[[Any, Scope], Any]] = {
    Lit: lambda expr, scope: expr.value,
    Ref: _ref,
    Var: lambda expr, scope: scope.var(expr.id),
    Unary: _unary,
    Binary: _binary,
    IfThen: _if_then,
    Apply: lambda expr, scope: _apply(expr.fn, tuple(fold(arg, scope) for arg in expr.args), scope),
    Index: lambda expr, scope: _index(fold(expr.base, scope), expr.indices, scope),
    FieldOf: _field,
    ListOf: lambda expr, scope: [fold(item, scope) for item in expr.items],
    Range: _range,
}
