"""Expressions: names resolved, types and phases known. What an expression *does* (op calls) is left to the statement lowering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
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
    Phase,
    Ref,
    Scalar,
    Slice,
    Struct,
    Tensor,
    Type,
    Unary,
)
from mstarc.passes.lowering.dims import may_equal, type_text
from mstarc.passes.lowering.symbols import BUILTINS, Symbols
from mstarc.source import Span
from mstarc.syntax import ast


@dataclass(frozen=True, slots=True)
class Typed:
    """A lowered expression. type None = not known (a config value, or poisoned by an error): it fits everywhere."""

    expr: Expr
    type: Type | None
    phase: Phase
    span: Span

    @property
    def host(self) -> bool:
        return self.phase == "host"

    @property
    def optional(self) -> bool:
        return getattr(self.type, "optional", False)


POISON = Lit(0)
INT, FLOAT, BOOL = Scalar("int"), Scalar("float"), Scalar("bool")
CHUNK_FIELDS: Mapping[str, Scalar] = {"new": INT, "index": INT, "first": BOOL, "tail": BOOL}
BUILTIN_ARITY: Mapping[str, tuple[int, int]] = {
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

#: resolves a bare name of the surrounding scope (a value, a dim, `iter`); None if it has none of that name
Lookup = Callable[[ast.Name], Typed | None]
#: lowers a call that is not of a built-in; None if calls may not stand here
Calls = Callable[[ast.Call], Typed]


class Expressions:
    """Lowers expressions of one scope. `lookup` and `calls` come from it."""

    def __init__(self, symbols: Symbols, report: Collector, lookup: Lookup, calls: Calls | None) -> None:
        self.symbols = symbols
        self.report = report
        self.lookup = lookup
        self.calls = calls

    def lower(self, tree: ast.Expr) -> Typed:
        """One expression; errors are reported once and give a poisoned value."""
        match tree:
            case ast.Number(value, span) | ast.Text(value, span) | ast.Bool(value, span):
                return Typed(Lit(value), _literal_type(value), "host", span)
            case ast.Path():
                return self._path(tree)
            case ast.Call():
                return self._call(tree)
            case ast.Unary(op, x, span):
                return self._unary(op, self.lower(x), span)
            case ast.Binary(op, a, b, span):
                return self._binary(op, self.lower(a), self.lower(b), span)
            case ast.IfThen():
                return self._conditional(tree)
            case ast.Sub():
                return self._subscript(tree)
            case ast.ListOf(items, span):
                parts = [self.lower(item.value) for item in items]
                return Typed(ListOf(tuple(p.expr for p in parts)), None, _phase(*parts), span)

    def host(self, tree: ast.Expr, where: str) -> Typed:
        """An expression that must be known on the host."""
        found = self.lower(tree)
        if not found.host:
            self.report.report(
                rules.MC305,
                f"{where} depends on a device value",
                found.span,
                "known only on the device",
                help="only `stop when` and a stream's `where` may read device values",
            )
            return Typed(POISON, None, "host", found.span)
        return found

    def poison(self, span: Span, phase: Phase = "host") -> Typed:
        return Typed(POISON, None, phase, span)

    # ------------------------------------------------------------------------------------------------------------ names

    def _path(self, tree: ast.Path) -> Typed:
        head, *fields = tree.names
        found = self._name(head, tree.span)
        for field in fields:
            found = self._field(found, field, tree.span)
        return found

    def _name(self, name: ast.Name, span: Span) -> Typed:
        local = self.lookup(name)
        if local is not None:
            return Typed(local.expr, local.type, local.phase, span)
        symbol = self.symbols.table.get(name.text)
        if symbol is None:
            if self._is_member(name.text):
                return Typed(Ref("member", name.text), None, "host", span)
            if name.text in BUILTINS:
                self.symbols.unknown(name, "value", ())
                return self.poison(span)
            self.symbols.unknown(name, "value", self._known())
            return self.poison(span)
        match symbol.kind:
            case "config":
                return Typed(Ref("config", name.text), None, "host", span)
            case "param":
                return Typed(Ref("param", name.text), self.symbol_type(name.text), "host", span)
            case "let":
                return Typed(Ref("let", name.text), None, "host", span)
            case _:
                self.report.report(
                    rules.MC002,
                    f"`{name.text}` is a {symbol.kind}, not a value",
                    name.span,
                    "a value is due here",
                    subject=name.text,
                )
                return self.poison(span)

    def symbol_type(self, name: str) -> Type | None:
        """Type of a param; set by the declarations."""
        return self.symbols.param_types.get(name)  # type: ignore[attr-defined,no-any-return]

    def _is_member(self, text: str) -> bool:
        types = getattr(self.symbols, "param_types", {})
        return any(isinstance(kind, Enum) and text in kind.members for kind in types.values())

    def _known(self) -> list[str]:
        return [name for name, symbol in self.symbols.table.items() if symbol.kind in ("config", "param", "let")]

    def _field(self, base: Typed, field: ast.Name, span: Span) -> Typed:
        match base.type:
            case None:
                return Typed(FieldOf(base.expr, field.text), None, base.phase, span)
            case Struct(name, fields):
                known = dict(fields)
                if field.text in known:
                    return Typed(FieldOf(base.expr, field.text), known[field.text], base.phase, span)
                self.symbols.unknown(field, "field", known, f"`{name}`")
            case Chunk() if field.text in CHUNK_FIELDS:
                return Typed(FieldOf(base.expr, field.text), CHUNK_FIELDS[field.text], "host", span)
            case Chunk():
                self.symbols.unknown(field, "field", CHUNK_FIELDS, "a chunk")
            case other:
                self.report.report(
                    rules.MC002, f"a value of type {type_text(other)} has no fields", field.span, subject=field.text
                )
        return self.poison(span, base.phase)

    # ------------------------------------------------------------------------------------------------------------ calls

    def _call(self, tree: ast.Call) -> Typed:
        name = path_text(tree.callee)
        if name in BUILTIN_ARITY and self.lookup(tree.callee.names[0]) is None:
            return self._builtin(name, tree)
        if self.calls is None:
            self.report.report(
                rules.MC010, f"`{name}(...)` cannot be called here", tree.span, "only values may stand here"
            )
            return self.poison(tree.span)
        return self.calls(tree)

    def _builtin(self, name: str, tree: ast.Call) -> Typed:
        low, high = BUILTIN_ARITY[name]
        if not low <= len(tree.args) <= high or any(arg.name is not None for arg in tree.args):
            wanted = str(low) if low == high else f"{low} to {high}"
            self.report.report(rules.MC004, f"`{name}` takes {wanted} arguments, not {len(tree.args)}", tree.span)
            return self.poison(tree.span)
        if name in ("given", "wants"):
            return self._modality(name, tree)
        args = [self.lower(arg.value) for arg in tree.args]
        made = Apply(name, tuple(arg.expr for arg in args))
        if name == "present":
            return Typed(made, BOOL, "host", tree.span)
        if name == "len":
            return Typed(made, INT, "host", tree.span)
        if name == "last":
            return Typed(made, _last(args[0].type, args[1]), args[0].phase, tree.span)
        if name == "guide":
            return Typed(made, _plain(args[0].type), args[0].phase, tree.span)
        if name in ("linspace", "shift"):
            return Typed(made, None, _phase(*args), tree.span)
        return Typed(made, args[0].type, _phase(*args), tree.span)

    def _modality(self, name: str, tree: ast.Call) -> Typed:
        arg = tree.args[0].value
        if not isinstance(arg, ast.Path) or len(arg.names) != 1:
            self.report.report(rules.MC007, f"`{name}` takes the name of a modality", tree.span)
            return self.poison(tree.span)
        return Typed(Apply(name, (Ref("member", arg.names[0].text),)), BOOL, "host", tree.span)

    # -------------------------------------------------------------------------------------------------------- operators

    def _unary(self, op: str, x: Typed, span: Span) -> Typed:
        made: Literal["-", "not"] = "-" if op == "-" else "not"
        return Typed(Unary(made, x.expr), x.type, x.phase, span)

    def _binary(self, op: str, a: Typed, b: Typed, span: Span) -> Typed:
        phase = _phase(a, b)
        for side in (a, b):
            if side.optional:
                self.report.report(
                    rules.MC301,
                    "a value that may be absent is used in arithmetic",
                    side.span,
                    "bound under `when`",
                    help="pass it to an optional parameter, or test it with `present(x)`",
                )
                return self.poison(span, phase)
        made = Binary(op, a.expr, b.expr)
        if op in ("and", "or"):
            return Typed(made, BOOL if phase == "host" else Tensor("bool", _dims(a, b)), phase, span)
        if op in ("==", "!=", "<", "<=", ">", ">="):
            self._same_shape(a, b, span)
            return Typed(made, BOOL if phase == "host" else Tensor("bool", _dims(a, b)), phase, span)
        self._same_shape(a, b, span)
        return Typed(made, _arithmetic(op, a.type, b.type), phase, span)

    def _same_shape(self, a: Typed, b: Typed, span: Span) -> None:
        """Elementwise operands have equal dims, or one of them is a scalar."""
        if not isinstance(a.type, Tensor) or not isinstance(b.type, Tensor) or not a.type.dims or not b.type.dims:
            return
        fits = len(a.type.dims) == len(b.type.dims) and all(map(may_equal, a.type.dims, b.type.dims))
        if not fits:
            self.report.report(
                rules.MC007, f"operands have the shapes {type_text(a.type)} and {type_text(b.type)}", span
            )

    def _conditional(self, tree: ast.IfThen) -> Typed:
        cond = self.host(tree.cond, "the condition")
        a, b = self.lower(tree.a), self.lower(tree.b)
        return Typed(IfThen(cond.expr, a.expr, b.expr), a.type or b.type, _phase(a, b), tree.span)

    def _subscript(self, tree: ast.Sub) -> Typed:
        base = self.lower(tree.base)
        indices: list[Expr | Slice] = []
        kept = 0
        phase = base.phase
        for index in tree.indices:
            if isinstance(index, ast.Slice):
                low = self.host(index.low, "a slice").expr if index.low is not None else None
                high = self.host(index.high, "a slice").expr if index.high is not None else None
                indices.append(Slice(low, high))
                kept += 1
            else:
                found = self.host(index, "an index")
                indices.append(found.expr)
        made = Index(base.expr, tuple(indices))
        if not isinstance(base.type, Tensor) or kept:
            return Typed(made, None, phase, tree.span)
        if len(indices) > len(base.type.dims):
            self.report.report(
                rules.MC007, f"{len(indices)} indices into a value of type {type_text(base.type)}", tree.span
            )
            return self.poison(tree.span, phase)
        return Typed(made, Tensor(base.type.dtype, base.type.dims[len(indices) :]), phase, tree.span)


# --------------------------------------------------------------------------------------------------------- small helpers


def _literal_type(value: bool | int | float | str) -> Type:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, str):
        return Scalar("text")
    return INT if isinstance(value, int) else FLOAT


def _phase(*parts: Typed) -> Phase:
    return "device" if any(part.phase == "device" for part in parts) else "host"


def _dims(a: Typed, b: Typed) -> tuple[Expr, ...]:
    for side in (a, b):
        if isinstance(side.type, Tensor) and side.type.dims:
            return side.type.dims
    return ()


def _plain(kind: Type | None) -> Type | None:
    return Tensor(kind.dtype, kind.dims) if isinstance(kind, Tensor) else kind


def _last(kind: Type | None, count: Typed) -> Type | None:
    """`last(x, k)` keeps at most k along dim 0."""
    if isinstance(kind, Tensor) and kind.dims:
        return Tensor(kind.dtype, (count.expr, *kind.dims[1:]))
    return None


def _arithmetic(op: str, a: Type | None, b: Type | None) -> Type | None:
    if isinstance(a, Tensor) and (a.dims or not isinstance(b, Tensor)):
        return a
    if isinstance(b, Tensor):
        return b
    if a is None or b is None:
        return None
    return FLOAT if op == "/" or FLOAT in (a, b) else a


def path_text(path: ast.Path) -> str:
    """`a.b.c`."""
    return ".".join(name.text for name in path.names)
