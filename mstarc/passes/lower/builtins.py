"""The built-in functions: their arguments and what they give. Takes calls; gives lowered expressions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mstarc.diagnostics import rules
from mstarc.ir.types import MODALITIES, Apply, Chunk, Enum, ListOf, Lit, Parts, Ref, Scalar, Tensor, Type
from mstarc.passes.lower.typed import (
    BOOL,
    FLOAT,
    INT,
    Typed,
    content,
    joint_phase,
    number_of,
    poison,
    type_text,
)
from mstarc.syntax import ast

if TYPE_CHECKING:
    from mstarc.passes.lower.expressions import Expressions

#: how `guide` may limit the norm of its result
RENORMS = ("global", "channel", "text_channel")
#: (fewest, most) arguments
ARITY: Mapping[str, tuple[int, int]] = {
    "given": (1, 1),
    "wants": (1, 1),
    "present": (1, 1),
    "last": (2, 2),
    "linspace": (3, 3),
    "shift": (2, 2),
    "guide": (3, 7),
    "len": (1, 1),
    "min": (2, 9),
    "max": (2, 9),
}


class Builtins:
    """Lowers calls of built-ins for one scope."""

    def __init__(self, scope: Expressions) -> None:
        self._scope = scope

    def lower(self, name: str, tree: ast.Call) -> Typed:
        """A call of the built-in `name`."""
        low, high = ARITY[name]
        report = self._scope.report
        if not low <= len(tree.args) <= high or any(arg.name is not None for arg in tree.args):
            wanted = str(low) if low == high else f"{low} to {high}"
            many = "by position" if low <= len(tree.args) <= high else f"not {len(tree.args)}"
            message = f"`{name}` takes {wanted} argument{'s' if high > 1 else ''}, {many}"
            report.report(rules.MC004, message, tree.span, subject=name, help="pass each argument once, in order")
            return poison(tree.span)
        if tree.access:
            report.report(rules.MC507, f"`{name}` uses no context", tree.access[0].span)
        if name in ("given", "wants"):
            return self._modality(name, tree)
        args = [self._scope.lower(arg.value) for arg in tree.args]
        if name == "present":
            return Typed(Apply(name, (args[0].expr,)), BOOL, "host", tree.span)
        if name == "guide":
            return self._guide(args, tree)
        args = [self._scope.there(arg) for arg in args]
        made = Apply(name, tuple(arg.expr for arg in args))
        match name:
            case "len":
                return self._len(made, args[0], tree)
            case "last":
                return self._last(made, args, tree)
            case "linspace" | "shift":
                return self._table(name, made, args, tree)
            case _:
                return self._numbers(name, made, args, tree)

    def _modality(self, name: str, tree: ast.Call) -> Typed:
        arg = tree.args[0].value
        if not isinstance(arg, ast.Path) or len(arg.names) != 1:
            self._scope.mismatch(f"`{name}` takes the name of a modality", tree.span)
            return poison(tree.span)
        modality = arg.names[0]
        if modality.text not in MODALITIES:
            self._scope.symbols.unknown(modality, "modality", MODALITIES)
        return Typed(Apply(name, (Ref("member", modality.text),)), BOOL, "host", tree.span)

    def _guide(self, args: list[Typed], tree: ast.Call) -> Typed:
        """v and up to two other branches of its type, which may be absent, then scales and the kind of renorm."""
        for arg in args:
            if isinstance(arg.expr, ListOf):
                self._scope.mismatch("`guide` takes one branch or one number here, not a list", arg.span)
                return poison(tree.span, "device")
        first, second, third, *rest = args
        branches = [first, second]
        (branches if isinstance(third.type, Tensor) else rest).append(third)
        first = self._scope.there(first)
        made = Typed(
            Apply("guide", tuple(arg.expr for arg in args)), content(first.type), joint_phase(*args), tree.span
        )
        if any(arg.type is None for arg in args):
            return made  # which are branches, an argument without a type does not say; it has had its error
        if not len(branches) - 1 <= len(rest) <= len(branches) + 1:
            many = f"{len(branches) - 1} scale{'s' if len(branches) > 2 else ''}, then at most a renorm and its least factor"
            message = (
                f"`guide` with {len(branches) - 1} branches beside `v` takes {many}; {len(rest)} values follow them"
            )
            self._scope.report.report(rules.MC004, message, tree.span, subject="guide")
        for arg in rest:
            self._scope.there(arg)
        self._check_renorm(rest[len(branches) - 1 : len(branches)])
        for other in branches[1:]:
            a, b = first.type, other.type
            if isinstance(a, Tensor) and isinstance(b, Tensor) and not self._scope.scope.dims.same(a, b):
                self._scope.mismatch(
                    f"`guide` mixes {type_text(a)} with {type_text(b)}{self._scope.scope.dims.why()}", other.span
                )
        return made

    def _check_renorm(self, given: list[Typed]) -> None:
        """A text or an enum of the ways that there are."""
        for arg in given:
            kind = content(arg.type)
            ways = (
                [str(arg.expr.value)] if isinstance(arg.expr, Lit) else kind.members if isinstance(kind, Enum) else ()
            )
            strange = [way for way in ways if way not in RENORMS]
            if strange or not (kind is None or kind == Scalar("text") or isinstance(kind, Enum)):
                found = f"`{strange[0]}`" if strange else type_text(kind)
                self._scope.mismatch(f"a renorm is one of {', '.join(RENORMS)}, not {found}", arg.span)

    def _len(self, made: Apply, x: Typed, tree: ast.Call) -> Typed:
        kind = content(x.type)
        rows = isinstance(kind, Tensor) and bool(kind.dims)
        if not (kind is None or rows or kind == Scalar("text") or isinstance(kind, Parts)):
            self._scope.mismatch(f"a value of type {type_text(kind)} has no length", tree.span)
            return poison(tree.span)
        return Typed(made, INT, "host", tree.span)

    def _last(self, made: Apply, args: list[Typed], tree: ast.Call) -> Typed:
        """The last k along dim 0, or all if there are fewer."""
        kind = content(args[0].type)
        if kind is not None and not (isinstance(kind, Tensor) and kind.dims):
            self._scope.mismatch(f"`last` takes a value with dims, not {type_text(kind)}", args[0].span)
            return poison(tree.span, args[0].phase)
        if not args[1].host:
            message = "the count of `last` depends on a device value"
            self._scope.report.report(rules.MC305, message, args[1].span, "known only on the device")
        result = Tensor(kind.dtype, (self._scope.scope.dims.fresh("n"), *kind.dims[1:])) if kind is not None else None
        return Typed(made, result, args[0].phase, tree.span)

    def _table(self, name: str, made: Apply, args: list[Typed], tree: ast.Call) -> Typed:
        """Host tables of f32."""
        for arg in args:
            if not arg.host:
                message = f"`{name}` makes a table on the host, and this is a device value"
                self._scope.report.report(rules.MC305, message, arg.span, "known only on the device")
                return poison(tree.span)
        kind: Type | None = Tensor("f32", (args[2].expr,)) if name == "linspace" else args[0].type
        if name == "shift" and kind is not None and not (isinstance(kind, Tensor) and kind.dims):
            self._scope.mismatch(f"`shift` takes a table, not {type_text(kind)}", args[0].span)
            return poison(tree.span)
        return Typed(made, kind, "host", tree.span)

    def _numbers(self, name: str, made: Apply, args: list[Typed], tree: ast.Call) -> Typed:
        """`min` and `max` of host numbers."""
        for arg in args:
            if arg.type is not None and (isinstance(arg.type, Chunk) or number_of(arg.type) not in ("int", "float")):
                self._scope.mismatch(f"`{name}` takes numbers, not {type_text(arg.type)}", arg.span)
                return poison(tree.span)
            if not arg.host:
                message = f"`{name}` compares on the host, and this is a device value"
                self._scope.report.report(rules.MC305, message, arg.span, "known only on the device")
                return poison(tree.span)
        known = {number_of(arg.type) for arg in args}
        kind = None if None in known else FLOAT if "float" in known else INT
        return Typed(made, kind, "host", tree.span)
