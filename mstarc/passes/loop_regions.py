"""Static loops as one region: all steps of a `times` loop in one launch, without the host between them.

Takes a program; gives one `WholeLoop` per `times` loop: whether it can be one, why not, and in which phases it runs. The number of
steps and every host condition in the body are known before the loop starts, so conditions over `iter` are tabulated: each way in
which they can come out is a *phase*, a straight line of device work of its own (BAGEL's steps are guided or not). Conditions that do
not mention `iter` choose a *variant* once. What stands in the way is whatever only the host can do in between: externs, items taken
from a stream, host arguments of an op that change from step to step, and an end that only the device knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from mstarc.ir.core import Block, Drop, Extern, ForChunks, Fork, Invoke, Loop, Next, Program, Value, Walk, When
from mstarc.ir.text import print_expr
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr, Ref, Unary, ValueId, Var
from mstarc.ir.visit import blocks_of, every_expr, every_op
from mstarc.passes.effects import Names
from mstarc.passes.form_regions import values_of
from mstarc.passes.ranges import definitions, value_names
from mstarc.passes.speculate import on_device, stops_of

MOST_CONDITIONS = 4  # 16 phases: beyond that a table of graphs costs more than the host does


@dataclass(frozen=True, slots=True)
class Phase:
    """One way in which the conditions over `iter` come out. calls: `node.op` of a step, in order, with the context it reads or writes."""

    holds: tuple[bool, ...]  # per condition of the loop
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WholeLoop:
    """A `times` loop. steps: its bound as IR text. conditions: host conditions over `iter`; variants: those that do not change.

    phases are those that the conditions can be in, the ones with most work first.
    """

    walk: str
    loop: str
    steps: str
    reasons: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()

    @property
    def legal(self) -> bool:
        return not self.reasons


class _Body:
    """One loop's body: its conditions, and what stands in the way."""

    def __init__(self, walk: Walk, loop: Loop, names: Names) -> None:
        self.walk, self.loop, self.names = walk, loop, names
        self.values: Mapping[ValueId, Value] = {value.id: value for value in values_of(walk)}
        self.defs = definitions(walk.body)
        self.words = value_names(walk.body, walk.params)
        self.changing: list[Expr] = []
        self.steady: list[Expr] = []
        for op in every_op(loop.body):
            if isinstance(op, When):
                cond, _ = _positive(op.cond)
                found = self.changing if self.changes(cond) else self.steady
                if cond not in found:
                    found.append(cond)

    def changes(self, expr: Expr) -> bool:
        """Whether a host expression has another value from step to step."""
        for part in every_expr(expr):
            if isinstance(part, Ref) and part.scope == "iter":
                return True
            if isinstance(part, Var) and part.id in self.defs and self.changes(self.defs[part.id]):
                return True
        return False

    def reasons(self) -> Iterator[str]:
        for stop in stops_of(self.loop.body):
            known = "only the device knows" if on_device(stop, dict(self.values)) else "depends on the step"
            yield f"it can end early, when a condition holds that {known}"
        for op in every_op(self.loop.body):
            match op:
                case Extern(name=name):
                    yield f"extern `{name}` runs on the host between two steps"
                case Next(streams=streams) | ForChunks(streams=streams):
                    yield f"it waits for items of {', '.join(f'`{stream}`' for stream in streams)}"
                case Fork() | Drop():
                    yield "contexts are forked or dropped between two steps"
                case Loop(kind="max"):
                    yield f"loop `{op.label}` inside it has no fixed number of steps"
                case Invoke():
                    yield from self._of_call(op)
                case _:
                    pass
        if len(self.changing) > MOST_CONDITIONS:
            yield f"{len(self.changing)} conditions over `iter` make more phases than are worth a graph each"

    def _of_call(self, op: Invoke) -> Iterator[str]:
        declared = self.names.op(op)
        for port, arg in zip(declared.params if declared else (), op.args, strict=False):
            if port.host and arg is not None and self.changes(arg):
                yield f"`{op.node}.{op.op}` takes the host value `{shown(arg, self.words)}`, another one each step"

    def phases(self) -> Iterator[Phase]:
        """Every way in which the conditions over `iter` come out; those that are the same calls are one phase."""
        seen: set[tuple[str, ...]] = set()
        for holds in product((True, False), repeat=len(self.changing)):
            calls = tuple(self._calls(self.loop.body, dict(zip(self.changing, holds, strict=True))))
            if calls not in seen:
                seen.add(calls)
                yield Phase(holds, calls)

    def _calls(self, block: Block, truth: Mapping[Expr, bool]) -> Iterator[str]:
        for op in block.ops:
            if isinstance(op, When):
                cond, holds = _positive(op.cond)
                if cond in truth and truth[cond] != holds:
                    continue
            if isinstance(op, Invoke):
                touched = ", ".join((*op.writes, *op.reads))
                yield f"{op.node}.{op.op}" + (f" on {touched}" if touched else "")
            for inner in blocks_of(op):
                yield from self._calls(inner, truth)

    def said(self, cond: Expr) -> str:
        """A condition in the spec's words."""
        return shown(cond, self.words)


def _positive(cond: Expr) -> tuple[Expr, bool]:
    """The condition without a `not`, and whether it has to hold."""
    return (cond.x, False) if isinstance(cond, Unary) and cond.op == "not" else (cond, True)


def whole_loop_of(walk: Walk, loop: Loop, names: Names) -> WholeLoop:
    """The facts of one `times` loop."""
    body = _Body(walk, loop, names)
    reasons = tuple(dict.fromkeys(body.reasons()))
    return WholeLoop(
        walk=walk.name,
        loop=loop.label,
        steps=print_expr(loop.bound),
        reasons=reasons,
        conditions=tuple(body.said(cond) for cond in body.changing),
        variants=tuple(body.said(cond) for cond in body.steady),
        phases=() if reasons else tuple(sorted(body.phases(), key=lambda phase: -len(phase.calls))),
    )


def whole_loops_of(program: Program) -> tuple[WholeLoop, ...]:
    """Every `times` loop, in program order."""
    names = Names(program)
    return tuple(
        whole_loop_of(walk, op, names)
        for walk in program.walks
        for op in every_op(walk.body)
        if isinstance(op, Loop) and op.kind == "times"
    )


def say_whole_loops(program: Program, facts: tuple[WholeLoop, ...]) -> Iterator[str]:
    """One line for each loop, and one for each of several phases."""
    for fact in facts:
        name = f"loop {fact.walk}.{fact.loop}"
        if not fact.legal:
            yield f"{name}: not one region: {'; '.join(fact.reasons)}"
            continue
        varied = f", one of {2 ** len(fact.variants)} variants by {', '.join(fact.variants)}" if fact.variants else ""
        yield f"{name}: one region of {fact.steps} steps{varied}"
        for phase in fact.phases if len(fact.phases) > 1 else ():
            said = zip(fact.conditions, phase.holds, strict=True)
            yield f"  {', '.join(c if holds else f'not {c}' for c, holds in said)}: {' + '.join(phase.calls)}"
