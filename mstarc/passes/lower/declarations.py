"""Declarations to IR: names first, then configs, params and lets in order of need, then everything that refers to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core, declarations
from mstarc.ir.types import Enum, Expr, Ref, Scalar, Type
from mstarc.passes.lower.dims import Dims
from mstarc.passes.lower.expressions import path_text
from mstarc.passes.lower.known import Given, Known
from mstarc.passes.lower.ops import NodeReader
from mstarc.passes.lower.order import read_names
from mstarc.passes.lower.resources import Resources
from mstarc.passes.lower.symbols import Symbols
from mstarc.passes.lower.typed import INT, Typed, number_of, type_text
from mstarc.passes.lower.written import WrittenTypes
from mstarc.syntax import ast

D = TypeVar("D")
_KINDS: Mapping[type[Any], str] = {
    ast.Param: "param",
    ast.TypeDecl: "type",
    ast.Extern: "extern",
    ast.Cache: "cache",
    ast.Sampler: "sampler",
    ast.Node: "node",
    ast.Stream: "stream",
    ast.Walk: "walk",
    ast.Request: "request",
}
Valued = ast.Entry | ast.Param | ast.Let


class Declarations:
    """Lowers the declarations of a model."""

    def __init__(
        self, model: ast.Model, symbols: Symbols, report: Collector, given: Mapping[str, Given] | None = None
    ) -> None:
        self.model = model
        self.symbols = symbols
        self.report = report
        self.known = Known(self._meaning, given or {})
        self.types = WrittenTypes(symbols, report, self.known)
        self._valued: dict[str, declarations.Config | declarations.Param | declarations.Let] = {}

    def of(self, kind: type[D]) -> list[D]:
        """The declarations of one kind, in order, that own their name."""
        return [decl for decl in self.model.decls if isinstance(decl, kind) and self._owned(decl)]

    def _owned(self, decl: ast.Decl) -> bool:
        name = getattr(decl, "name", None)
        return not isinstance(name, ast.Name) or self.symbols.owns(name, decl)

    def _meaning(self, ref: Ref) -> Expr | None:
        """What a config or let stands for, if the model says."""
        return self.symbols.values.get((ref.scope, ref.name))

    def signature(self, fields: Sequence[ast.PortDef], dims: Dims) -> list[Type | None]:
        """Types of a walk's parameters in its own dims."""
        return self.types.signature(fields, dims, tensors=True)

    def inputs(self, fields: Sequence[ast.PortDef], dims: Dims) -> list[Type | None]:
        """Types of a request's inputs in its own dims."""
        return self.types.signature(fields, dims, tensors=False)

    def outputs(self, fields: Sequence[ast.PortDef], dims: Dims) -> list[Type | None]:
        """Types of a walk's results in its own dims."""
        return self.types.outputs(fields, dims)

    def quiet(self) -> Declarations:
        """The same declarations, for reading a type again without reporting what is wrong with it again."""
        report = Collector()
        return Declarations(self.model, replace(self.symbols, report=report), report)

    # --------------------------------------------------------------------------------------------------------------- names

    def declare_all(self) -> None:
        """Every name of the model."""
        for decl in self.model.decls:
            match decl:
                case ast.Config(entries):
                    for entry in entries:
                        self.symbols.declare(entry.name, "config", entry)
                case ast.Let(names) | ast.Context(names):
                    for name in names:
                        self.symbols.declare(name, "let" if isinstance(decl, ast.Let) else "context", decl)
                case _:
                    self.symbols.declare(decl.name, _KINDS[type(decl)], decl)

    def lower(self) -> core.Program:
        """The program without its walks and requests."""
        for decl in self.of(ast.TypeDecl):
            self.types.struct(decl.name)
        self._values()
        nodes = NodeReader(self.types)
        externs = tuple(self._extern(decl, nodes) for decl in self.of(ast.Extern))
        resources = Resources(self.types, {extern.name: extern for extern in externs})
        found = self._valued.values()
        self._shared_weights()
        return core.Program(
            model=self.model.name.text,
            configs=tuple(value for value in found if isinstance(value, declarations.Config)),
            params=tuple(value for value in found if isinstance(value, declarations.Param)),
            lets=tuple(value for value in found if isinstance(value, declarations.Let)),
            externs=externs,
            caches=tuple(cache for decl in self.of(ast.Cache) if (cache := resources.cache(decl)) is not None),
            contexts=tuple(c for decl in self.of(ast.Context) for c in resources.contexts(decl)),
            samplers=tuple(resources.sampler(decl) for decl in self.of(ast.Sampler)),
            nodes=tuple(nodes.node(decl) for decl in self.of(ast.Node)),
            streams=tuple(s for decl in self.of(ast.Stream) if (s := resources.stream(decl)) is not None),
            span=self.model.span,
        )

    def _extern(self, decl: ast.Extern, nodes: NodeReader) -> declarations.ExternDecl:
        params = nodes.ports(decl.params, host=False, tensors=False)
        if isinstance(decl.results, tuple):
            results = nodes.ports(decl.results, host=False, tensors=False)
        else:
            results = (declarations.Port("result", self.types.read(decl.results) or INT),)
        return declarations.ExternDecl(decl.name.text, params, results, span=decl.span)

    def _shared_weights(self) -> None:
        """`weights of` goes to a node that has its own."""
        shared = {decl.name.text: decl.weights for decl in self.of(ast.Node) if decl.weights is not None}
        for name, source in shared.items():
            if source.text == name or source.text in shared:
                message = f"`{source.text}` has no weights of its own to share"
                help_text = None if source.text == name else f"name the node that `{source.text}` takes them from"
                self.report.report(rules.MC101, message, source.span, help=help_text, subject=source.text)

    # -------------------------------------------------------------------------------------- configs, params and lets by need

    def _values(self) -> None:
        """Each after those that it reads; a circle is MC101."""
        decls: dict[str, Valued] = {}
        for decl in self.model.decls:
            match decl:
                case ast.Config(entries):
                    decls |= {e.name.text: e for e in entries if self.symbols.owns(e.name, e)}
                case ast.Param(name):
                    if self.symbols.owns(name, decl):
                        decls[name.text] = decl
                        self.symbols.types[name.text] = self._param_type(decl)
                case ast.Let(names) if self.symbols.owns(names[0], decl):
                    decls[names[0].text] = decl
        needs = {name: _needs(decl) & decls.keys() for name, decl in decls.items()}
        ready = _in_order(needs)
        for key in [*ready, *self._circles(needs, set(decls) - set(ready), decls)]:
            self._value(key, decls[key])
        self._valued = {key: self._valued[key] for key in decls}

    def _circles(self, needs: Mapping[str, set[str]], left: set[str], decls: Mapping[str, Valued]) -> list[str]:
        """Report each circle once; gives the names that are left, in order."""
        told: set[str] = set()
        for name in needs:
            path = _circle(name, needs) if name in left and name not in told else []
            if path:
                told.update(path)
                way = " -> ".join((*path, path[0]))
                at = _named(decls[name]).span
                message = f"the value of `{name}` depends on itself: {way}"
                self.report.report(rules.MC101, message, at, "in a circle", subject=name)
        return [name for name in needs if name in left]

    def _value(self, name: str, decl: Valued) -> None:
        match decl:
            case ast.Entry():
                self._valued[name] = self._config(decl)
            case ast.Param():
                self._valued[name] = self._param(decl)
            case ast.Let():
                value = self.types.plain.host(decl.value, "a `let`")
                if len(decl.names) > 1:
                    message, help_text = "a `let` gives one name a value", "write one `let` a name"
                    self.report.report(rules.MC004, message, decl.names[1].span, help=help_text)
                self._remember("let", name, value)
                self._valued[name] = declarations.Let(name, value.expr, span=decl.span)

    def _remember(self, scope: str, name: str, value: Typed) -> None:
        self.symbols.types[name] = value.type
        self.symbols.values[scope, name] = value.expr

    def _config(self, decl: ast.Entry) -> declarations.Config:
        name, value = decl.name.text, decl.value
        if isinstance(value, ast.Path) and len(value.names) > 1:
            self.known.paths[name] = path_text(value)
            return declarations.Config(name, path=path_text(value), span=decl.span)
        found = self.types.plain.host(value, f"config `{name}`")
        self._remember("config", name, found)
        return declarations.Config(name, expr=found.expr, span=decl.span)

    # -------------------------------------------------------------------------------------------------------------- params

    def _param_type(self, decl: ast.Param) -> Type:
        kind = self.types.read(decl.type)
        if kind is not None and not isinstance(kind, Scalar | Enum):
            message = f"param `{decl.name.text}` is {type_text(kind)}; params are int, float, bool, text or enum"
            help_text = "what a request brings besides is an input of the request"
            self.report.report(rules.MC007, message, decl.type.span, help=help_text)
            kind = None
        return kind if kind is not None else INT

    def _param(self, decl: ast.Param) -> declarations.Param:
        name, kind = decl.name.text, self.symbols.types[decl.name.text]
        assert kind is not None
        plain = self.types.plain
        ends: list[Expr | None] = []
        for end in (decl.low, decl.high):
            ends.append(None if end is None else plain.number(end, f"the range of `{name}`").expr)
        if decl.low is not None and number_of(kind) not in ("int", "float"):
            span = decl.low.span.to(decl.high.span) if decl.high is not None else decl.low.span
            self.report.report(rules.MC007, f"`{name}` is {type_text(kind)}, which has no range", span)
        default = None if decl.default is None else self._default(decl.default, name, kind)
        return declarations.Param(name, kind, ends[0], ends[1], default, span=decl.span)

    def _default(self, tree: ast.Expr, name: str, kind: Type) -> Expr:
        found = self.types.plain.host(tree, f"the default of `{name}`", kind)
        same = type(found.type) is type(kind) and (not isinstance(kind, Scalar) or found.type == Scalar(kind.name))
        if isinstance(kind, Enum) and isinstance(found.type, Enum):
            same = set(found.type.members) <= set(kind.members)
        whole = kind == Scalar("float") and found.type == INT
        if found.type is not None and not same and not whole:
            message = f"the default of `{name}` is {type_text(found.type)}, the param is {type_text(kind)}"
            self.report.report(rules.MC007, message, found.span, subject=name)
        return found.expr


def _named(decl: Valued) -> ast.Name:
    return decl.names[0] if isinstance(decl, ast.Let) else decl.name


def _needs(decl: Valued) -> set[str]:
    """Names that the value of a declaration reads. A config path names a checkpoint, no config."""
    if isinstance(decl, ast.Param):
        return {name for tree in (decl.low, decl.high, decl.default) for name in read_names(tree)}
    if isinstance(decl, ast.Entry) and isinstance(decl.value, ast.Path) and len(decl.value.names) > 1:
        return set()
    return set(read_names(decl.value))


def _in_order(needs: Mapping[str, set[str]]) -> list[str]:
    """Each name after those that it needs; names in or behind a circle are left out."""
    done: dict[str, None] = {}
    while ready := [name for name, read in needs.items() if name not in done and read <= done.keys()]:
        done |= dict.fromkeys(ready)
    return list(done)


def _circle(start: str, needs: Mapping[str, set[str]]) -> list[str]:
    """A way from a name to itself, or nothing."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        for name in sorted(needs[way[-1]]):
            if name == start:
                return way
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []
