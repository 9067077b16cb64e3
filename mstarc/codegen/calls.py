"""Calls of ops and externs as Python, the same in coroutines and regions."""

from __future__ import annotations

from collections.abc import Container

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.expressions import FLOATS, Place, is_number, number, text
from mstarc.codegen.layout import Call, Group, Part
from mstarc.codegen.source import bind
from mstarc.ir.core import Extern, Invoke
from mstarc.ir.declarations import Port
from mstarc.ir.types import Expr, Tensor, ValueId
from mstarc.passes.effects import Names


def invoke_of(op: Invoke, names: Names, place: Place, read: Container[ValueId], verb: str) -> Part:
    """`a, b = yield walk.call("node.op", ...)`; a result that nothing reads is not asked for."""
    targets = [place.names[value.id] for value in op.results if value is not None and value.id in read]
    return bind(targets, call_of(op, names, place, read, verb), several=len(targets) > 1)


def call_of(op: Invoke, names: Names, place: Place, read: Container[ValueId], verb: str) -> Call:
    """The call alone."""
    decl = names.op(op)
    assert decl is not None, "the verifier knows every op"
    if len(op.writes) > 1 and (decl.attrs.samples or names.nodes[op.node].states):  # whose draws and cells would count?
        raise NotBuilt(f"op `{op.node}.{op.op}`, which draws or keeps cells, on several contexts at once", op.span)
    used = [k for k, value in enumerate(op.results) if value is not None and value.id in read]
    args: list[str | Group | Call] = [f'"{op.node}.{op.op}"']
    args += [argument_of(arg, port, place) for arg, port in zip(op.args, decl.params, strict=True)]
    args += [_names(key, contexts) for key, contexts in (("writes", op.writes), ("reads", op.reads)) if contexts]
    if len(decl.results) > 1 and len(used) < len(decl.results):
        args.append(Group(tuple(str(k) for k in used), "only="))
    return Call(verb, tuple(args))


def argument_of(arg: Expr | None, port: Port, place: Place) -> str:
    """One argument of a call."""
    if arg is None:
        return "ABSENT"
    floats = isinstance(port.type, Tensor) and port.type.dtype in FLOATS
    return number(arg, place) if place.rows and floats and is_number(arg) else text(arg, place)


def _names(key: str, contexts: tuple[str, ...]) -> Group:
    return Group(tuple(f'"{name}"' for name in contexts), f"{key}=")


def extern_of(op: Extern, place: Place, read: Container[ValueId]) -> Part:
    """`a, _ = yield owner.extern("name", ...)`."""
    call = Call(f"yield {place.owner}.extern", (f'"{op.name}"', *(text(arg, place) for arg in op.args)))
    targets = [place.names[v.id] if v is not None and v.id in read else None for v in op.results]
    return bind(targets, call, several=len(targets) > 1)
