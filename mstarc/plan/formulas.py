"""Formulas of a binding's `cost:` section: arithmetic over names, as text. Takes a text and values of names; gives a number.

A formula is a Python expression of numbers, names, dotted names (`llm.hidden_size`), + - * / // % **, parentheses, `min`, `max` and
`sum` of a list's elements. Nothing else is evaluated, so a formula can do no more than count.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALLS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "sum": sum}
LONGEST = 1000  # characters
SHOWN = 80  # characters of a formula in a message
LARGEST_POWER = 64
LARGEST_BASE = 2**32
LARGEST = 1e30  # more than any count of bytes or FLOPs; products of some stay finite


class FormulaError(ValueError):
    """A formula that is none, or a name that has no value. The message says which."""


def parse_formula(text: str | int | float) -> ast.expr:
    """The formula. Raises FormulaError."""
    written = str(text)
    if len(written) > LONGEST:
        raise FormulaError(f"a formula of {len(written)} characters; it has at most {LONGEST}")
    try:
        found = ast.parse(written, mode="eval").body
        _check(found)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = str(error) if isinstance(error, FormulaError) else "it does not read as arithmetic"
        raise FormulaError(f"`{written}` is no formula: {reason}") from None
    return found


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return
        case ast.Name() | ast.Attribute(value=ast.Name()):
            return
        case ast.UnaryOp(op=ast.USub(), operand=x):
            _check(x)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _BINARY:
            _check(a)
            _check(b)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _CALLS and args:
            for arg in args:
                _check(arg)
        case _:
            raise FormulaError(f"`{ast.unparse(node)}` is not arithmetic")


def evaluate(text: str | int | float, value_of: Callable[[str], Any]) -> float:
    """The number that a formula comes to; `value_of` raises FormulaError for a name without a value, as this does for the rest."""
    try:
        found = _value(parse_formula(text), value_of)
        if not abs(float(found)) <= LARGEST:
            raise FormulaError(f"`{_short(text)}` comes to more than {LARGEST:.0e}")
        return found if isinstance(found, int) else float(found)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        if isinstance(error, FormulaError):
            raise
        raise FormulaError(f"`{_short(text)}` has no value: {error}") from None


def _short(text: str | int | float) -> str:
    written = str(text)
    return written if len(written) <= SHOWN else f"{written[:SHOWN]}…"


def _value(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return value_of(ast.unparse(node))
        case ast.UnaryOp(operand=x):
            return -_number(x, value_of)
        case ast.BinOp(left=a, op=op, right=b):
            left, right = _number(a, value_of), _number(b, value_of)
            if isinstance(op, ast.Pow):
                if abs(right) > LARGEST_POWER:
                    raise FormulaError(f"a power of {right}")
                # a float overflows instead of growing without end
                left = left if abs(left) <= LARGEST_BASE else float(left)
            return _BINARY[type(op)](left, right)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _CALLS[name](*(_value(arg, value_of) for arg in args))
    raise FormulaError(f"`{ast.unparse(node)}` is not arithmetic")


def _number(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    """An operand: a text or a list of the config is none, and could be multiplied to any size."""
    found = _value(node, value_of)
    if not isinstance(found, int | float):
        raise FormulaError(f"`{ast.unparse(node)}` is {type(found).__name__} {_short(repr(found))}, not a number")
    return found
