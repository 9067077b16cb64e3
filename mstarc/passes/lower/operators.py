"""Types of operators. Takes lowered operands; gives the lowered expression and reports operands that do not fit (MC007)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mstarc.ir.types import Binary, Enum, Expr, Scalar, Tensor, Type, Unary
from mstarc.passes.lower.dims import Dims
from mstarc.passes.lower.typed import (
    BOOL,
    FLOAT,
    FLOATS,
    INT,
    Typed,
    as_tensor,
    content,
    joint_phase,
    number_of,
    poison,
    type_text,
)
from mstarc.source import Span

if TYPE_CHECKING:
    from mstarc.passes.lower.expressions import Expressions

_ORDER = ("<", "<=", ">", ">=")


def unary(scope: Expressions, op: str, x: Typed, span: Span) -> Typed:
    """`-x` or `not x`."""
    kind = content(x.type)
    made: Literal["-", "not"] = "-" if op == "-" else "not"
    wanted = ("int", "float") if op == "-" else ("bool",)
    if kind is not None and number_of(kind) not in wanted:
        scope.mismatch(f"`{op}` applies to a {'number' if op == '-' else 'bool'}, not to {type_text(kind)}", span)
        return poison(span, x.phase)
    return Typed(Unary(made, x.expr), kind, x.phase, span)


def binary(scope: Expressions, op: str, a: Typed, b: Typed, span: Span) -> Typed:
    """`a op b`, element by element if one of them is a tensor."""
    phase = joint_phase(a, b)
    made = Binary(op, a.expr, b.expr)
    left, right = content(a.type), content(b.type)
    if left is not None and right is not None and not _applies(op, left, right):
        text = f"`{op}` does not apply to {type_text(left)} and {type_text(right)}"
        scope.mismatch(text, span, _sides(a, b))
        return poison(span, phase)
    dims = joined_dims(scope.scope.dims, left, right)
    if dims is None:
        shapes = f"{type_text(left)} and {type_text(right)}"
        scope.mismatch(f"operands of `{op}` have the shapes {shapes}{scope.scope.dims.why()}", span)
        return poison(span, phase)
    if op in ("and", "or", "==", "!=", *_ORDER):
        return Typed(made, Tensor("bool", dims) if dims or phase == "device" else BOOL, phase, span)
    return Typed(made, _arithmetic(op, left, right, dims), phase, span)


def _sides(a: Typed, b: Typed) -> str:
    return "" if a.type is None or b.type is None else f"{type_text(a.type)} and {type_text(b.type)}"


def _applies(op: str, a: Type, b: Type) -> bool:
    """Whether the operator takes operands of these kinds."""
    left, right = number_of(a), number_of(b)
    if op in ("and", "or"):
        return left == right == "bool"
    if op in ("==", "!="):
        if isinstance(a, Enum) and isinstance(b, Enum):
            return a.members == b.members
        if left is None or right is None:
            return type(a) is type(b) and isinstance(a, Scalar)
        return (left == "bool") == (right == "bool")
    return left in ("int", "float") and right in ("int", "float")


def joined_dims(dims: Dims, a: Type | None, b: Type | None) -> tuple[Expr, ...] | None:
    """Dims of an elementwise result: equal ones, or those of the side that has any; None if they differ."""
    left = a.dims if isinstance(a, Tensor) else ()
    right = b.dims if isinstance(b, Tensor) else ()
    if not left or not right:
        return left or right
    if len(left) != len(right) or not dims.unify_all(left, right):
        return None
    return left


def _arithmetic(op: str, a: Type | None, b: Type | None, dims: tuple[Expr, ...]) -> Type | None:
    if a is None or b is None:
        known = a if isinstance(a, Tensor) else b
        return known if isinstance(known, Tensor) and known.dims else None
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return Tensor(_dtype(op, a, b), dims)
    return FLOAT if op == "/" or FLOAT in (a, b) else INT


def _dtype(op: str, a: Type, b: Type) -> str:
    """A tensor keeps its dtype against a host number of its kind; two float dtypes meet in f32."""
    found = [kind.dtype for kind in (a, b) if isinstance(kind, Tensor)]
    floating = [dtype for dtype in found if dtype in FLOATS]
    if floating:
        return floating[0] if len(set(floating)) == 1 else "f32"
    real = op == "/" or "float" in (number_of(a), number_of(b))
    return "f32" if real else found[0] if len(set(found)) == 1 else "i64"


def joined(dims: Dims, a: Type | None, b: Type | None) -> Type | None:
    """The one type of two values, of which either may be meant; None if there is none (or one is not known)."""
    if a is None or b is None:
        return None
    if a == b:
        return a
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        left, right = as_tensor(a), as_tensor(b)
        if (
            isinstance(left, Tensor)
            and isinstance(right, Tensor)
            and left.dtype == right.dtype
            and dims.same(left, right)
        ):
            return left
        return None
    if {number_of(a), number_of(b)} == {"int", "float"}:
        return FLOAT
    if isinstance(a, Scalar) and isinstance(b, Scalar) and a.name == b.name:
        return Scalar(a.name)
    return None
