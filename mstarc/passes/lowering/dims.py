"""Arithmetic on dims: expressions as polynomials, so that `256 * C` and `C * 256` are one dim. Also printing of types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mstarc.ir.text import print_expr
from mstarc.ir.types import Binary, Chunk, Enum, Expr, Lit, Media, Parts, Ref, Scalar, Struct, Tensor, Type, Unary

Monomial: TypeAlias = tuple[str, ...]  # sorted atoms
Polynomial: TypeAlias = dict[Monomial, int]


def polynomial(expr: Expr) -> Polynomial:
    """Sum of products over opaque atoms (names, and sub-expressions that are neither sum nor product)."""
    match expr:
        case Lit(value) if isinstance(value, int):
            return {(): value} if value else {}
        case Unary("-", x):
            return {m: -c for m, c in polynomial(x).items()}
        case Binary("+", a, b):
            return _add(polynomial(a), polynomial(b), 1)
        case Binary("-", a, b):
            return _add(polynomial(a), polynomial(b), -1)
        case Binary("*", a, b):
            return _times(polynomial(a), polynomial(b))
        case _:
            return {(atom(expr),): 1}


def atom(expr: Expr) -> str:
    """One name for an expression that arithmetic cannot look into."""
    return f"{expr.scope}:{expr.name}" if isinstance(expr, Ref) else f"expr:{expr!r}"


def _add(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    total = dict(a)
    for monomial, count in b.items():
        total[monomial] = total.get(monomial, 0) + sign * count
    return {monomial: count for monomial, count in total.items() if count}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for ma, ca in a.items():
        for mb, cb in b.items():
            key = tuple(sorted((*ma, *mb)))
            total[key] = total.get(key, 0) + ca * cb
    return {monomial: count for monomial, count in total.items() if count}


def may_equal(a: Expr, b: Expr) -> bool:
    """Whether two dims can be equal: equal, or different only by what configs and params decide later."""
    difference = _add(polynomial(a), polynomial(b), -1)
    if not difference:
        return True
    atoms = [name for monomial in difference for name in monomial]
    return any(not name.startswith("dim:") for name in atoms)


def substitute(expr: Expr, bound: Mapping[str, Expr]) -> Expr:
    """Replace free dims by what they are bound to."""
    match expr:
        case Ref("dim", name):
            return bound.get(name, expr)
        case Unary(op, x):
            return Unary(op, substitute(x, bound))
        case Binary(op, a, b):
            return Binary(op, substitute(a, bound), substitute(b, bound))
        case _:
            return expr


def free_dims(kind: Type) -> list[str]:
    """Names of the free dims of a type, in order of appearance."""
    found: list[str] = []

    def visit(expr: Expr) -> None:
        match expr:
            case Ref("dim", name) if name not in found:
                found.append(name)
            case Unary(_, x):
                visit(x)
            case Binary(_, a, b):
                visit(a)
                visit(b)
            case _:
                pass

    if isinstance(kind, Tensor):
        for dim in kind.dims:
            visit(dim)
    return found


def type_text(kind: Type | None) -> str:
    """A type as its author writes it."""
    match kind:
        case None:
            return "unknown"
        case Tensor(dtype, dims, optional):
            shape = f"[{', '.join(_dim_text(dim) for dim in dims)}]" if dims else ""
            return dtype + shape + ("?" if optional else "")
        case Scalar(name, optional):
            return name + ("?" if optional else "")
        case Enum(members):
            return f"enum({', '.join(members)})"
        case Media(modality, optional):
            return modality + ("?" if optional else "")
        case Struct(name):
            return name
        case Parts(members):
            return f"list({' | '.join(members)})"
        case Chunk(stream):
            return f"chunk of {stream}"


def _dim_text(dim: Expr) -> str:
    match dim:
        case Ref(_, name):
            return name
        case Lit(value):
            return str(value)
        case Binary(op, a, b):
            return f"{_dim_text(a)} {op} {_dim_text(b)}"
        case _:
            return print_expr(dim)
