"""Types as written in declarations to types of the IR. Takes syntax trees; reports unknown names (MC002) and misplaced words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.types import DTYPES, SCALARS, Enum, Expr, Lit, Media, Parts, Ref, Scalar, Struct, Tensor, Type
from mstarc.passes.lower.dims import Dims, substituted
from mstarc.passes.lower.expressions import Expressions
from mstarc.passes.lower.known import Known
from mstarc.passes.lower.symbols import Symbols
from mstarc.passes.lower.typed import INT, Typed
from mstarc.syntax import ast

MEDIA = ("image", "audio", "video")


@dataclass
class PlainScope:
    """The scope of declarations: no values and no calls; `free` are the dims (and host parameters) that may be named."""

    dims: Dims
    free: Mapping[str, Type] = field(default_factory=dict)

    def lookup(self, name: ast.Name) -> Typed | None:
        kind = self.free.get(name.text)
        return None if kind is None else Typed(Ref("dim", name.text), kind, "host", name.span)

    def visible_names(self) -> list[str]:
        return list(self.free)

    def call_value(self, tree: ast.Call) -> Typed | None:
        return None


class WrittenTypes:
    """Reads the types of one model."""

    def __init__(self, symbols: Symbols, report: Collector, known: Known) -> None:
        self.symbols = symbols
        self.report = report
        self.scope = PlainScope(Dims(known))
        self.plain = Expressions(symbols, report, self.scope)
        self._open: list[str] = []  # structs that are being read

    def read(self, tree: ast.TypeExpr, tensors: bool = False) -> Type | None:
        """A written type; free names in dims become `Ref("dim", name)`. tensors: `bool` is a tensor's, not the host's."""
        match tree:
            case ast.EnumType(members, optional):
                return Enum(self._distinct(members, "member"), optional)
            case ast.ListType(members, optional):
                for member in members:
                    if member.text not in MEDIA and member.text != "text":
                        self.struct(member)
                return Parts(self._distinct(members, "kind of part"), optional)
            case ast.NamedType():
                return self._named(tree, tensors)

    def _distinct(self, names: Sequence[ast.Name], what: str) -> tuple[str, ...]:
        seen: list[str] = []
        for name in names:
            if name.text in seen:
                message = f"the {what} `{name.text}` stands twice"
                self.report.report(rules.MC001, message, name.span, subject=name.text)
            else:
                seen.append(name.text)
        return tuple(seen)

    def _named(self, tree: ast.NamedType, tensors: bool) -> Type | None:
        name, written = tree.name.text, tree.dims or ()
        if name in DTYPES and (written or tensors or name not in SCALARS):
            return Tensor(name, tuple(self.dim(dim) for dim in written), tree.optional)
        if written:
            self.symbols.unknown(tree.name, "dtype", DTYPES)
            return None
        if name in SCALARS:
            return Scalar(name, tree.optional)
        if name in MEDIA:
            return Media(name, tree.optional)
        found = self.struct(tree.name)
        return None if found is None else replace(found, optional=tree.optional)

    def dim(self, tree: ast.Expr) -> Expr:
        """One dim of a type: a name that is no config, param or let is a free dim."""
        before = self.scope.free
        names = [name for name in names_in(tree) if name.text not in self.symbols.table]
        self.scope.free = {**{name.text: INT for name in names}, **before}
        found = self.plain.number(tree, "a dim")
        self.scope.free = before
        if isinstance(found.expr, Lit) and found.type is not None and not _is_length(found.expr):
            message = f"a dim is a whole number of at least 0, not {found.expr.value}"
            self.report.report(rules.MC007, message, found.span)
        return found.expr

    def struct(self, name: ast.Name) -> Struct | None:
        """A declared type by name; None after an error."""
        symbol = self.symbols.table.get(name.text)
        if symbol is None or symbol.kind != "type":
            known = [n for n, found in self.symbols.table.items() if found.kind == "type"]
            self.symbols.unknown(name, "type", (*DTYPES, *SCALARS, *MEDIA, *known))
            return None
        if name.text in self.symbols.structs:
            return self.symbols.structs[name.text]
        decl = symbol.tree
        assert isinstance(decl, ast.TypeDecl)
        if name.text in self._open:
            message = f"type `{name.text}` holds itself"
            self.report.report(rules.MC101, message, name.span, "in a circle", subject=name.text)
            return None
        self._open.append(name.text)
        fields: list[tuple[str, Type]] = []
        for entry in decl.fields:
            self.no_host(entry)
            if entry.name.text in [known for known, _ in fields]:
                message = f"type `{name.text}` has two fields `{entry.name.text}`"
                self.report.report(rules.MC001, message, entry.name.span, subject=entry.name.text)
            fields.append((entry.name.text, self.read(entry.type) or INT))
        self._open.pop()
        made = Struct(name.text, tuple(fields))
        self.symbols.structs[name.text] = made
        return made

    def no_host(self, port: ast.PortDef) -> None:
        """MC010: `host` stands on parameters of ops only."""
        if port.host:
            message = "`host` marks parameters of ops; elsewhere the phase is known"
            self.report.report(rules.MC010, message, port.span, help="delete `host`")

    # --------------------------------------------------------------------------------------------------------- signatures

    def signature(self, fields: Sequence[ast.PortDef], dims: Dims, tensors: bool) -> list[Type | None]:
        """Types of the parameters of a walk or request in its own dims: written dims are shared, those of structs are not."""
        kinds = [self._port(field, tensors) for field in fields]
        for kind in kinds:
            if isinstance(kind, Tensor):
                substituted(kind, dims.declare)
        found: list[Type | None] = []
        for kind in kinds:
            if isinstance(kind, Struct):
                made: dict[str, Expr] = {}

                def own(name: str, made: dict[str, Expr] = made) -> Expr:
                    return made[name] if name in made else made.setdefault(name, dims.declare_new(name))

                kind = substituted(kind, own)
            found.append(kind)
        self._no_clash(fields, dims)
        return found

    def _port(self, port: ast.PortDef, tensors: bool) -> Type | None:
        self.no_host(port)
        return self.read(port.type, tensors)

    def _no_clash(self, fields: Sequence[ast.PortDef], dims: Dims) -> None:
        for port in fields:
            if port.name.text in dims.declared:
                message = f"`{port.name.text}` is a parameter and a dim of the same signature"
                self.report.report(rules.MC001, message, port.name.span, subject=port.name.text)

    def outputs(self, fields: Sequence[ast.PortDef], dims: Dims) -> list[Type | None]:
        """Types of a walk's results: dims that its parameters name are those, others are lengths that the walk finds out."""
        made: dict[str, Expr] = {}

        def own(name: str) -> Expr:
            if name in dims.declared:
                return Ref("dim", name)
            return made[name] if name in made else made.setdefault(name, dims.fresh(name))

        kinds = [self._port(port, tensors=True) for port in fields]
        return [None if kind is None else substituted(kind, own) for kind in kinds]


def names_in(tree: ast.Expr | ast.Slice) -> Iterator[ast.Name]:
    """Bare names of an expression."""
    match tree:
        case ast.Path(names) if len(names) == 1:
            yield names[0]
        case ast.Unary(_, x):
            yield from names_in(x)
        case ast.Binary(_, a, b):
            yield from (*names_in(a), *names_in(b))
        case ast.IfThen(cond, a, b):
            yield from (*names_in(cond), *names_in(a), *names_in(b))
        case ast.Call(_, args):
            for arg in args:
                yield from names_in(arg.value)
        case ast.Sub(base, indices):
            yield from names_in(base)
            for index in indices:
                yield from names_in(index)
        case _:
            return


def _is_length(lit: Lit) -> bool:
    return isinstance(lit.value, int) and not isinstance(lit.value, bool) and lit.value >= 0
