"""Nodes and their ops to IR: ports, attributes, how many entries an op takes. Takes syntax trees; reports MC001, MC002, MC013."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Label
from mstarc.ir import declarations
from mstarc.ir.types import Expr, Lit, Ref, Type
from mstarc.passes.lower.dims import free_dims
from mstarc.passes.lower.symbols import nearest
from mstarc.passes.lower.typed import BOOL, INT, number_of, type_text
from mstarc.passes.lower.written import WrittenTypes
from mstarc.syntax import ast

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
_CHOICES: Mapping[str, tuple[str, ...]] = {"attend": ("causal", "full"), "async": ("off",)}
_ON_CACHE = ("attend", "positions", "takes", "frozen", "cross")


class NodeReader:
    """Lowers the nodes of a model."""

    def __init__(self, types: WrittenTypes) -> None:
        self._types = types
        self._symbols = types.symbols
        self._report = types.report

    def node(self, decl: ast.Node) -> declarations.Node:
        """One node; what is wrong with it is reported."""
        cache, precision = "", ""
        if decl.kind == "transformer" and decl.of is not None and self._symbols.find(decl.of, "cache") is not None:
            cache = decl.of.text
        elif decl.kind == "stateless" and decl.of is not None:
            precision = decl.of.text
            if precision not in PRECISIONS:
                self._symbols.setting(decl.of, "`stateless(...)`", PRECISIONS)
        if decl.weights is not None:
            self._symbols.find(decl.weights, "node")
        return declarations.Node(
            decl.name.text,
            decl.kind,
            cache,
            precision,
            decl.weights.text if decl.weights is not None else "",
            tuple(self._op(op, decl) for op in self._once(decl.ops, decl, "op")),
            tuple(self._state(state) for state in self._once(decl.states, decl, "state")),
            span=decl.span,
        )

    def _once(self, parts: Sequence[Any], decl: ast.Node, what: str) -> list[Any]:
        """The parts of a node, each name once."""
        kept: dict[str, Any] = {}
        for part in parts:
            name = part.name
            if name.text in kept:
                self._report.report(
                    rules.MC001,
                    f"node `{decl.name.text}` has two {what}s `{name.text}`",
                    name.span,
                    "declared again",
                    secondary=(Label(kept[name.text].name.span, "first declared here"),),
                    subject=name.text,
                )
            else:
                kept[name.text] = part
        return list(kept.values())

    def _state(self, decl: ast.State) -> declarations.State:
        kind = self._types.read(decl.type, tensors=True) or BOOL
        init = self._types.plain.host(decl.init, "an initial state", kind)
        due, given = number_of(kind), number_of(init.type)
        if due is not None and init.type is not None and given != due and (due, given) != ("float", "int"):
            message = f"state `{decl.name.text}` is {type_text(kind)}, and begins with {type_text(init.type)}"
            self._report.report(
                rules.MC007, message, init.span, f"this is {type_text(init.type)}", subject=decl.name.text
            )
        return declarations.State(decl.name.text, kind, init.expr, span=decl.span)

    # ---------------------------------------------------------------------------------------------------------------- ops

    def ports(self, fields: Sequence[ast.PortDef], host: bool, tensors: bool) -> tuple[declarations.Port, ...]:
        """Parameters or results; names are unique among themselves. host: whether a port may be marked so."""
        seen: set[str] = set()
        ports: list[declarations.Port] = []
        for field in fields:
            name = field.name
            if name.text in seen:
                self._report.report(rules.MC001, f"`{name.text}` is there twice", name.span, subject=name.text)
            seen.add(name.text)
            if not host:
                self._types.no_host(field)
            kind = self._types.read(field.type, tensors)
            ports.append(declarations.Port(name.text, kind if kind is not None else INT, field.host and host))
        return tuple(ports)

    def _op(self, decl: ast.Op, node: ast.Node) -> declarations.OpDecl:
        scope = self._types.scope
        outer = scope.free
        hosts = {field.name.text for field in decl.params if field.host}
        scope.free = {**outer, **dict.fromkeys(hosts, INT)}
        params = self.ports(decl.params, host=True, tensors=True)
        known: dict[str, Type] = {name: INT for port in params for name in free_dims(port.type)}
        known |= {port.name: port.type for port in params if port.host}
        scope.free = {**outer, **known}
        results = self.ports(decl.results, host=False, tensors=True)
        self._device_dims(decl, params, results)
        attrs = self._attributes(decl, node)
        scope.free = outer
        return declarations.OpDecl(decl.name.text, params, results, attrs, span=decl.span)

    def _device_dims(
        self, decl: ast.Op, params: Sequence[declarations.Port], results: Sequence[declarations.Port]
    ) -> None:
        """A dim that has the name of a parameter is that parameter, which must then be a host value."""
        dims = {name for port in (*params, *results) for name in free_dims(port.type)}
        for field, port in zip(decl.params, params, strict=True):
            if port.name in dims and not port.host:
                message = f"`{port.name}` is a device value, and a dim depends on it"
                help_text = f"mark it: `{port.name}: host {type_text(port.type)}`"
                self._report.report(rules.MC305, message, field.name.span, help=help_text, subject=port.name)

    # --------------------------------------------------------------------------------------------------------- attributes

    def _attributes(self, decl: ast.Op, node: ast.Node) -> declarations.OpAttrs:
        title = f"`{node.name.text}.{decl.name.text}`"
        found: dict[str, Any] = {}
        said: dict[str, ast.Attr] = {}
        for attr in decl.attrs:
            if attr.word in said:
                label = Label(said[attr.word].span, "said here first")
                message = f"op {title} says `{attr.word}` twice"
                self._report.report(rules.MC013, message, attr.span, secondary=(label,), subject=attr.word)
                continue
            said[attr.word] = attr
            if node.kind == "stateless" and attr.word in _ON_CACHE:
                message = f"op {title} is stateless, so it has no `{attr.word}`"
                self._report.report(rules.MC013, message, attr.span, help="delete it", subject=attr.word)
                continue
            self._attribute(attr, title, found)
        attrs = declarations.OpAttrs(**found)
        return self._completed(attrs, decl, title) if node.kind == "transformer" else attrs

    def _attribute(self, attr: ast.Attr, title: str, found: dict[str, Any]) -> None:
        word, name = attr.word, attr.value
        if word in _CHOICES and name is not None and name.text not in _CHOICES[word]:
            known = _CHOICES[word]
            message = f"`{word}` of op {title} is {' or '.join(known)}, not `{name.text}`"
            help_text = nearest(name.text, known)
            self._report.report(rules.MC013, message, name.span, help=help_text, subject=name.text)
            return
        plain = self._types.plain
        exprs = {
            clause: (plain.host(tree, "`at`") if clause == "at" else plain.number(tree, f"`{clause}`")).expr
            for clause, tree in attr.exprs
        }
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
                if name is not None and self._symbols.find(name, "sampler") is not None:
                    found["samples"] = text
            case "batch":
                found.update(batch=text, batch_max=exprs.get("max"))
            case "graph":
                found.update(graph=text, graph_low=exprs.get("low"), graph_high=exprs.get("high"))
            case _:
                found["async_off"] = True

    def _completed(self, attrs: declarations.OpAttrs, decl: ast.Op, title: str) -> declarations.OpAttrs:
        """What an op on a cache must say: how it attends, how many entries it takes, how `at` advances."""
        if not attrs.attend and not any(attr.word == "attend" for attr in decl.attrs):
            message = f"op {title} does not say how it attends"
            self._report.report(rules.MC013, message, decl.name.span, help="say `attend causal` or `attend full`")
        if attrs.positions == "at" and attrs.advance is None and not attrs.frozen:
            message = f"op {title} places its entries itself and does not say how the counter advances"
            self._report.report(rules.MC013, message, decl.name.span, help="say `positions at X advance E`")
        if attrs.takes is not None or any(attr.word == "takes" for attr in decl.attrs):
            return attrs
        takes = self._derived_takes(decl)
        if takes is None:
            message = f"op {title} does not say how many entries it `takes`"
            note = "it may be left out only with exactly one token parameter, `i64[T]` or `i64`"
            self._report.report(rules.MC013, message, decl.name.span, notes=(note,), help="say `takes E`")
        return replace(attrs, takes=takes)

    def _derived_takes(self, decl: ast.Op) -> Expr | None:
        """The length of the one token parameter."""
        found: list[Expr] = []
        for field in decl.params:
            kind = field.type
            if field.host or not isinstance(kind, ast.NamedType) or kind.name.text != "i64" or kind.optional:
                continue
            dims = kind.dims or ()
            if not dims:
                found.append(Lit(1))
            elif len(dims) == 1 and isinstance(dims[0], ast.Path) and dims[0].names[0].text not in self._symbols.table:
                found.append(Ref("dim", dims[0].names[0].text))
        return found[0] if len(found) == 1 else None
