"""The body of a loop without conditions, once for each way in which its host conditions come out.

Takes a loop; gives its conditions and one loop a way, or nothing where a condition is known on the device only, where there are too many,
or where a value is missing that has to be there. In a straight line the guarded statements stand as they are or not at all, what a
`when` left out is an absent argument, and a branch that `guide` goes without. Host values of the body stand where
they are used, but for rows of a value from outside (`t = times[iter]`), which keep their name. A `parallel` whose statements are calls
that need nothing of each other stays one; any other is its statements one after the other, which means the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from mstarc.ir.core import Block, Compute, Invoke, Loop, Noise, Op, Par, Value, When
from mstarc.ir.types import Apply, Binary, Expr, Index, Ref, Tensor, Unary, ValueId, Var
from mstarc.ir.visit import every_expr, exprs_of, results_of, substituted, vars_of, with_exprs, with_parts

MOST_CONDITIONS = 2  # four bodies: beyond that a method each is harder to read than the loop


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of the host. known: over values from outside the loop; written: as the body says it."""

    known: Expr
    written: Expr


@dataclass(frozen=True, slots=True)
class Line:
    """One way: which conditions hold, and the loop in which they were decided."""

    holds: tuple[bool, ...]
    loop: Loop


def straight_lines(loop: Loop, values: Mapping[ValueId, Value]) -> tuple[tuple[Condition, ...], tuple[Line, ...]]:
    """The conditions in their order and every line that there can be, or nothing. A loop without a `when` is its own line."""
    inside = {value.id: value for op in _ops(loop.body) for value in results_of(op)}
    inside |= {carry.inner.id: carry.inner for carry in loop.carries}
    host = {op.result.id: op.expr for op in _ops(loop.body) if isinstance(op, Compute) and op.result.phase == "host"}
    conditions: dict[Expr, Condition] = {}
    for op in _ops(loop.body):
        if isinstance(op, When):
            cond, _ = _condition(op.cond, host)
            conditions.setdefault(cond.known, cond)
    if len(conditions) > MOST_CONDITIONS or not all(_of_host(known, inside, values) for known in conditions):
        return (), ()
    ways = (dict(zip(conditions, holds, strict=True)) for holds in product((True, False), repeat=len(conditions)))
    lines = (Line(tuple(truth.values()), _Line(loop, truth, host).loop()) for truth in ways if _may_be(truth))
    return tuple(conditions.values()), tuple(lines)


def _may_be(truth: Mapping[Expr, bool]) -> bool:
    """Whether conditions can come out like this: none is false of which all parts hold (`on`, where `on and guided` holds)."""
    holding = {part for cond, holds in truth.items() if holds for part in _parts(cond)}
    return not any(set(_parts(cond)) <= holding for cond, holds in truth.items() if not holds)


def _parts(cond: Expr) -> Iterator[Expr]:
    """What a condition asks for, one by one."""
    if isinstance(cond, Binary) and cond.op == "and":
        yield from (*_parts(cond.a), *_parts(cond.b))
    else:
        yield cond


def changes(cond: Condition, loop: Loop) -> bool:
    """Whether a condition comes out anew in each iteration."""
    return any(
        isinstance(part, Ref) and (part.scope, part.name) == ("iter", loop.label) for part in every_expr(cond.known)
    )


def statements(block: Block) -> Iterator[Op]:
    """The statements of a straight body, those of a `parallel` one by one."""
    for op in block.ops:
        yield from op.body.ops if isinstance(op, Par) else (op,)


def inlined(expr: Expr, host: Mapping[ValueId, Expr]) -> Expr:
    """The expression with the host values of the body put in."""
    found = substituted(expr, host)
    return found if found is expr else inlined(found, host)


def _ops(block: Block) -> Iterator[Op]:
    """The statements of a body, those behind conditions and in a `parallel` too."""
    for op in block.ops:
        yield op
        if isinstance(op, When | Par):
            yield from _ops(op.body)


def _positive(cond: Expr) -> tuple[Expr, bool]:
    """The condition without a `not`, and whether it has to hold."""
    return (cond.x, False) if isinstance(cond, Unary) and cond.op == "not" else (cond, True)


def _condition(cond: Expr, host: Mapping[ValueId, Expr]) -> tuple[Condition, bool]:
    """A condition without a `not`, and whether it has to hold."""
    (known, holds), (written, said) = _positive(inlined(cond, host)), _positive(cond)
    return Condition(known, written if said == holds else known), holds


def _of_host(cond: Expr, inside: Mapping[ValueId, Value], values: Mapping[ValueId, Value]) -> bool:
    """Whether the host knows the condition before the loop starts."""
    found = [part.id for part in every_expr(cond) if isinstance(part, Var)]
    return all(ident not in inside and values[ident].phase == "host" for ident in found)


class _Line:
    """Writes the loop with its conditions decided. A value that a `when` left out stays a variable that nothing defines."""

    def __init__(self, loop: Loop, truth: Mapping[Expr, bool], host: Mapping[ValueId, Expr]) -> None:
        self.whole, self.truth, self.host = loop, truth, host
        self.known: dict[ValueId, Expr] = dict(host)
        self.absent: set[ValueId] = set()

    def loop(self) -> Loop:
        """The straight loop."""
        ops = self._put(self.whole.body)
        carries = tuple(replace(carry, next=self._decided(carry.next)) for carry in self.whole.carries)
        read = {
            ident
            for expr in (*(e for op in statements(Block(ops)) for e in exprs_of(op)), *(c.next for c in carries))
            for ident in vars_of(expr)
        }
        kept = tuple(op for op in ops if not _is_host(op) or any(value.id in read for value in results_of(op)))
        return replace(self.whole, body=Block(kept), carries=carries)

    def _put(self, block: Block) -> tuple[Op, ...]:
        ops: list[Op] = []
        for op in block.ops:
            match op:
                case When():
                    ops += self._behind(op)
                case Par(body=body):
                    inner = self._put(body)
                    ops += (replace(op, body=Block(inner)),) if _are_calls(inner) else inner
                case Compute(result=result, expr=expr) if _is_host(op):
                    if self._is_row(inlined(expr, self.host)) and isinstance(result.type, Tensor):
                        self.known.pop(result.id, None)
                        ops.append(replace(op, expr=inlined(expr, self.host)))
                case Noise(result=result) if isinstance(result.type, Tensor):
                    dims = tuple(self._decided(dim) for dim in result.type.dims)
                    ops.append(replace(op, result=replace(result, type=replace(result.type, dims=dims))))
                case _:
                    ops.append(_without(with_exprs(op, self._decided), self.absent))
        return tuple(ops)

    def _behind(self, op: When) -> tuple[Op, ...]:
        """What stands behind a condition, if it holds."""
        cond, holds = _condition(op.cond, self.host)
        if self.truth[cond.known] != holds:
            self.absent.update(phi.result.id for phi in op.results)
            return ()
        found = self._put(op.body)
        self.known.update({phi.result.id: Var(phi.inner) for phi in op.results})
        return found

    def _is_row(self, expr: Expr) -> bool:
        """Whether a host value is a row of one from outside."""
        label = self.whole.label
        return isinstance(expr, Index) and any(part == Ref("iter", label) for part in every_expr(expr))

    def _decided(self, expr: Expr) -> Expr:
        """The expression as this line has it."""
        return self._guided(inlined(expr, self.known))

    def _guided(self, expr: Expr) -> Expr:
        """`guide` is its first argument without the first branch, and has one branch without the second."""
        expr = with_parts(expr, self._guided)
        match expr:
            case Apply("guide", (v, a, *_)) if self._is_absent(a):
                return v
            case Apply("guide", (v, a, b, scale, _, *limit)) if self._is_absent(b):
                return Apply("guide", (v, a, scale, *limit))
        return expr

    def _is_absent(self, expr: Expr) -> bool:
        return isinstance(expr, Var) and expr.id in self.absent


def _is_host(op: Op) -> bool:
    return isinstance(op, Compute) and op.result.phase == "host"


def _are_calls(ops: tuple[Op, ...]) -> bool:
    """Whether statements are two or more calls that need nothing of each other."""
    made = {value.id for op in ops for value in results_of(op)}
    read = {ident for op in ops for expr in exprs_of(op) for ident in vars_of(expr)}
    return len(ops) > 1 and all(isinstance(op, Invoke) for op in ops) and not made & read


def _without(op: Any, absent: set[ValueId]) -> Op:
    """A call whose arguments are left out where a value is absent."""
    if isinstance(op, Invoke):
        return replace(op, args=tuple(None if isinstance(a, Var) and a.id in absent else a for a in op.args))
    assert not isinstance(op, When)
    return op  # type: ignore[no-any-return]
