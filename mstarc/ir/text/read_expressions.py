"""Expressions and types from the IR's text form: recursive descent, the inverse of `expressions`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from mstarc.ir.text.expressions import NEGATE, NOT, STRENGTH
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.types import (
    DTYPES,
    SCALARS,
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

_T = TypeVar("_T")
_WORDS: dict[str, bool | float] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


def read_list(c: Cursor, close: str, item: Callable[[Cursor], _T]) -> tuple[_T, ...]:
    """Items between commas up to and including `close`; the opening bracket was taken."""
    items: list[_T] = []
    while not c.accept(close):
        if items:
            c.expect(",")
        items.append(item(c))
    return tuple(items)


def read_named(c: Cursor) -> tuple[tuple[str, Expr], ...]:
    """`(a = 1, b = 2)`."""
    c.expect("(")
    return read_list(c, ")", _read_pair)


def _read_pair(c: Cursor) -> tuple[str, Expr]:
    name = c.take_name()
    c.expect("=")
    return name, read_expr(c)


def read_expr(c: Cursor) -> Expr:
    """One expression."""
    if c.accept("if"):
        cond = _read_binary(c, 1)
        c.expect("then")
        a = _read_binary(c, 1)
        c.expect("else")
        return IfThen(cond, a, read_expr(c))
    low = _read_binary(c, 1)
    if not c.accept(".."):
        return low
    high = _read_binary(c, 1)
    return Range(low, high, _read_binary(c, 1) if c.accept("except") else None)


def _read_binary(c: Cursor, least: int) -> Expr:
    """Operators that bind at least as tightly as `least`, to the left."""
    x = _read_unary(c, least)
    while c.token.kind in ("name", "symbol") and STRENGTH.get(c.token.text, 0) >= least:
        op = c.advance().text
        x = Binary(op, x, _read_binary(c, STRENGTH[op] + 1))
    return x


def _read_unary(c: Cursor, least: int) -> Expr:
    if least <= NOT and c.accept("not"):
        return Unary("not", _read_binary(c, NOT))
    if not c.accept("-"):
        return _read_postfix(c)
    if c.token.kind == "number" or (c.sees("inf", "nan") and c.after.text not in (".", "(")):
        return Lit(-_number(c))
    return Unary("-", _read_binary(c, NEGATE))


def _number(c: Cursor) -> int | float:
    token = c.advance()
    if token.kind == "name":
        return float(token.text)
    return int(token.text) if token.text.isdigit() else float(token.text)


def _read_postfix(c: Cursor) -> Expr:
    x = _read_atom(c)
    while c.sees("[", "."):
        if c.advance().text == "[":
            x = Index(x, read_list(c, "]", _read_index))
        else:
            x = FieldOf(x, c.take_name())
    return x


def _read_index(c: Cursor) -> Expr | Slice:
    low = None if c.sees(":") else read_expr(c)
    if not c.accept(":"):
        assert low is not None
        return low
    return Slice(low, None if c.sees(",", "]") else read_expr(c))


def _read_atom(c: Cursor) -> Expr:
    token = c.token
    if token.kind == "var":
        return Var(c.take_var())
    if token.kind == "number":
        return Lit(_number(c))
    if token.kind == "string":
        return Lit(c.take_string())
    if c.accept("("):
        x = read_expr(c)
        c.expect(")")
        return x
    if c.accept("["):
        return ListOf(read_list(c, "]", read_expr))
    return _read_word(c)


def _read_word(c: Cursor) -> Expr:
    name = c.take_name("an expression")
    if c.accept("("):
        return Apply(name, read_list(c, ")", read_expr))
    if c.accept("."):
        for scope in ("config", "param", "let", "dim", "iter", "member"):
            if scope == name:
                return Ref(scope, c.take_name())
        c.fail(f"a scope, not `{name}`,")
    if name in _WORDS:
        return Lit(_WORDS[name])
    return c.fail(f"`(` or `.` after `{name}`")


# ---------------------------------------------------------------------------------------------------------------------- types


def read_type(c: Cursor) -> Type:
    """One type."""
    name = c.take_name("a type")
    if name == "chunk":
        c.expect("(")
        stream = c.take_name()
        c.expect(",")
        item = read_type(c)
        c.expect(")")
        return Chunk(stream, item)
    if name in DTYPES and c.accept("["):
        return Tensor(name, read_list(c, "]", read_expr), c.accept("?"))
    if name in SCALARS:
        return Scalar(name, c.accept("?"))
    if name == "media":
        return Media(c.take_name("a modality"), c.accept("?"))
    if name == "enum":
        c.expect("(")
        return Enum(read_list(c, ")", Cursor.take_name), c.accept("?"))
    if name == "list":
        return Parts(_read_members(c), c.accept("?"))
    if name == "struct":
        struct = c.take_name()
        c.expect("(")
        return Struct(struct, read_list(c, ")", _read_field), c.accept("?"))
    return c.fail(f"a type that begins with `{name}`")


def _read_members(c: Cursor) -> tuple[str, ...]:
    c.expect("(")
    members: list[str] = []
    while not c.accept(")"):
        if members:
            c.expect("|")
        members.append(c.take_name())
    return tuple(members)


def _read_field(c: Cursor) -> tuple[str, Type]:
    name = c.take_name()
    c.expect(":")
    return name, read_type(c)
