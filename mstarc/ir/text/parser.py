"""Declarations and operations of the IR from text: recursive descent, the inverse of `printer`.

Declarations may come in any order; each kind keeps its own order. Unknown words are errors, never skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mstarc.ir.core import Output, Program, Request, Walk
from mstarc.ir.declarations import (
    Cache,
    Config,
    Context,
    ExternDecl,
    Let,
    Node,
    OpAttrs,
    OpDecl,
    Param,
    Port,
    Sampler,
    State,
    Stream,
)
from mstarc.ir.errors import IrTextError
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.text.printer import HEADER
from mstarc.ir.text.read_expressions import read_expr, read_list, read_named, read_type
from mstarc.ir.text.read_operations import read_block, read_value
from mstarc.ir.types import Expr


def parse_program(text: str) -> Program:
    """The program that `text` is. Raises `IrTextError` with the line."""
    first, _, rest = text.partition("\n")
    if first.rstrip() != HEADER:
        raise IrTextError(f"the first line is not `{HEADER}`", 1)
    c = Cursor(rest, first_line=2)
    c.expect("model")
    model = c.take_name("the model's name")
    found: dict[str, list[Any]] = {}
    while c.token.kind != "end":
        field, read = _DECLARATIONS[c.take_one_of(tuple(_DECLARATIONS))]
        found.setdefault(field, []).append(read(c))
    declared: dict[str, Any] = {field: tuple(items) for field, items in found.items()}
    return Program(model, **declared)


def _optional(c: Cursor, word: str) -> Expr | None:
    return read_expr(c) if c.accept(word) else None


def _config(c: Cursor) -> Config:
    name = c.take_name()
    path = c.take_string() if c.accept("from") else ""
    return Config(name, path, _optional(c, "="))


def _param(c: Cursor) -> Param:
    name = c.take_name()
    c.expect(":")
    return Param(name, read_type(c), _optional(c, "low"), _optional(c, "high"), _optional(c, "="))


def _let(c: Cursor) -> Let:
    name = c.take_name()
    c.expect("=")
    return Let(name, read_expr(c))


def _port(c: Cursor) -> Port:
    name = c.take_name()
    c.expect(":")
    host = c.accept("host")
    return Port(name, read_type(c), host)


def _signature(c: Cursor) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    c.expect("(")
    params = read_list(c, ")", _port)
    c.expect("->")
    c.expect("(")
    return params, read_list(c, ")", _port)


def _extern(c: Cursor) -> ExternDecl:
    name = c.take_name()
    return ExternDecl(name, *_signature(c))


def _cache(c: Cursor) -> Cache:
    name, line = c.take_name(), c.token.line
    sizes: dict[str, Any] = dict(read_named(c))
    if list(sizes) != ["layers", "heads", "kv_heads", "head_dim"]:
        raise IrTextError("a cache has `layers`, `heads`, `kv_heads`, `head_dim`, in this order", line)
    return Cache(name, **sizes)


def _context(c: Cursor) -> Context:
    name = c.take_name()
    c.expect("on")
    return Context(name, c.take_name(), _optional(c, "max"), _optional(c, "when"))


def _sampler(c: Cursor) -> Sampler:
    name = c.take_name()
    settings = read_named(c)
    return Sampler(name, settings, c.take_name() if c.accept("over") else "")


def _node(c: Cursor) -> Node:
    name = c.take_name()
    c.expect(":")
    kind: Any = c.take_one_of(("transformer", "stateless"))
    words = {word: c.take_name() if c.accept(word) else "" for word in ("on", "precision", "weights")}
    c.expect("{")
    ops: list[OpDecl] = []
    states: list[State] = []
    while not c.accept("}"):
        if c.take_one_of(("op", "state")) == "op":
            ops.append(_op(c))
        else:
            states.append(_state(c))
    return Node(name, kind, words["on"], words["precision"], words["weights"], tuple(ops), tuple(states))


def _state(c: Cursor) -> State:
    name = c.take_name()
    c.expect(":")
    kind = read_type(c)
    c.expect("=")
    return State(name, kind, read_expr(c))


_ATTRIBUTES: dict[str, Callable[[Cursor], Any]] = {
    "attend": lambda c: c.take_one_of(("causal", "full")),
    "positions": lambda c: c.take_one_of(("seq", "same", "at")),
    "batch": lambda c: c.take_one_of(("pack", "stack")),
    **dict.fromkeys(("at", "advance", "takes", "batch_max", "graph_low", "graph_high"), read_expr),
    **dict.fromkeys(("samples", "graph"), Cursor.take_name),
    **dict.fromkeys(("frozen", "cross", "random", "async_off"), lambda c: True),
}


def _op(c: Cursor) -> OpDecl:
    name = c.take_name()
    params, results = _signature(c)
    attrs: dict[str, Any] = {}
    if c.accept("{"):
        while not c.accept("}"):
            word, line = c.take_one_of(tuple(_ATTRIBUTES)), c.token.line
            if word in attrs:
                raise IrTextError(f"`{word}` stands twice", line)
            attrs[word] = _ATTRIBUTES[word](c)
    return OpDecl(name, params, results, OpAttrs(**attrs))


def _stream(c: Cursor) -> Stream:
    name = c.take_name()
    c.expect(":")
    item = read_type(c)
    where = _optional(c, "where")
    c.expect("by")
    policy: Any = c.take_one_of(("fixed", "sliding_window", "left_context", "phrase"))
    args = read_named(c)
    at_end = ""
    if c.accept("at_end"):
        at_end = c.take_name()
        at_end += ":" + c.take_name() if c.accept(":") else ""
    empty, overlap = c.accept("after_end_empty"), c.accept("overlap_ok")
    c.expect("capacity")
    return Stream(name, item, policy, args, read_expr(c), where, at_end, empty, overlap)


def _output(c: Cursor) -> Output:
    name = c.take_name()
    c.expect(":")
    kind = read_type(c)
    c.expect("=")
    return Output(name, kind, c.take_var())


def _walk(c: Cursor) -> Walk:
    name = c.take_name()
    c.expect("(")
    params = read_list(c, ")", read_value)
    outputs: tuple[Output, ...] = ()
    if c.accept("->"):
        c.expect("(")
        outputs = read_list(c, ")", _output)
    return Walk(name, params, outputs, read_block(c))


def _request(c: Cursor) -> Request:
    name = c.take_name()
    c.expect("(")
    inputs = read_list(c, ")", read_value)
    c.expect("->")
    c.expect("(")
    outputs = read_list(c, ")", lambda c: (c.take_name(), c.accept("?")))
    return Request(name, inputs, outputs, read_block(c))


_DECLARATIONS: dict[str, tuple[str, Callable[[Cursor], Any]]] = {
    "config": ("configs", _config),
    "param": ("params", _param),
    "let": ("lets", _let),
    "extern": ("externs", _extern),
    "cache": ("caches", _cache),
    "context": ("contexts", _context),
    "sampler": ("samplers", _sampler),
    "node": ("nodes", _node),
    "stream": ("streams", _stream),
    "walk": ("walks", _walk),
    "request": ("requests", _request),
}
