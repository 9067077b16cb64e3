"""The body of a loop without conditions, once for each way in which its host conditions come out.

Takes a loop; gives its conditions and one loop a way, or nothing where a condition is known on the device only, where there are too many,
or where a value is missing that has to be there. In a straight line the guarded statements stand as they are or not at all, what a
`when` left out is an absent argument, and host values of the body stand where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mstarc.ir.core import Block, Compute, Invoke, Loop, Op, Value, When
from mstarc.ir.types import Expr, Ref, Unary, ValueId, Var
from mstarc.ir.visit import every_expr, results_of, substituted, with_exprs

MOST_CONDITIONS = 2  # four bodies: beyond that a method each is harder to read than the loop


@dataclass(frozen=True, slots=True)
class Line:
    """One way: which conditions hold, and the loop in which they were decided."""

    holds: tuple[bool, ...]
    loop: Loop


def straight_lines(loop: Loop, values: Mapping[ValueId, Value]) -> tuple[tuple[Expr, ...], tuple[Line, ...]]:
    """The conditions in their order and every line, or nothing. A loop without a `when` is its own line."""
    inside = {value.id: value for op in _ops(loop.body) for value in results_of(op)}
    inside |= {carry.inner.id: carry.inner for carry in loop.carries}
    host = {op.result.id: op.expr for op in _ops(loop.body) if isinstance(op, Compute) and op.result.phase == "host"}
    conditions = tuple(
        dict.fromkeys(_positive(inlined(op.cond, host))[0] for op in _ops(loop.body) if isinstance(op, When))
    )
    if len(conditions) > MOST_CONDITIONS or not all(_known(cond, inside, values) for cond in conditions):
        return (), ()
    ways = product((True, False), repeat=len(conditions))
    return conditions, tuple(
        Line(holds, _line(loop, dict(zip(conditions, holds, strict=True)), host)) for holds in ways
    )


def changes(cond: Expr, loop: Loop) -> bool:
    """Whether a condition comes out anew in each iteration."""
    return any(isinstance(part, Ref) and (part.scope, part.name) == ("iter", loop.label) for part in every_expr(cond))


def inlined(expr: Expr, host: Mapping[ValueId, Expr]) -> Expr:
    """The expression with the host values of the body put in."""
    found = substituted(expr, host)
    return found if found is expr else inlined(found, host)


def _ops(block: Block) -> Iterator[Op]:
    """The statements of a body, those behind conditions too."""
    for op in block.ops:
        yield op
        if isinstance(op, When):
            yield from _ops(op.body)


def _positive(cond: Expr) -> tuple[Expr, bool]:
    """The condition without a `not`, and whether it has to hold."""
    return (cond.x, False) if isinstance(cond, Unary) and cond.op == "not" else (cond, True)


def _known(cond: Expr, inside: Mapping[ValueId, Value], values: Mapping[ValueId, Value]) -> bool:
    """Whether the host knows the condition before the loop starts."""
    found = [part.id for part in every_expr(cond) if isinstance(part, Var)]
    return all(ident not in inside and values[ident].phase == "host" for ident in found)


def _line(loop: Loop, truth: Mapping[Expr, bool], host: Mapping[ValueId, Expr]) -> Loop:
    """The loop with its conditions decided. A value that a `when` left out stays a variable that nothing defines."""
    known: dict[ValueId, Expr] = dict(host)
    absent: set[ValueId] = set()
    ops: list[Op] = []

    def put(block: Block) -> None:
        for op in block.ops:
            if isinstance(op, When):
                cond, wanted = _positive(inlined(op.cond, host))
                if truth[cond] == wanted:
                    put(op.body)
                    known.update({phi.result.id: Var(phi.inner) for phi in op.results})
                else:
                    absent.update(phi.result.id for phi in op.results)
            elif not (isinstance(op, Compute) and op.result.phase == "host"):
                ops.append(_without(with_exprs(op, lambda expr: inlined(expr, known)), absent))

    put(loop.body)
    carries = tuple(replace(carry, next=inlined(carry.next, known)) for carry in loop.carries)
    return replace(loop, body=Block(tuple(ops)), carries=carries)


def _without(op: Any, absent: set[ValueId]) -> Op:
    """A call whose arguments are left out where a value is absent."""
    if isinstance(op, Invoke):
        return replace(op, args=tuple(None if isinstance(a, Var) and a.id in absent else a for a in op.args))
    assert not isinstance(op, When)
    return op  # type: ignore[no-any-return]
