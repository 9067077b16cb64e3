"""What depends on what in one walk, and which streams lead from one walk to another. Takes IR; answers questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from mstarc.ir.core import Compute, Extern, ForChunks, Loop, Next, Op, Phi, Send, Value, Walk, When
from mstarc.ir.types import Expr, Type, ValueId, Var
from mstarc.ir.visit import entries_of, every_expr, every_op, exprs_of, results_of, substituted, vars_of


class Flow:
    """The values of one walk: how they are made."""

    def __init__(self, walk: Walk) -> None:
        self._values: dict[ValueId, Value] = {value.id: value for value in walk.params}
        self._by: dict[ValueId, Op] = {}  # value -> the operation whose result it is
        self._inner: dict[ValueId, ValueId] = {}  # what a `when` hands on -> the value in it
        self._carried: dict[ValueId, tuple[Expr, ...]] = {}  # what a loop carries -> what it was before
        for op in every_op(walk.body):
            for carry in op.carries if isinstance(op, Loop) else ():
                self._carried[carry.inner.id] = self._carried[carry.result.id] = (carry.init, carry.next)
            for value in (*results_of(op), *(value for _, values in entries_of(op) for value in values)):
                self._values[value.id] = value
            self._by.update({value.id: op for value in results_of(op)})
            phis: Sequence[Phi] = op.results if isinstance(op, When) else ()
            self._inner.update({phi.result.id: phi.inner for phi in phis})

    def kind(self, ident: ValueId) -> Type:
        """The type of a value."""
        return self._values[ident].type

    def on_device(self, expr: Expr) -> bool:
        """Whether an expression reads a device value."""
        return any(self._values[ident].phase == "device" for ident in vars_of(expr))

    def inlined(self, expr: Expr) -> Expr:
        """An expression with the host computations behind its values put in."""
        made = {ident: self._by.get(ident) for ident in vars_of(expr)}
        known = {i: op.expr for i, op in made.items() if isinstance(op, Compute) and op.result.phase == "host"}
        return self.inlined(substituted(expr, known)) if known else expr

    def leaves(self, expr: Expr) -> Iterator[Expr]:
        """The parts of an expression, host computations put in."""
        return every_expr(self.inlined(expr))

    def depends_on_carry(self, expr: Expr, loop: Loop) -> bool:
        """Whether it reads what the loop carries."""
        carried = {carry.inner.id for carry in loop.carries}
        return any(isinstance(part, Var) and part.id in carried for part in self.leaves(expr))

    def passes_through(self, op: Op, loop: Loop) -> bool:
        """Whether a path leads from a device value of the loop through one operation of it to another one of the loop."""
        inside = list(every_op(loop.body))
        device = {value.id for inner in inside if not isinstance(inner, Extern) for value in results_of(inner)} | {
            carry.inner.id for carry in loop.carries
        }
        if not any(self._values[ident].phase == "device" for ident in self._behind(op) & device):
            return False
        after = {value.id for value in results_of(op)}
        return any(after & self._behind(inner) for inner in inside if inner is not op and not isinstance(inner, Extern))

    def _behind(self, op: Op) -> set[ValueId]:
        """Every value that one operation depends on."""
        found: set[ValueId] = set()
        todo = [ident for expr in exprs_of(op) for ident in vars_of(expr)]
        while todo:
            ident = todo.pop()
            if ident not in found:
                found.add(ident)
                made = self._by.get(ident)
                before = self._carried.get(ident) or (exprs_of(made) if made is not None else ())
                todo += [self._inner[ident]] if ident in self._inner else []
                todo += [i for expr in before for i in vars_of(expr)]
        return found


def streams_back(walks: Sequence[Walk], sent: Set[str], due: Set[str], start: str) -> tuple[str, ...]:
    """The shortest way from items that a walk sends to items that are due to it, walks and streams in turn; () if there is none."""
    ends = {walk.name: _ends(walk) for walk in walks}
    ways: list[tuple[str, ...]] = [(start, stream) for stream in sorted(sent)]
    seen = set(sent)
    while ways:
        way = ways.pop(0)
        if way[-1] in due:
            return (*way, start)
        for name, (sends, takes) in ends.items():
            if way[-1] in takes and name != start:
                ways += [(*way, name, stream) for stream in sorted(sends - seen)]
                seen |= sends
    return ()


def _ends(walk: Walk) -> tuple[set[str], set[str]]:
    """Streams that a walk sends on, and those that it takes from."""
    ops = list(every_op(walk.body))
    takes = {name for op in ops if isinstance(op, (Next, ForChunks)) for name in op.streams}
    return {op.stream for op in ops if isinstance(op, Send)}, takes
