"""MC602 split-loop-exit: loops whose ranks do not all wait for the value that ends them. Takes layouts; reports findings.

A loop that ends on a device value and is split over ranks has its check where that value is made. A rank that needs nothing from there
to begin its next iteration either waits for the check each time, or runs ahead of it for a request that may be over: `[ahead]` says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Block, Compute, Invoke, Loop, Op, Stop, When
from mstarc.ir.types import ValueId
from mstarc.ir.visit import blocks_of, every_op, exprs_of, results_of, vars_of
from mstarc.plan.layout import Layout, binds_of
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement
from mstarc.plan.spec_lines import spec_source, trimmed


def report_exits(
    plan: Plan, placement: Placement, layouts: Mapping[str, Layout], spec: Path, report: Collector
) -> None:
    """One finding for each loop that `[ahead]` leaves out though it has to say something."""
    source, lines = spec_source(plan, spec), {walk.name: walk.line for walk in plan.walks}
    for walk, layout in layouts.items():
        loops = (op for op in every_op(layout.walk.body) if isinstance(op, Loop)) if layout.split else ()
        for loop in loops:
            name = f"{walk}.{loop.label}"
            found = next(_Exit(layout, loop).loose(), None)
            if found is None or name in placement.ahead:
                continue
            call, flag, there = found
            rank = layout.rank_of(call)
            report.report(
                rules.MC602,
                f"loop `{name}` ends by `{flag}` of rank {there}, and rank {rank} can begin an iteration without anything from there",
                placement.line_of(call.node, call.op, walk, binds_of(call)),
                f"`{call.node}.{call.op}` needs nothing of rank {there}",
                secondary=(Label(trimmed(source, lines[walk]), "the walk"),) if source is not None else (),
                notes=(
                    "a rank that is not told runs on for a request that is over; one that waits unasked pays a way and back each step",
                ),
                help=f'say under [ahead] `"{name}" = 0`: it waits for the check; or how many iterations it may be ahead',
                subject=name,
            )


class _Exit:
    """One loop: what its flags and its calls depend on."""

    def __init__(self, layout: Layout, loop: Loop) -> None:
        self.layout, self.loop = layout, loop
        self.ops = list(every_op(loop.body))
        self.by: dict[ValueId, Op] = {value.id: op for op in self.ops for value in results_of(op)}
        self.next = {carry.inner.id: carry.next for carry in loop.carries}
        self.inner = {phi.result.id: phi.inner for op in self.ops if isinstance(op, When) for phi in op.results}

    def loose(self) -> Iterator[tuple[Invoke, str, int]]:
        """Calls whose rank waits for nothing from where a flag is made, with the flag's name and its rank."""
        for flag in self._flags():
            there = self.layout.rank_of(flag)
            named = next(value.name for value in results_of(flag))
            calls = [op for op in self.ops if isinstance(op, Invoke) and self.layout.rank_of(op) != there]
            ranks = {self.layout.rank_of(call) for call in calls if self._waits(call, there)}
            yield from ((call, named, there) for call in calls if self.layout.rank_of(call) not in ranks)

    def _flags(self) -> Iterator[Op]:
        """The operations whose device results a stop of the loop tests; arithmetic on them aside."""
        todo = [ident for stop in _stops(self.loop.body) for ident in vars_of(stop.cond)]
        seen: set[ValueId] = set()
        while todo:
            ident = todo.pop()
            made = self.by.get(self.inner.get(ident, ident))
            if ident in seen or made is None:
                continue
            seen.add(ident)
            if isinstance(made, Compute):
                todo += vars_of(made.expr)
            elif any(value.phase == "device" for value in results_of(made)):
                yield made

    def _waits(self, call: Invoke, there: int) -> bool:
        """Whether a call needs a value of this loop, or a context, from a rank."""
        kept = {c for op in self.ops if isinstance(op, Invoke) and self.layout.rank_of(op) == there for c in op.writes}
        if kept & {*call.reads, *call.writes}:
            return True
        todo, seen = [ident for expr in exprs_of(call) for ident in vars_of(expr)], set[ValueId]()
        while todo:
            ident = todo.pop()
            if ident in seen:
                continue
            seen.add(ident)
            made = self.by.get(ident)
            if ident in self.inner:
                todo.append(self.inner[ident])
            elif ident in self.next:
                if self.layout.home == there:
                    return True  # carried values live at home
                todo += vars_of(self.next[ident])
            elif made is not None:
                if self.layout.rank_of(made) == there:
                    return True
                todo += [i for expr in exprs_of(made) for i in vars_of(expr)]
        return False


def _stops(block: Block) -> Iterator[Stop]:
    """The stops of a loop, those of loops inside it aside."""
    for op in block.ops:
        if isinstance(op, Stop):
            yield op
        elif not isinstance(op, Loop):
            for inner in blocks_of(op):
                yield from _stops(inner)
