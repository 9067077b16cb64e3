"""Evaluates the plan's expressions with a checkpoint's config: numbers, id lists, and sums over params or lengths."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mstarc.ir.core import Walk
from mstarc.ir.fold import FoldError, Scope, fold
from mstarc.ir.text import HEADER, parse_program
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.text.read_expressions import read_expr, read_type
from mstarc.ir.types import Binary, Expr, Ref, Type, ValueId
from mstarc.plan.model import Plan


def parse_expr(text: str) -> Expr:
    """An expression from the IR's text form."""
    return read_expr(Cursor(text))


def parse_type(text: str) -> Type:
    """A type from the IR's text form."""
    return read_type(Cursor(text))


def walks_of(plan: Plan) -> tuple[Walk, ...]:
    """The walks of a plan as IR."""
    lines = [HEADER, f"model {plan.model}", *(line for walk in plan.walks for line in walk.body)]
    return _parsed("\n".join(lines) + "\n")


@lru_cache(maxsize=2)  # a link asks several times
def _parsed(text: str) -> tuple[Walk, ...]:
    return parse_program(text).walks


class ConfigScope(Scope):
    """Config values by name: an override, else the binding's value, else the spec's expression.

    overrides: `section.key` -> value, from a checkpoint. Raises `FoldError` for anything but a config.
    """

    def __init__(self, plan: Plan, overrides: Mapping[str, Any]) -> None:
        self._plan, self._overrides = plan, overrides
        self._configs = {config.name: config for config in plan.configs}
        self._open: set[str] = set()

    def let(self, name: str) -> Expr:
        """What a `let` stands for."""
        return parse_expr(self._plan.lets[name])

    def ref(self, ref: Ref) -> Any:
        if ref.scope == "let":
            return fold(self.let(ref.name), self)
        if ref.scope != "config" or ref.name not in self._configs:
            raise FoldError(f"the {ref.scope} `{ref.name}` has no value when a model is linked")
        config = self._configs[ref.name]
        if config.path in self._overrides:
            return self._overrides[config.path]
        section, _, key = config.path.partition(".")
        if config.path and key in self._plan.binding.config.get(section, {}):
            return self._plan.binding.config[section][key]
        if not config.expr:
            raise FoldError(
                f"config `{ref.name}` reads `{config.path}`, which neither the binding nor a checkpoint gives"
            )
        if ref.name in self._open:
            raise FoldError(f"config `{ref.name}` is defined by itself")
        self._open.add(ref.name)
        try:
            return fold(parse_expr(config.expr), self)
        finally:
            self._open.discard(ref.name)

    def var(self, ident: ValueId) -> Any:
        raise FoldError(f"%{ident} has no value when a model is linked")

    def field(self, ident: ValueId, name: str) -> Any:
        raise FoldError(f"%{ident}.{name} has no value when a model is linked")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        raise FoldError(f"`{fn}` has no value when a model is linked")

    def number(self, text: str) -> int:
        """A whole number. Raises FoldError."""
        value = fold(parse_expr(text), self)
        if isinstance(value, bool) or not isinstance(value, int):
            raise FoldError(f"`{text}` is {value!r}, not a whole number")
        return value

    def all(self) -> dict[str, Any]:
        """Every config."""
        return {name: self.ref(Ref("config", name)) for name in self._configs}


class DefaultScope(ConfigScope):
    """Config values, and params at their defaults. Raises `FoldError` for a param without one."""

    def ref(self, ref: Ref) -> Any:
        if ref.scope != "param":
            return super().ref(ref)
        default = next((param.default for param in self._plan.params if param.name == ref.name), "")
        if not default:
            raise FoldError(f"param `{ref.name}` has no default")
        return fold(parse_expr(default), self)


class MostScope(ConfigScope):
    """Config values, and params at their upper ends. Raises `FoldError` for a param without one."""

    def ref(self, ref: Ref) -> Any:
        if ref.scope != "param":
            return super().ref(ref)
        high = next((param.high for param in self._plan.params if param.name == ref.name), "")
        if not high:
            raise FoldError(f"param `{ref.name}` has no upper end")
        return fold(parse_expr(high), self)


class UsualScope(DefaultScope):
    """Params at their defaults, and the host parameters of a walk whose usual value the plan knows."""

    def __init__(self, plan: Plan, overrides: Mapping[str, Any], walk: Walk) -> None:
        super().__init__(plan, overrides)
        given = {found.name: found.usual for found in plan.walks}[walk.name]
        self.known = {value.name: given[value.name] for value in walk.params if value.name in given}
        self._params = {value.id: value.name for value in walk.params}

    def var(self, ident: ValueId) -> Any:
        name = self._params.get(ident, "")
        return fold(parse_expr(self.known[name]), self) if name in self.known else super().var(ident)


def linear(expr: Expr, scope: ConfigScope) -> tuple[list[Ref], int] | None:
    """(names that are added, number) if the expression is a sum of names and a constant; else None."""
    try:
        value = fold(expr, scope)
        return ([], value) if isinstance(value, int) and not isinstance(value, bool) else None
    except FoldError:
        pass
    match expr:
        case Ref(scope="param" | "dim"):
            return [expr], 0
        case Binary("+" | "-" as sign, a, b):
            left, right = linear(a, scope), linear(b, scope)
            if left is None or right is None or (sign == "-" and right[0]):
                return None
            return [*left[0], *right[0]], left[1] + (right[1] if sign == "+" else -right[1])
    return None
