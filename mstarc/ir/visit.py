"""Walking and rewriting the IR: what an operation or expression contains. Every other pass builds on these few functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, get_args

from mstarc.ir.core import (
    Block,
    CallWalk,
    Collect,
    Compute,
    Emit,
    Extern,
    ForChunks,
    ForParts,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    Value,
    When,
)
from mstarc.ir.types import Apply, Binary, Expr, FieldOf, IfThen, Index, ListOf, Range, Slice, Unary, ValueId, Var


def blocks_of(op: Op) -> tuple[Block, ...]:
    """The blocks that an operation holds, in program order."""
    match op:
        case Loop() | Par() | When() | ForChunks():
            return (op.body,)
        case If():
            return (op.then, op.other)
        case ForParts():
            return tuple(case.body for case in op.cases)
        case Together():
            return tuple(arm.body for arm in op.arms)
        case _:
            return ()


def every_op(block: Block) -> Iterator[Op]:
    """All operations of a block, those of inner blocks right after the operation that holds them."""
    for op in block.ops:
        yield op
        for inner in blocks_of(op):
            yield from every_op(inner)


def results_of(op: Op) -> tuple[Value, ...]:
    """The values that the code after the operation sees."""
    match op:
        case Compute() | Sample() | Noise():
            return (op.result,)
        case Invoke() | Extern() | CallWalk() | Next():
            return tuple(v for v in op.results if v is not None)
        case Loop():
            return tuple(c.result for c in op.carries) + tuple(g.result for g in op.gathers)
        case When():
            return tuple(phi.result for phi in op.results)
        case _:
            return ()


def entries_of(op: Op) -> tuple[tuple[Block, tuple[Value, ...]], ...]:
    """Each block of the operation with the values that are bound at its top."""
    match op:
        case Loop():
            return ((op.body, tuple(c.inner for c in op.carries)),)
        case ForChunks():
            return ((op.body, op.items),)
        case ForParts():
            return tuple((case.body, (case.item,)) for case in op.cases)
        case _:
            return tuple((block, ()) for block in blocks_of(op))


def exprs_of(op: Op) -> tuple[Expr, ...]:
    """The expressions that the operation itself evaluates before its blocks (a loop's `next` is not among them)."""
    match op:
        case Compute():
            return (op.expr,)
        case Invoke():
            return tuple(a for a in op.args if a is not None)
        case Sample():
            return (op.logits,)
        case Extern() | CallWalk():
            return op.args
        case Loop():
            return (op.bound, *(c.init for c in op.carries))
        case Stop():
            return (op.cond, *op.carried)
        case Collect() | Send():
            return (op.value,)
        case Emit():
            return (op.value, *(value for _, value in op.attrs))
        case When() | If() | Require():
            return (op.cond,)
        case ForParts():
            return (op.over,)
        case _:
            return ()


def parts_of(expr: Expr) -> tuple[Expr, ...]:
    """The direct parts of an expression."""
    match expr:
        case Unary(_, x):
            return (x,)
        case Binary(_, a, b):
            return (a, b)
        case IfThen(cond, a, b):
            return (cond, a, b)
        case Apply(_, args):
            return args
        case ListOf(items):
            return items
        case FieldOf(base, _):
            return (base,)
        case Range(low, high, exclude):
            return (low, high) if exclude is None else (low, high, exclude)
        case Index(base, indices):
            slices = ((i.low, i.high) if isinstance(i, Slice) else (i,) for i in indices)
            return (base, *(part for pair in slices for part in pair if part is not None))
        case _:
            return ()


def every_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and all its parts."""
    yield expr
    for part in parts_of(expr):
        yield from every_expr(part)


def vars_of(expr: Expr) -> Iterator[ValueId]:
    """The values that the expression reads, in order, with repetitions."""
    return (part.id for part in every_expr(expr) if isinstance(part, Var))


def rewrite(block: Block, change: Callable[[Op], tuple[Op, ...]]) -> Block:
    """The block with each operation replaced by `change(op)`, innermost first; the same object if nothing changed."""
    ops: list[Op] = []
    for op in block.ops:
        ops.extend(change(_with_blocks(op, lambda inner: rewrite(inner, change))))
    same = len(ops) == len(block.ops) and all(a is b for a, b in zip(ops, block.ops, strict=True))
    return block if same else Block(tuple(ops))


def _with_blocks(op: Op, change: Callable[[Block], Block]) -> Op:
    """The operation with its blocks changed; the same object if none changed."""
    if isinstance(op, ForParts):
        cases = tuple(_with_body(case, change) for case in op.cases)
        return op if all(a is b for a, b in zip(cases, op.cases, strict=True)) else replace(op, cases=cases)
    if isinstance(op, Together):
        arms = tuple(_with_body(arm, change) for arm in op.arms)
        return op if all(a is b for a, b in zip(arms, op.arms, strict=True)) else replace(op, arms=arms)
    changed: dict[str, Any] = {}
    for field in fields(op):
        old = getattr(op, field.name)
        if isinstance(old, Block) and (new := change(old)) is not old:
            changed[field.name] = new
    return replace(op, **changed) if changed else op


def _with_body(part: Any, change: Callable[[Block], Block]) -> Any:
    body = change(part.body)
    return part if body is part.body else replace(part, body=body)


def substituted(expr: Expr, values: Mapping[ValueId, Expr]) -> Expr:
    """The expression with these values replaced; the same object if it reads none of them."""
    if isinstance(expr, Var):
        return values.get(expr.id, expr)
    if not any(ident in values for ident in vars_of(expr)):
        return expr
    found: Expr = _changed(expr, lambda part: substituted(part, values))
    return found


def with_exprs(op: Op, change: Callable[[Expr], Expr]) -> Op:
    """An operation without blocks, each expression that it evaluates changed."""
    found: Op = _changed(op, change)
    return found


def with_parts(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The expression with each of its direct parts changed."""
    found: Expr = _changed(expr, change)
    return found


_EXPRS = get_args(Expr)


def _changed(item: Any, change: Callable[[Expr], Expr]) -> Any:
    """A dataclass with the expressions in its fields changed, those in tuples and slices too; what is no part of it stays."""

    def new(value: Any) -> Any:
        if isinstance(value, _EXPRS):
            return change(value)
        if isinstance(value, Slice):
            return _changed(value, change)
        return tuple(new(part) for part in value) if isinstance(value, tuple) else value

    found = {field.name: new(getattr(item, field.name)) for field in fields(item)}
    return replace(item, **found)
