"""Expressions and types of the IR as text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import assert_never

from mstarc.ir.types import (
    Apply,
    Binary,
    Chunk,
    Enum,
    Expr,
    FieldOf,
    IfThen,
    Index,
    ListOf,
    Lit,
    Media,
    Parts,
    Range,
    Ref,
    Scalar,
    Slice,
    Struct,
    Tensor,
    Type,
    Unary,
    Var,
)

#: binding strength of the binary operators; all associate to the left
STRENGTH = {"or": 1, "and": 2} | dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 4)
STRENGTH |= {"+": 5, "-": 5} | dict.fromkeys(("*", "/", "//", "%"), 6)
NOT, NEGATE, ATOM = 3, 7, 8


def print_expr(expr: Expr, least: int = 0) -> str:
    """The expression, in parentheses if it binds less tightly than `least`."""
    text, strength = _expr(expr)
    return f"({text})" if strength < least else text


def _expr(expr: Expr) -> tuple[str, int]:
    """Text and binding strength."""
    match expr:
        case Lit():
            return _literal(expr.value)
        case Ref(scope, name):
            return f"{scope}.{name}", ATOM
        case Var(ident):
            return f"%{ident}", ATOM
        case Unary("not", x):
            return f"not {print_expr(x, NOT)}", NOT
        case Unary(_, x):
            operand = print_expr(x, NEGATE)
            return (f"-({operand})" if _looks_numeric(operand) else f"-{operand}"), NEGATE
        case Binary(op, a, b):
            strength = STRENGTH[op]
            return f"{print_expr(a, strength)} {op} {print_expr(b, strength + 1)}", strength
        case IfThen(cond, a, b):
            return f"if {print_expr(cond, 1)} then {print_expr(a, 1)} else {print_expr(b)}", 0
        case Range(low, high, exclude):
            kept = "" if exclude is None else f" except {print_expr(exclude, 1)}"
            return f"{print_expr(low, 1)}..{print_expr(high, 1)}{kept}", 0
        case Apply(fn, args):
            return f"{fn}({print_list(args)})", ATOM
        case ListOf(items):
            return f"[{print_list(items)}]", ATOM
        case Index(base, indices):
            return f"{print_expr(base, ATOM)}[{', '.join(_index(i) for i in indices)}]", ATOM
        case FieldOf(base, name):
            # a literal before a dot would read as a decimal fraction or as a scope
            text = print_expr(base, ATOM + isinstance(base, Lit))
            return f"{text}.{name}", ATOM
        case _:
            assert_never(expr)


def _looks_numeric(text: str) -> bool:
    return re.match(r"\d|(inf|nan)\b", text) is not None


def print_list(items: tuple[Expr, ...]) -> str:
    return ", ".join(print_expr(item) for item in items)


def _index(index: Expr | Slice) -> str:
    if not isinstance(index, Slice):
        return print_expr(index)
    low = "" if index.low is None else print_expr(index.low)
    high = "" if index.high is None else print_expr(index.high)
    return f"{low}:{high}"


def _literal(value: bool | int | float | str) -> tuple[str, int]:
    if isinstance(value, bool):
        return ("true" if value else "false"), ATOM
    if isinstance(value, str):
        return json.dumps(value), ATOM
    text = repr(value)
    return text, NEGATE if text.startswith("-") else ATOM


def shown(expr: Expr, names: Mapping[int, str] | None = None) -> str:
    """An expression as the user would write it. `names`: those of the unit's values."""
    text = re.sub(r"\b(config|param|let|dim|member)\.(?=\w)", "", print_expr(expr))
    text = re.sub(r"-\(([\d.]+)\)", r"-\1", re.sub(r"\biter\.\w+", "iter", text))
    return re.sub(r"%(\d+)", lambda m: (names or {}).get(int(m[1]), m[0]), text)


def print_type(kind: Type) -> str:
    """`f32[2, dim.T]`, `i64[]`, `int`, `enum(a, b)`, `media image`, `struct part(ids: i64[dim.T])`, `list(text | image)`, …"""
    match kind:
        case Tensor(dtype, dims):
            text = f"{dtype}[{print_list(dims)}]"
        case Scalar(name):
            text = name
        case Enum(members):
            text = f"enum({', '.join(members)})"
        case Media(modality):
            text = f"media {modality}"
        case Struct(name, fields):
            text = f"struct {name}({', '.join(f'{field}: {print_type(of)}' for field, of in fields)})"
        case Parts(members):
            text = f"list({' | '.join(members)})"
        case Chunk(stream, item):
            return f"chunk({stream}, {print_type(item)})"
        case _:
            assert_never(kind)
    return text + "?" if kind.optional else text
