"""Declarations to IR: configs, params, lets, types, externs, caches, contexts, samplers, nodes and streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core
from mstarc.ir.types import (
    DTYPES,
    SCALARS,
    Enum,
    Expr,
    Lit,
    Media,
    Parts,
    Range,
    Ref,
    Scalar,
    Struct,
    Tensor,
    Type,
)
from mstarc.passes.lowering.dims import free_dims
from mstarc.passes.lowering.expressions import BOOL, Expressions, Typed, path_text
from mstarc.passes.lowering.symbols import Symbols, nearest
from mstarc.syntax import ast

SETTINGS = ("temperature", "top_k", "top_p", "repetition_penalty", "min_tokens", "suppress")
MEDIA = ("image", "audio", "video")
_POLICIES: Mapping[str, tuple[str, ...]] = {
    "fixed": ("size",),
    "sliding_window": ("size", "stride"),
    "left_context": ("chunk", "left"),
    "phrase": ("cut", "max"),
}


class Declarations:
    """Lowers the declarations of a model in two rounds: names first, then what they say."""

    def __init__(self, model: ast.Model, symbols: Symbols, report: Collector) -> None:
        self.model = model
        self.symbols = symbols
        self.report = report
        self.structs: dict[str, Struct] = {}
        self.param_types: dict[str, Type] = {}
        symbols.param_types = self.param_types  # type: ignore[attr-defined]
        self._dim_names: set[str] = set()
        self.plain = Expressions(symbols, report, self._dim_lookup, None)

    def of(self, kind: type[Any]) -> list[Any]:
        """The declarations of one kind, in order, that own their name."""
        return [
            decl
            for decl in self.model.decls
            if isinstance(decl, kind) and (not hasattr(decl, "name") or self._owns(decl.name, decl))
        ]

    def _owns(self, name: ast.Name, decl: object) -> bool:
        symbol = self.symbols.table.get(name.text)
        return symbol is not None and symbol.tree is decl

    def declare_all(self) -> None:
        """Round one: every name of the model."""
        kinds: Mapping[type[Any], str] = {
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
        for decl in self.model.decls:
            match decl:
                case ast.Config(entries):
                    for entry in entries:
                        self.symbols.declare(entry.name, "config", entry)
                case ast.Let(names):
                    for name in names:
                        self.symbols.declare(name, "let", decl)
                case ast.Context(names):
                    for name in names:
                        self.symbols.declare(name, "context", decl)
                case _:
                    self.symbols.declare(decl.name, kinds[type(decl)], decl)

    # ------------------------------------------------------------------------------------------------------------ types

    def _dim_lookup(self, name: ast.Name) -> Typed | None:
        if name.text in self._dim_names:
            return Typed(Ref("dim", name.text), Scalar("int"), "host", name.span)
        return None

    def type_of(self, tree: ast.TypeExpr, dims: set[str] | None = None) -> Type | None:
        """A written type. A bare name in a dim that is no config, param or let is a free dim (added to `dims`)."""
        match tree:
            case ast.EnumType(members, optional):
                return Enum(tuple(member.text for member in members), optional)
            case ast.ListType(members, optional):
                for member in members:
                    if member.text not in MEDIA and member.text != "text":
                        self.symbols.find(member, "type")
                return Parts(tuple(member.text for member in members), optional)
            case ast.NamedType(name, written, optional):
                return self._named_type(name, written or (), optional, dims if dims is not None else set())

    def _named_type(self, name: ast.Name, written: Sequence[ast.Expr], optional: bool, dims: set[str]) -> Type | None:
        if name.text in DTYPES and (written or name.text != "bool"):
            return Tensor(name.text, tuple(self.dim(tree, dims) for tree in written), optional)
        if written:
            known = (*DTYPES, *SCALARS)
            self.report.report(
                rules.MC002, f"`{name.text}` is no dtype", name.span, help=nearest(name.text, known), subject=name.text
            )
            return None
        if name.text in SCALARS:
            return Scalar(name.text, optional)
        if name.text in MEDIA:
            return Media(name.text, optional)
        symbol = self.symbols.table.get(name.text)
        if symbol is not None and symbol.kind == "type":
            struct = self.structs.get(name.text)
            return replace(struct, optional=optional) if struct is not None else None
        self.symbols.unknown(name, "type", (*DTYPES, *SCALARS, *MEDIA, *self.structs))
        return None

    def dim(self, tree: ast.Expr, dims: set[str]) -> Expr:
        """One dim of a type; free names become dims."""
        for name in _names_in(tree):
            if name.text not in self.symbols.table:
                dims.add(name.text)
        outer, self._dim_names = self._dim_names, self._dim_names | dims
        try:
            return self.plain.host(tree, "a dim").expr
        finally:
            self._dim_names = outer

    def ports(self, fields: Sequence[ast.PortDef]) -> tuple[core.Port, ...]:
        """Parameters or results of an op or extern; names are unique among themselves."""
        seen: set[str] = set()
        ports: list[core.Port] = []
        for field in fields:
            if field.name.text in seen:
                self.report.report(
                    rules.MC001, f"`{field.name.text}` is there twice", field.name.span, subject=field.name.text
                )
            seen.add(field.name.text)
            kind = self.type_of(field.type)
            ports.append(core.Port(field.name.text, kind if kind is not None else Scalar("int"), field.host))
        return tuple(ports)

    # ----------------------------------------------------------------------------------------------------- declarations

    def lower(self) -> core.Program:
        """Round two: everything but walks and requests."""
        for decl in self.of(ast.TypeDecl):
            fields = tuple((f.name.text, self.type_of(f.type) or Scalar("int")) for f in decl.fields)
            self.structs[decl.name.text] = Struct(decl.name.text, fields)
        for decl in self.of(ast.Param):
            self.param_types[decl.name.text] = self.type_of(decl.type) or Scalar("int")
        return core.Program(
            model=self.model.name.text,
            configs=self._configs(),
            params=tuple(self._param(decl) for decl in self.of(ast.Param)),
            lets=self._lets(),
            externs=tuple(self._extern(decl) for decl in self.of(ast.Extern)),
            caches=tuple(cache for decl in self.of(ast.Cache) if (cache := self._cache(decl)) is not None),
            contexts=self._contexts(),
            samplers=tuple(self._sampler(decl) for decl in self.of(ast.Sampler)),
            nodes=tuple(self._node(decl) for decl in self.of(ast.Node)),
            streams=tuple(stream for decl in self.of(ast.Stream) if (stream := self._stream(decl)) is not None),
            span=self.model.span,
        )

    def _configs(self) -> tuple[core.Config, ...]:
        found: list[core.Config] = []
        for decl in self.model.decls:
            if not isinstance(decl, ast.Config):
                continue
            for entry in decl.entries:
                name, value = entry.name.text, entry.value
                if isinstance(value, ast.Path) and len(value.names) > 1:
                    found.append(core.Config(name, path=path_text(value), span=entry.span))
                else:
                    found.append(core.Config(name, expr=self.plain.host(value, "a config").expr, span=entry.span))
        return tuple(found)

    def _param(self, decl: ast.Param) -> core.Param:
        low = self.plain.host(decl.low, "a range").expr if decl.low is not None else None
        high = self.plain.host(decl.high, "a range").expr if decl.high is not None else None
        default = self._default(decl)
        kind = self.param_types[decl.name.text]
        return core.Param(decl.name.text, kind, low, high, default, span=decl.span)

    def _default(self, decl: ast.Param) -> Expr | None:
        if decl.default is None:
            return None
        kind = self.param_types[decl.name.text]
        default = decl.default
        if isinstance(kind, Enum) and isinstance(default, ast.Path) and len(default.names) == 1:
            member = default.names[0]
            if member.text not in kind.members:
                self.symbols.unknown(member, "member", kind.members, f"`{decl.name.text}`")
            return Ref("member", member.text)
        return self.plain.host(default, "a default").expr

    def _lets(self) -> tuple[core.Let, ...]:
        lets: list[core.Let] = []
        for decl in self.model.decls:
            if isinstance(decl, ast.Let):
                value = self.plain.host(decl.value, "a `let`")
                if len(decl.names) > 1:
                    self.report.report(rules.MC004, "a `let` binds one name", decl.span)
                lets.append(core.Let(decl.names[0].text, value.expr, span=decl.span))
        return tuple(lets)

    def _extern(self, decl: ast.Extern) -> core.ExternDecl:
        results: tuple[core.Port, ...]
        if isinstance(decl.results, tuple):
            results = self.ports(decl.results)
        else:
            results = (core.Port("result", self.type_of(decl.results) or Scalar("int")),)
        return core.ExternDecl(decl.name.text, self.ports(decl.params), results, span=decl.span)

    def _cache(self, decl: ast.Cache) -> core.Cache | None:
        if decl.layout.text != "kv":
            self.symbols.unknown(decl.layout, "kind of cache", ("kv",))
            return None
        wanted = ("layers", "heads", "kv_heads", "head_dim")
        found = self.keywords(decl.args, wanted, wanted, f"cache `{decl.name.text}`", decl.span)
        if found is None:
            return None
        layers, heads, kv_heads, head_dim = (found[name] for name in wanted)
        return core.Cache(decl.name.text, layers, heads, kv_heads, head_dim, span=decl.span)

    def keywords(
        self, args: Sequence[ast.Arg], names: Sequence[str], required: Sequence[str], what: str, span: Any
    ) -> dict[str, Expr] | None:
        """Arguments by name (or by position, in the order of `names`); None after an error."""
        found: dict[str, Expr] = {}
        before = len(self.report.findings())
        for k, arg in enumerate(args):
            value = arg.value
            if arg.name is not None:
                name = arg.name.text
                if name not in names:
                    self.report.report(
                        rules.MC013, f"{what} has no `{name}`", arg.name.span, help=nearest(name, names), subject=name
                    )
                    continue
            elif k < len(names):
                name = names[k]
            else:
                self.report.report(rules.MC013, f"{what} takes {', '.join(names)}", arg.span)
                continue
            if name in found:
                self.report.report(rules.MC013, f"{what} is given `{name}` twice", arg.span, subject=name)
            if name == "cut" and isinstance(value, ast.Path):
                self.symbols.find(value.names[0], "extern")
                found[name] = Lit(path_text(value))
            else:
                found[name] = self.plain.host(value, f"`{name}`").expr
        missing = [name for name in required if name not in found]
        if missing and len(self.report.findings()) == before:
            self.report.report(rules.MC013, f"{what} needs {', '.join(f'`{name}`' for name in missing)}", span)
        return None if missing else found

    def _contexts(self) -> tuple[core.Context, ...]:
        found: list[core.Context] = []
        for decl in self.model.decls:
            if not isinstance(decl, ast.Context):
                continue
            self.symbols.find(decl.cache, "cache")
            most = self.plain.host(decl.max, "a context's max").expr if decl.max is not None else None
            when = self.plain.host(decl.when, "a context's `when`").expr if decl.when is not None else None
            found.extend(
                core.Context(name.text, decl.cache.text, most, when, span=decl.span)
                for name in decl.names
                if self._owns(name, decl)
            )
        return tuple(found)

    def _sampler(self, decl: ast.Sampler) -> core.Sampler:
        settings: list[tuple[str, Expr]] = []
        over = ""
        for setting in decl.settings:
            name = setting.name.text
            if name not in SETTINGS:
                self.report.report(
                    rules.MC013,
                    f"samplers have no `{name}`",
                    setting.name.span,
                    help=nearest(name, SETTINGS),
                    subject=name,
                )
                continue
            if setting.over is not None and self.symbols.find(setting.over, "context") is not None:
                over = setting.over.text
            settings.append((name, self._setting(setting)))
        return core.Sampler(decl.name.text, tuple(settings), over, span=decl.span)

    def _setting(self, setting: ast.Setting) -> Expr:
        if setting.value is None:
            return self.plain.host(ast.Path((setting.name,), setting.name.span), "a setting").expr
        value = self.plain.host(setting.value, "a setting").expr
        if setting.high is None:
            return value
        exclude = self.plain.host(setting.exclude, "a setting").expr if setting.exclude is not None else None
        return Range(value, self.plain.host(setting.high, "a setting").expr, exclude)

    # ------------------------------------------------------------------------------------------------- nodes and streams

    def _node(self, decl: ast.Node) -> core.Node:
        kind = decl.kind
        cache = ""
        if kind == "transformer" and decl.of is not None and self.symbols.find(decl.of, "cache") is not None:
            cache = decl.of.text
        if decl.weights is not None:
            self.symbols.find(decl.weights, "node")
        seen: set[str] = set()
        ops: list[core.OpDecl] = []
        for op in decl.ops:
            if op.name.text in seen:
                self.report.report(
                    rules.MC001,
                    f"node `{decl.name.text}` has two ops `{op.name.text}`",
                    op.name.span,
                    subject=op.name.text,
                )
                continue
            seen.add(op.name.text)
            ops.append(self._op(op, kind, decl.name.text))
        return core.Node(
            decl.name.text,
            kind,
            cache,
            decl.of.text if kind == "stateless" and decl.of is not None else "",
            decl.weights.text if decl.weights is not None else "",
            tuple(ops),
            tuple(self._state(state) for state in decl.states),
            span=decl.span,
        )

    def _state(self, decl: ast.State) -> core.State:
        kind = self.type_of(decl.type) or BOOL
        return core.State(decl.name.text, kind, self.plain.host(decl.init, "an initial state").expr, span=decl.span)

    def _op(self, decl: ast.Op, kind: str, node: str) -> core.OpDecl:
        params, results = self.ports(decl.params), self.ports(decl.results)
        names = {port.name for port in params} | {dim for port in params for dim in free_dims(port.type)}
        outer, self._dim_names = self._dim_names, self._dim_names | names
        try:
            attrs = self._attributes(decl, f"{node}.{decl.name.text}")
        finally:
            self._dim_names = outer
        if kind == "transformer" and attrs.takes is None:
            takes = _derived_takes(params)
            if takes is None:
                self.report.report(
                    rules.MC013,
                    f"op `{node}.{decl.name.text}` does not say how many entries it `takes`",
                    decl.name.span,
                    help="it may be left out only with exactly one token parameter, `i64[T]` or `i64`",
                )
            else:
                attrs = replace(attrs, takes=takes)
        return core.OpDecl(decl.name.text, params, results, attrs, span=decl.span)

    def _attributes(self, decl: ast.Op, op: str) -> core.OpAttrs:
        found: dict[str, Any] = {}
        for attribute in decl.attrs:
            self._attribute(attribute, op, found)
        return core.OpAttrs(**found)

    def _attribute(self, attribute: ast.Attr, op: str, found: dict[str, Any]) -> None:
        word, name = attribute.word, attribute.value
        choices: Mapping[str, tuple[str, ...]] = {
            "attend": ("causal", "full"),
            "async": ("off",),
        }
        if word in choices and name is not None and name.text not in choices[word]:
            self.report.report(
                rules.MC013,
                f"`{word}` of op `{op}` is {' or '.join(choices[word])}, not `{name.text}`",
                name.span,
                help=nearest(name.text, choices[word]),
                subject=name.text,
            )
            return
        exprs = {clause: self.plain.host(tree, f"`{clause}`").expr for clause, tree in attribute.exprs}
        text = name.text if name is not None else ""
        match word:
            case "attend":
                found["attend"] = text
            case "positions":
                found.update(positions=text, at=exprs.get("at"), advance=exprs.get("advance"))
            case "takes":
                found["takes"] = exprs["takes"]
            case "frozen" | "random" | "cross":
                found[word] = True
            case "samples":
                if name is not None and self.symbols.find(name, "sampler") is not None:
                    found["samples"] = text
            case "batch":
                found.update(batch=text, batch_max=exprs.get("max"))
            case "graph":
                found.update(graph=text, graph_low=exprs.get("low"), graph_high=exprs.get("high"))
            case _:
                found["async_off"] = True

    def _stream(self, decl: ast.Stream) -> core.Stream | None:
        item = self.type_of(decl.type)
        if decl.policy.text not in _POLICIES:
            self.symbols.unknown(decl.policy, "stream policy", _POLICIES)
            return None
        names = _POLICIES[decl.policy.text]
        args = self.keywords(decl.args, names, names, f"policy `{decl.policy.text}`", decl.policy.span)
        at_end = self._at_end(decl)
        where = None
        if decl.where is not None:
            outer, self._dim_names = self._dim_names, self._dim_names | {"item"}
            where = self.plain.lower(decl.where).expr
            self._dim_names = outer
        capacity = self.plain.host(decl.capacity, "a capacity").expr
        for word, allowed in ((decl.after_end, "empty"), (decl.overlap, "ok")):
            if word is not None and word.text != allowed:
                self.report.report(
                    rules.MC013, f"`{word.text}` cannot stand here", word.span, help=f"only `{allowed}` can"
                )
        if args is None or item is None:
            return None
        return core.Stream(
            decl.name.text,
            item,
            decl.policy.text,  # type: ignore[arg-type]
            tuple((name, args[name]) for name in names if name in args),
            capacity,
            where,
            at_end,
            decl.after_end is not None,
            decl.overlap is not None,
            span=decl.span,
        )

    def _at_end(self, decl: ast.Stream) -> str:
        if decl.at_end is None:
            return ""
        text = decl.at_end.text if decl.pad is None else f"{decl.at_end.text}:{decl.pad.text}"
        known = ("drop", "partial", "pad:zero", "pad:repeat")
        if text in known:
            return text
        self.report.report(
            rules.MC013,
            f"a stream ends with drop, partial, pad(zero) or pad(repeat), not `{text}`",
            decl.at_end.span,
            help=nearest(text, known),
        )
        return "drop"


def _derived_takes(params: Sequence[core.Port]) -> Expr | None:
    """Entries of an op by its first token parameter: the length of an `i64[T]`, or 1 for an `i64`."""
    for port in params:
        if isinstance(port.type, Tensor) and port.type.dtype == "i64" and len(port.type.dims) <= 1 and not port.host:
            return port.type.dims[0] if port.type.dims else Lit(1)
    return None


def _names_in(tree: ast.Expr) -> list[ast.Name]:
    """Bare names of a dim expression."""
    match tree:
        case ast.Path(names) if len(names) == 1:
            return [names[0]]
        case ast.Unary(_, x):
            return _names_in(x)
        case ast.Binary(_, a, b):
            return _names_in(a) + _names_in(b)
        case ast.IfThen(cond, a, b):
            return _names_in(cond) + _names_in(a) + _names_in(b)
        case ast.Call(_, args):
            return [name for arg in args for name in _names_in(arg.value)]
        case _:
            return []
