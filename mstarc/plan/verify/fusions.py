"""Fusions: a producer's loop and the consumer of its stream in one launch. Takes a plan and its walks as IR; gives faults.

Items in and items out of a launch are equally many: steps x items that a step sends = firings x new items that a chunk takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Rule
from mstarc.ir.core import Block, Compute, Emit, ForChunks, Invoke, Loop, Op, Send, Walk
from mstarc.ir.fold import FoldError
from mstarc.ir.visit import every_op
from mstarc.plan.evaluate import ConfigScope
from mstarc.plan.model import FusionPlan, Plan, StreamPlan, WalkPlan
from mstarc.plan.rules import MC610
from mstarc.plan.verify.fault import Fault, line_of
from mstarc.plan.verify.flow import streams_back
from mstarc_runtime.abi.chunks import policy_of, pop


def verify_fusions(plan: Plan, walks: Sequence[Walk]) -> Iterator[Fault]:
    """Every fusion of the plan; those that say why they are none hold no numbers."""
    bodies = {walk.name: walk for walk in walks}
    streams = {stream.name: stream for stream in plan.streams}
    tables = {walk.name: walk for walk in plan.walks}
    for row in plan.fusions:
        loop, taker = _loop(bodies.get(row.producer), row.loop), _taker(bodies.get(row.consumer), row.stream)
        if loop is None or taker is None or row.stream not in streams:
            yield _fault(row, MC610, "has no such loop or consumer")
        elif row.apart:
            if row.unroll or row.firings:
                yield _fault(row, MC610, "counts steps, and says why it cannot be")
        else:
            yield from _Fused(plan, walks, row, loop, taker, streams[row.stream], tables).faults()


def _fault(row: FusionPlan, rule: Rule, what: str, op: Op | None = None) -> Fault:
    said = "" if op is None else line_of(op)
    name = f"the launch of loop `{row.producer}.{row.loop}` and `{row.consumer}` over `{row.stream}`"
    return Fault(rule, f"{name} {what}", row.producer, row.loop, said)


def _loop(walk: Walk | None, label: str) -> Loop | None:
    ops = every_op(walk.body) if walk is not None else ()
    return next((op for op in ops if isinstance(op, Loop) and op.label == label), None)


def _taker(walk: Walk | None, stream: str) -> ForChunks | None:
    ops = every_op(walk.body) if walk is not None else ()
    return next((op for op in ops if isinstance(op, ForChunks) and stream in op.streams), None)


class _Fused:
    """One fusion that the plan says is one launch."""

    def __init__(
        self,
        plan: Plan,
        walks: Sequence[Walk],
        row: FusionPlan,
        loop: Loop,
        taker: ForChunks,
        stream: StreamPlan,
        tables: Mapping[str, WalkPlan],
    ) -> None:
        self.plan, self.walks, self.row = plan, walks, row
        self.loop, self.taker, self.stream = loop, taker, stream
        self.table = next(found for found in tables[row.producer].loops if found.label == row.loop)
        self.ops = {f"{node.name}.{op.name}": (node, op) for node in plan.nodes for op in node.ops}

    def faults(self) -> Iterator[Fault]:
        if not self.table.region:
            yield self._fault(rules.MC702, "holds steps that run on the host, one by one")
        if not self.table.ahead:
            yield self._fault(rules.MC208, "begins steps before it is known that the loop has ended, which it must not")
        others = set(self.taker.streams) - {self.row.stream}
        if others:
            sent = {op.stream for op in every_op(self.loop.body) if isinstance(op, Send)} - others
            way = streams_back(self.walks, sent, others, self.row.producer)
            what = f"waits for items of {_listed(sorted(others))}"
            if way:
                yield self._fault(
                    rules.MC701, f"{what}, which come of what it sends: {' -> '.join(way[:-1])}", self.taker
                )
            else:
                yield self._fault(rules.MC702, what, self.taker)
        for op in every_op(self.taker.body):
            if what := self._impure(op):
                yield self._fault(rules.MC702, what, op)
        yield from self._counts()
        yield from self._rates()

    def _fault(self, rule: Rule, what: str, op: Op | None = None) -> Fault:
        return _fault(self.row, rule, what, op)

    def _impure(self, op: Op) -> str:
        """What of a firing is no device work of its own; "" if nothing."""
        match op:
            case Compute() | Emit():
                return ""
            case Invoke():
                node, declared = self.ops[f"{op.node}.{op.op}"]
                if op.writes or op.reads or node.states:
                    return f"calls `{op.node}.{op.op}`, which has a context or a state"
                return (
                    f"calls `{op.node}.{op.op}`, which takes a host value"
                    if any(p.host for p in declared.params)
                    else ""
                )
            case _:
                return f"has a `{line_of(op).split()[0]}` in a firing"

    def _counts(self) -> Iterator[Fault]:
        for said, block, what in (
            (self.row.step_calls, self.loop.body, "a step"),
            (self.row.firing_calls, self.taker.body, "a firing"),
        ):
            found = _calls(block)
            if said != found:
                yield self._fault(MC610, f"calls {_listed(said)} in {what}, and its body calls {_listed(found)}")
        if self.row.compacts != bool(self.stream.where):
            yield self._fault(MC610, f"counts items {'as' if self.row.compacts else 'not as'} a `where` asks")

    def _rates(self) -> Iterator[Fault]:
        """A stream whose chunk size only a checkpoint gives has no rate yet."""
        sent = sum(isinstance(op, Send) and op.stream == self.row.stream for op in self.loop.body.ops)
        scope = ConfigScope(self.plan, {})
        try:
            args = {name: scope.number(text) for name, text in self.stream.args.items() if name != "cut"}
            taken = pop(policy_of(self.stream.policy, args))
        except (FoldError, ValueError, TypeError):
            yield self._fault(rules.MC702, "takes chunks whose size the plan does not know")
            return
        steps, firings = self.row.unroll, self.row.firings
        if steps < 1 or steps * sent != firings * taken:
            sums = f"{steps} x {sent} = {steps * sent} items go in, {firings} x {taken} = {firings * taken} come out"
            yield self._fault(MC610, f"is out of balance: {sums}")


def _calls(block: Block) -> list[str]:
    return [f"{op.node}.{op.op}" for op in every_op(block) if isinstance(op, Invoke)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"
