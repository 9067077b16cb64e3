"""What the verifier's rules look at: each operation of a program with what is visible at its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mstarc.ir.core import Block, Loop, Op, Par, Program, Request, Value, Walk
from mstarc.ir.text.printer import print_op
from mstarc.ir.visit import entries_of, results_of

Visible = Mapping[int, Value]


@dataclass(frozen=True, slots=True)
class Unit:
    """A walk or a request program."""

    program: Program
    of: Walk | Request

    @property
    def title(self) -> str:
        return f"{'walk' if isinstance(self.of, Walk) else 'request'} {self.of.name}"

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.of.params if isinstance(self.of, Walk) else self.of.inputs


@dataclass(frozen=True, slots=True)
class Site:
    """An operation at its place. `inner` is what is visible at the end of each of its blocks; `loops` from the outermost in."""

    unit: Unit
    op: Op
    visible: Visible
    inner: tuple[Visible, ...]
    loops: tuple[Loop, ...]

    @property
    def title(self) -> str:
        return f"{self.unit.title}, `{print_op(self.op).splitlines()[0].strip()}`"


def units_of(program: Program) -> Iterator[Unit]:
    yield from (Unit(program, walk) for walk in program.walks)
    yield from (Unit(program, request) for request in program.requests)


def sites_of(unit: Unit) -> Iterator[Site]:
    """Every operation of the unit; one with blocks comes after those in its blocks."""
    yield from _sites(unit, unit.of.body, {v.id: v for v in unit.inputs}, ())


def top_level(unit: Unit) -> Visible:
    """What is visible at the end of the unit."""
    visible: dict[int, Value] = {v.id: v for v in unit.inputs}
    for _ in _sites(unit, unit.of.body, visible, ()):
        pass
    return visible


def _sites(unit: Unit, block: Block, visible: dict[int, Value], loops: tuple[Loop, ...]) -> Iterator[Site]:
    """Adds what the block defines to `visible`."""
    for op in block.ops:
        before = dict(visible)
        inner: list[Visible] = []
        within = (*loops, op) if isinstance(op, Loop) else loops
        for body, bound in entries_of(op):
            # `parallel` adds no scope: what it binds is visible after it
            scope = visible if isinstance(op, Par) else visible | {v.id: v for v in bound}
            yield from _sites(unit, body, scope, within)
            inner.append(dict(scope))
        yield Site(unit, op, before, tuple(inner), loops)
        visible |= {v.id: v for v in results_of(op)}


def definitions(unit: Unit) -> Iterator[Value]:
    """All values in the order of their definition: a loop's and a `when`'s results come after its block."""
    yield from unit.inputs
    yield from _definitions(unit.of.body)


def _definitions(block: Block) -> Iterator[Value]:
    for op in block.ops:
        for body, bound in entries_of(op):
            yield from bound
            yield from _definitions(body)
        yield from results_of(op)
