"""Expressions: names resolved, types and phases known. What a call *does* is left to the unit that the expression stands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.types import (
    Chunk,
    Enum,
    Expr,
    FieldOf,
    IfThen,
    Index,
    ListOf,
    Lit,
    Parts,
    Ref,
    Scalar,
    Slice,
    Struct,
    Tensor,
    Type,
)
from mstarc.passes.lower import operators
from mstarc.passes.lower.builtins import Builtins
from mstarc.passes.lower.dims import Dims
from mstarc.passes.lower.symbols import BUILTINS, Symbols
from mstarc.passes.lower.typed import (
    BOOL,
    FLOAT,
    INT,
    TEXT,
    Typed,
    as_optional,
    content,
    is_truth,
    joint_phase,
    number_of,
    poison,
    type_text,
)
from mstarc.source import Span
from mstarc.syntax import ast

CHUNK_FIELDS: Mapping[str, Scalar] = {"new": INT, "index": INT, "first": BOOL, "tail": BOOL}
_SCOPES: Mapping[str, Literal["config", "param", "let"]] = {"config": "config", "param": "param", "let": "let"}


class Scope(Protocol):
    """Where an expression stands: what its names and calls mean there."""

    dims: Dims

    def lookup(self, name: ast.Name) -> Typed | None:
        """A name of this scope (a value, a dim, `iter`); None if it has none of that name."""
        ...

    def visible_names(self) -> list[str]:
        """Names of this scope that a misspelt one may mean."""
        ...

    def call_value(self, tree: ast.Call) -> Typed | None:
        """The one value of a call that is not of a built-in; None if calls cannot stand here."""
        ...


class Expressions:
    """Lowers expressions of one scope. Every error is reported once and gives a poisoned value."""

    def __init__(self, symbols: Symbols, report: Collector, scope: Scope) -> None:
        self.symbols = symbols
        self.report = report
        self.scope = scope
        self.builtins = Builtins(self)
        self._arms = 0  # of conditional expressions around the one that is lowered
        self._exit = False  # whether it is that of a `stop when`

    # ----------------------------------------------------------------------------------------------------- what is needed

    def value(self, tree: ast.Expr, due: Type | None = None) -> Typed:
        """An expression that has a value on every path: MC301 if it may be absent."""
        return self.there(self.lower(tree, due))

    def exit_flag(self, tree: ast.Expr) -> Typed:
        """What `stop when` tests: a name in it that stands for nothing is MC205."""
        self._exit = True
        found = self.value(tree)
        self._exit = False
        return found

    def there(self, found: Typed) -> Typed:
        """The same value; poisoned, after MC301, if it may be absent."""
        if not found.optional:
            return found
        self.report.report(
            rules.MC301,
            "this value may be absent",
            found.span,
            "bound under `when`, optional, or after the end of a stream",
            help="pass it to a parameter of type `T?`, or test it with `present(x)`",
        )
        return poison(found.span, found.phase)

    def host(self, tree: ast.Expr, what: str, due: Type | None = None) -> Typed:
        """A value that the host knows: MC305 otherwise, unless its own error was reported."""
        found = self.value(tree, due)
        if found.host:
            return found
        if found.type is None:
            return poison(found.span)
        self.report.report(
            rules.MC305,
            f"{what} depends on a device value",
            found.span,
            "known only on the device",
            help="only `stop when` and a stream's `where` may read device values",
        )
        return poison(found.span)

    def number(self, tree: ast.Expr, what: str) -> Typed:
        """A host number: MC007 otherwise."""
        found = self.host(tree, what)
        if found.type is None or number_of(found.type) in ("int", "float"):
            return found
        self.mismatch(f"{what} is {type_text(found.type)}, not a number", found.span)
        return poison(found.span)

    def whole(self, tree: ast.Expr, what: str) -> Typed:
        """A whole host number: MC007 otherwise."""
        found = self.number(tree, what)
        if found.type is not None and number_of(found.type) == "float":
            self.mismatch(f"{what} is {type_text(found.type)}, not a whole number", found.span)
            return poison(found.span)
        return found

    def condition(self, tree: ast.Expr, what: str) -> Typed:
        """A host truth value: MC305 or MC007 otherwise."""
        found = self.host(tree, what)
        if is_truth(found.type):
            return found
        self.mismatch(f"{what} is {type_text(found.type)}, not a bool", found.span)
        return poison(found.span)

    def mismatch(self, message: str, span: Span, label: str = "") -> None:
        self.report.report(rules.MC007, message, span, label)

    # -------------------------------------------------------------------------------------------------------- expressions

    def lower(self, tree: ast.Expr, due: Type | None = None) -> Typed:
        """One expression. `due` is the type that is wanted: it gives members of an enum their meaning."""
        match tree:
            case ast.Number(value, span) | ast.Text(value, span) | ast.Bool(value, span):
                return Typed(Lit(value), _literal_type(value), "host", span)
            case ast.Path():
                return self._path(tree, due)
            case ast.Call():
                return self._call(tree)
            case ast.Unary(op, x, span):
                return operators.unary(self, op, self.value(x), span)
            case ast.Binary():
                return self._binary(tree)
            case ast.IfThen():
                return self._conditional(tree, due)
            case ast.Sub():
                return self._subscript(tree)
            case ast.ListOf(items, span):
                parts = [self.value(item.value) for item in items]
                if device := next((part for part in parts if not part.host), None):
                    self.mismatch("a list is made on the host, and this is a device value", device.span)
                    return poison(span, "device")
                return Typed(ListOf(tuple(p.expr for p in parts)), None, joint_phase(*parts), span)

    def _binary(self, tree: ast.Binary) -> Typed:
        a = self.value(tree.a, self._enum_of(tree.b))
        return operators.binary(self, tree.op, a, self.value(tree.b, a.type), tree.span)

    def _enum_of(self, tree: ast.Expr) -> Type | None:
        """The enum that a param named here has."""
        name = tree.names[0].text if isinstance(tree, ast.Path) and len(tree.names) == 1 else ""
        kind = self.symbols.types.get(name)
        return kind if isinstance(kind, Enum) else None

    def _conditional(self, tree: ast.IfThen, due: Type | None) -> Typed:
        cond = self.condition(tree.cond, "the condition")
        self._arms += 1
        a, b = self.lower(tree.a, due), self.lower(tree.b, due)
        self._arms -= 1
        made = IfThen(cond.expr, a.expr, b.expr)
        kind = operators.joined(self.scope.dims, a.type, b.type)
        if kind is None and a.type is not None and b.type is not None:
            self.report.report(
                rules.MC303,
                f"the arms are {type_text(a.type)} and {type_text(b.type)}{self.scope.dims.why()}",
                tree.span,
                "both arms have one type",
                help="give both arms one type, or guard two statements with `when`",
            )
        if a.optional or b.optional:
            kind = as_optional(kind)
        return Typed(made, kind, joint_phase(a, b), tree.span)

    def effect(self, what: str, span: Span) -> None:
        """MC303 for what takes, draws or writes in an arm of a conditional expression: both arms are computed."""
        if self._arms:
            self.report.report(
                rules.MC303,
                f"{what}, whichever arm is meant: both arms are computed",
                span,
                "in every request",
                help="bind each in a statement of its own, guarded by `when`; the op that takes them has two `T?` parameters",
            )

    # ------------------------------------------------------------------------------------------------------------ names

    def _path(self, tree: ast.Path, due: Type | None) -> Typed:
        head, *fields = tree.names
        found = self._name(head, due if not fields else None)
        for field in fields:
            found = self._field(self.there(found), field)
        return Typed(found.expr, found.type, found.phase, tree.span)

    def _name(self, name: ast.Name, due: Type | None) -> Typed:
        if isinstance(due, Enum) and name.text in due.members:
            return Typed(Ref("member", name.text), due, "host", name.span)
        local = self.scope.lookup(name)
        if local is not None:
            return Typed(local.expr, local.type, local.phase, name.span)
        symbol = self.symbols.table.get(name.text)
        if symbol is not None and symbol.kind in _SCOPES:
            return Typed(Ref(_SCOPES[symbol.kind], name.text), self.symbols.types.get(name.text), "host", name.span)
        if symbol is not None:
            self.report.report(
                rules.MC002,
                f"`{name.text}` is a {symbol.kind}, not a value",
                name.span,
                "a value is due here",
                subject=name.text,
            )
        elif isinstance(due, Enum):
            self.symbols.unknown(name, "member", due.members, f"`{type_text(due)}`")
        else:
            self.symbols.unknown(name, "value", self._known(), exits=self._exit)
        return poison(name.span)

    def _known(self) -> list[str]:
        return [*self.scope.visible_names(), *(n for n, symbol in self.symbols.table.items() if symbol.kind in _SCOPES)]

    def _field(self, base: Typed, field: ast.Name) -> Typed:
        made = FieldOf(base.expr, field.text)
        match base.type:
            case None:
                return Typed(made, None, base.phase, field.span)
            case Struct(name, fields):
                known = dict(fields)
                if field.text in known:
                    return Typed(made, known[field.text], base.phase, field.span)
                self.symbols.unknown(field, "field", known, f"`{name}`")
            case Parts(members):
                return self._common_field(base, members, field)
            case Chunk():
                if field.text in CHUNK_FIELDS:
                    return Typed(made, CHUNK_FIELDS[field.text], "host", field.span)
                self.symbols.unknown(field, "field", CHUNK_FIELDS, "a chunk")
            case other:
                message = f"a value of type {type_text(other)} has no fields"
                self.report.report(rules.MC002, message, field.span, subject=field.text)
        return poison(field.span, base.phase)

    def _common_field(self, base: Typed, members: Sequence[str], field: ast.Name) -> Typed:
        """A field of a part whose kind is not known: every kind must have it."""
        kinds = [dict(self.symbols.structs[m].fields) if m in self.symbols.structs else {} for m in members]
        lacking = [m for m, fields in zip(members, kinds, strict=True) if field.text not in fields]
        if lacking:
            message = f"parts of kind `{lacking[0]}` have no field `{field.text}`"
            self.report.report(
                rules.MC002, message, field.span, help="tell the kinds apart with `case`", subject=field.text
            )
            return poison(field.span, base.phase)
        if len({type_text(fields[field.text]) for fields in kinds}) > 1:
            self.mismatch(f"the field `{field.text}` has another type in each kind of part", field.span)
            return poison(field.span, base.phase)
        return Typed(FieldOf(base.expr, field.text), kinds[0][field.text], base.phase, field.span)

    # -------------------------------------------------------------------------------------------------- calls and indices

    def _call(self, tree: ast.Call) -> Typed:
        name = path_text(tree.callee)
        if name in BUILTINS:
            return self.builtins.lower(name, tree)
        found = self.scope.call_value(tree)
        if found is not None:
            return found
        self.report.report(rules.MC010, f"`{name}(...)` cannot be called here", tree.span, "only values can stand here")
        return poison(tree.span)

    def _subscript(self, tree: ast.Sub) -> Typed:
        base = self.value(tree.base)
        indices: list[Expr | Slice] = []
        dims: list[Expr] = []
        kind = content(base.type)
        known = list(kind.dims) if isinstance(kind, Tensor) else []
        for k, index in enumerate(tree.indices):
            if isinstance(index, ast.Slice):
                low, high = (None if e is None else self.whole(e, "a slice").expr for e in (index.low, index.high))
                indices.append(Slice(low, high))
                dims.append(self._sliced(known[k] if k < len(known) else Lit(0), low, high))
            else:
                indices.append(self.whole(index, "an index").expr)
        made = Index(base.expr, tuple(indices))
        if kind is None:
            return Typed(made, None, base.phase, tree.span)
        if not isinstance(kind, Tensor) or len(indices) > len(kind.dims):
            many = f"{len(indices)} {'index' if len(indices) == 1 else 'indices'}"
            self.mismatch(f"{many} into a value of type {type_text(kind)}", tree.span)
            return poison(tree.span, base.phase)
        return Typed(made, Tensor(kind.dtype, (*dims, *kind.dims[len(indices) :])), base.phase, tree.span)

    def _sliced(self, dim: Expr, low: Expr | None, high: Expr | None) -> Expr:
        """The length of a slice: known if its ends are small numbers or missing."""
        start = low or Lit(0)
        if low is None and high is None:
            return dim
        if isinstance(start, Lit) and isinstance(high, Lit) and isinstance(dim, Lit):
            span = range(int(dim.value))[int(start.value) : int(high.value)]
            return Lit(len(span))
        return self.scope.dims.fresh("n")


def _literal_type(value: bool | int | float | str) -> Type:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, str):
        return TEXT
    return INT if isinstance(value, int) else FLOAT


def path_text(path: ast.Path) -> str:
    """`a.b.c`."""
    return ".".join(name.text for name in path.names)
