"""Operations and blocks from the IR's text form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mstarc.ir.core import (
    Arm,
    Block,
    CallWalk,
    Carry,
    Case,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    Gather,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Phi,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    Value,
    When,
)
from mstarc.ir.text.lexer import Cursor
from mstarc.ir.text.read_expressions import read_expr, read_list, read_named, read_type
from mstarc.ir.types import Expr


def read_value(c: Cursor) -> Value:
    """`%3 token: host i64[]`."""
    ident = c.take_var()
    name = c.take_name("the value's name")
    c.expect(":")
    host = c.accept("host")
    return Value(ident, name, read_type(c), "host" if host else "device")


def read_block(c: Cursor) -> Block:
    """`{ operations }`."""
    c.expect("{")
    ops: list[Op] = []
    while not c.accept("}"):
        ops.append(_read_op(c))
    return Block(tuple(ops))


def _read_op(c: Cursor) -> Op:
    if c.token.kind != "var" and not c.sees("_"):
        word = c.take_one_of(tuple(_PLAIN) + tuple(w for w in _BINDING if w in ("invoke", "extern", "call", "next")))
        return _PLAIN[word](c) if word in _PLAIN else _BINDING[word](c, ())
    results: list[Value | None] = [_read_result(c)]
    while c.accept(","):
        results.append(_read_result(c))
    c.expect("=")
    return _BINDING[c.take_one_of(tuple(_BINDING))](c, tuple(results))


def _read_result(c: Cursor) -> Value | None:
    return None if c.accept("_") else read_value(c)


# ------------------------------------------------------------------------------------------------- operations with results


def _single(c: Cursor, results: tuple[Value | None, ...]) -> Value:
    if len(results) != 1 or results[0] is None:
        c.fail("one result before `=`")
    return results[0]


def _compute(c: Cursor, results: tuple[Value | None, ...]) -> Op:
    return Compute(_single(c, results), read_expr(c))


def _arg(c: Cursor) -> Expr | None:
    return None if c.accept("_") else read_expr(c)


def _invoke(c: Cursor, results: tuple[Value | None, ...]) -> Op:
    node = c.take_name()
    c.expect(".")
    op = c.take_name()
    c.expect("(")
    args = read_list(c, ")", _arg)
    writes = c.take_names() if c.accept("writes") else ()
    reads = c.take_names() if c.accept("reads") else ()
    return Invoke(node, op, args, results, writes, reads)


def _sample(c: Cursor, results: tuple[Value | None, ...]) -> Op:
    sampler = c.take_name()
    c.expect("(")
    logits = read_expr(c)
    c.expect(")")
    c.expect("site")
    return Sample(sampler, logits, _single(c, results), c.take_string())


def _noise(c: Cursor, results: tuple[Value | None, ...]) -> Op:
    c.expect("site")
    return Noise(_single(c, results), c.take_string())


def _args(c: Cursor) -> tuple[Expr, ...]:
    c.expect("(")
    return read_list(c, ")", read_expr)


_BINDING: dict[str, Callable[[Cursor, tuple[Value | None, ...]], Op]] = {
    "compute": _compute,
    "invoke": _invoke,
    "sample": _sample,
    "noise": _noise,
    "extern": lambda c, results: Extern(c.take_name(), _args(c), results),
    "call": lambda c, results: CallWalk(c.take_name(), _args(c), results),
    "next": lambda c, results: Next(c.take_names(), results),
}

# ---------------------------------------------------------------------------------------------- operations without results


def _stop(c: Cursor) -> Op:
    cond = read_expr(c)
    return Stop(cond, _args(c) if c.accept("with") else ())


def _collect(c: Cursor) -> Op:
    value = read_expr(c)
    c.expect("as")
    return Collect(value, c.take_name())


def _emit(c: Cursor) -> Op:
    value = read_expr(c)
    c.expect("as")
    modality = c.take_name("a modality")
    return Emit(value, modality, read_named(c) if c.sees("(") else ())


def _send(c: Cursor) -> Op:
    value = read_expr(c)
    c.expect("to")
    return Send(value, c.take_name())


def _fork(c: Cursor) -> Op:
    target = c.take_name()
    c.expect("from")
    return Fork(target, c.take_name())


def _require(c: Cursor) -> Op:
    cond = read_expr(c)
    c.expect("says")
    return Require(cond, c.take_string())


def _loop(c: Cursor) -> Op:
    label = c.take_name()
    kind: Any = c.take_one_of(("times", "max"))
    bound = read_expr(c)
    carries: list[Carry] = []
    gathers: list[Gather] = []
    while c.accept("carry"):
        inner = read_value(c)
        c.expect("=")
        init = read_expr(c)
        c.expect("then")
        after = read_expr(c)
        c.expect("->")
        carries.append(Carry(init, inner, after, read_value(c)))
    while c.accept("gather"):
        name = c.take_name()
        c.expect("->")
        gathers.append(Gather(name, read_value(c)))
    c.expect("do")
    return Loop(label, kind, bound, tuple(carries), tuple(gathers), read_block(c))


def _phi(c: Cursor) -> Phi:
    inner = c.take_var()
    c.expect("to")
    return Phi(inner, read_value(c))


def _when(c: Cursor) -> Op:
    cond = read_expr(c)
    body = read_block(c)
    if not c.accept("->"):
        return When(cond, body)
    c.expect("(")
    return When(cond, body, read_list(c, ")", _phi))


def _for(c: Cursor) -> Op:
    items = [read_value(c)]
    while c.accept(","):
        items.append(read_value(c))
    c.expect("in")
    streams = c.take_names()
    return ForChunks(streams, tuple(items), read_block(c))


def _if(c: Cursor) -> Op:
    cond = read_expr(c)
    then = read_block(c)
    return If(cond, then, read_block(c) if c.accept("else") else Block())


def _parts(c: Cursor) -> Op:
    over = read_expr(c)
    c.expect("{")
    cases: list[Case] = []
    while not c.accept("}"):
        kind = c.take_name() if c.take_one_of(("case", "each")) == "case" else ""
        item = read_value(c)
        cases.append(Case(kind, item, read_block(c)))
    return ForParts(over, tuple(cases))


def _together(c: Cursor) -> Op:
    c.expect("{")
    arms: list[Arm] = []
    while not c.accept("}"):
        c.expect("arm")
        label = c.take_name("the arm's label")
        arms.append(Arm(label, read_block(c)))
    return Together(tuple(arms))


_PLAIN: dict[str, Callable[[Cursor], Op]] = {
    "stop": _stop,
    "collect": _collect,
    "parallel": lambda c: Par(read_block(c)),
    "emit": _emit,
    "send": _send,
    "fork": _fork,
    "drop": lambda c: Drop(c.take_names()),
    "require": _require,
    "loop": _loop,
    "when": _when,
    "for": _for,
    "if": _if,
    "parts": _parts,
    "together": _together,
}
