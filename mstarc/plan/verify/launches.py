"""Launches: what the plan says runs without the host in between. Takes a plan and its walks as IR; gives faults.

Three kinds of rows say so: a loop with a `region` method (its body, for many requests at once), a `whole` loop (all its steps), and a
fusion (steps of a producer's loop and firings of its consumer). A launch holds device work only (MC702), and no path of values or items
leaves it and comes back (MC701), for then it would wait for itself. Steps that run ahead of `stop when` are all cut back again (MC208).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Rule
from mstarc.ir.core import Block, Drop, Extern, ForChunks, Fork, Invoke, Loop, Next, Op, Sample, Send, Stop, Walk, When
from mstarc.ir.text.expressions import print_type
from mstarc.ir.types import Expr, Ref, Tensor, Type, Unary, Var
from mstarc.ir.visit import blocks_of, every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.plan.evaluate import parse_type
from mstarc.plan.model import LoopPlan, OpPlan, Plan
from mstarc.plan.rules import MC610
from mstarc.plan.verify.fault import Fault, line_of
from mstarc.plan.verify.flow import Flow, streams_back


def verify_launches(plan: Plan, walks: Sequence[Walk]) -> Iterator[Fault]:
    """Every loop of every walk. The tables have to hold already (`verify_bodies`)."""
    declared = Declared(plan)
    for table, walk in zip(plan.walks, walks, strict=True):
        flow = Flow(walk)
        for row, loop in zip(table.loops, (op for op in every_op(walk.body) if isinstance(op, Loop)), strict=True):
            yield from _Launch(declared, walks, walk, flow, row, loop).faults()


class Declared:
    """Declarations of a plan by name."""

    def __init__(self, plan: Plan) -> None:
        self.ops: Mapping[str, OpPlan] = {f"{node.name}.{op.name}": op for node in plan.nodes for op in node.ops}
        self.stateful = {node.name for node in plan.nodes if node.states}

    def host_args(self, op: Invoke) -> Iterator[tuple[str, Expr]]:
        """What a call is given for its host parameters."""
        for port, arg in zip(self.ops[f"{op.node}.{op.op}"].params, op.args, strict=True):
            if port.host and arg is not None:
                yield port.name, arg

    def samplers(self, op: Op) -> Iterator[str]:
        """Whose draws one operation makes."""
        match op:
            case Sample():
                yield op.sampler
            case Invoke() if self.ops[f"{op.node}.{op.op}"].samples:
                yield self.ops[f"{op.node}.{op.op}"].samples


class _Launch:
    """One loop, and what its row says of it."""

    def __init__(
        self, declared: Declared, walks: Sequence[Walk], walk: Walk, flow: Flow, row: LoopPlan, loop: Loop
    ) -> None:
        self.declared, self.walks, self.walk, self.flow = declared, walks, walk, flow
        self.row, self.loop = row, loop
        self.name = f"{walk.name}.{loop.label}"
        self.ops = list(every_op(loop.body))

    def faults(self) -> Iterator[Fault]:
        yield from self._ends()
        if self.row.ahead and self.row.checks:
            yield from self._ahead()
        impure = list(self._region()) if self.row.region else []
        yield from impure
        if self.row.whole and not impure:
            yield from self._whole()
        elif self.row.phases and not self.row.whole:
            yield self._fault(MC610, "has phases and is not one launch")

    def _fault(self, rule: Rule, what: str, op: Op | None = None) -> Fault:
        said = "" if op is None else line_of(op)
        return Fault(rule, f"loop `{self.name}` {what}", self.walk.name, self.loop.label, said)

    # ------------------------------------------------------------------------------------------------------- running ahead

    def _own_stops(self) -> list[Stop]:
        """Its stops, those of loops inside it aside."""
        inner = {id(op) for loop in self.ops if isinstance(loop, Loop) for op in every_op(loop.body)}
        return [op for op in self.ops if isinstance(op, Stop) and id(op) not in inner]

    def _ends(self) -> Iterator[Fault]:
        checks = sum(self.flow.on_device(stop.cond) for stop in self._own_stops())
        if self.row.checks != checks:
            yield self._fault(MC610, f"is said to have {self.row.checks} stops on device values, and has {checks}")

    def _ahead(self) -> Iterator[Fault]:
        """What an iteration past the end did has to be undone, all of it and once."""
        for op in self.ops:
            what = self._lasting(op)
            if what:
                yield self._fault(rules.MC208, f"is said to run ahead of its end, but {what}", op)
        contexts = {name for op in self.ops if isinstance(op, Invoke) for name in op.writes}
        due = [*sorted(contexts), *sorted({name for op in self.ops for name in self.declared.samplers(op)})]
        for name in dict.fromkeys((*due, *self.row.rollback)):
            if self.row.rollback.count(name) < due.count(name):
                yield self._fault(rules.MC208, f"runs ahead of its end, and nothing cuts `{name}` back")
            elif self.row.rollback.count(name) > due.count(name):
                yield self._fault(MC610, f"cuts `{name}` back more often than it changes it")

    def _lasting(self, op: Op) -> str:
        """An effect that no length brings back, in words; "" if there is none."""
        match op:
            case Extern():
                return f"extern `{op.name}` has run by then"
            case Next() | ForChunks():
                return f"an item of `{op.streams[0]}` is gone by then"
            case Fork() | Drop():
                return "a context is replaced by then"
            case Invoke() if op.node in self.declared.stateful:
                return f"`{op.node}` keeps a state from call to call"
            case Loop() if any(
                isinstance(inner, Stop) and self.flow.on_device(inner.cond) for inner in every_op(op.body)
            ):
                return f"loop `{op.label}` in it ends on a device value of its own"
        return ""

    # ------------------------------------------------------------------------------------------------------- regions

    def _region(self) -> Iterator[Fault]:
        for op in self._reached(self.loop.body, {}):
            what = self._impure(op) or ("" if self.row.ragged else self._unsized(op))
            if what:
                yield self._broken(op, f"is said to run for many requests at once, but {what}")
        if sum(isinstance(op, Send) for op in self.loop.body.ops) > 1:
            yield self._fault(
                rules.MC702, "is said to run for many requests at once, but sends more than one item each step"
            )
        carried = [] if self.row.ragged else [print_type(carry.inner.type) for carry in self.loop.carries]
        if self.row.ragged and (self.row.fixed or all(map(sized, self._kinds()))):
            yield self._fault(MC610, "is said to keep values request by request, and they have one size")
        if self.row.carry != carried:
            yield self._fault(MC610, f"is said to carry {self.row.carry}, and carries {carried}")
        for text in (*self.row.carry, *self.row.fixed):
            if not sized(parse_type(text)):
                yield self._fault(
                    rules.MC702, f"is said to take a `{text}`, whose size differs from request to request"
                )

    def _kinds(self) -> Iterator[Type]:
        """The types of what it carries, makes and takes from outside."""
        yield from (carry.inner.type for carry in self.loop.carries)
        yield from (value.type for op in self.ops for value in results_of(op))
        yield from (self.flow.kind(ident) for op in self.ops for expr in exprs_of(op) for ident in vars_of(expr))

    def _reached(self, block: Block, assumed: Mapping[Expr, bool]) -> Iterator[Op]:
        """The operations of a block, but those behind a condition and its opposite."""
        for op in block.ops:
            within = dict(assumed)
            if isinstance(op, When):
                cond, wanted = _positive(self.flow.inlined(op.cond))
                if within.setdefault(cond, wanted) != wanted:
                    continue
            yield op
            for inner in blocks_of(op):
                yield from self._reached(inner, within)

    def _impure(self, op: Op) -> str:
        """What of one operation a device does not do by itself; "" if nothing."""
        match op:
            case Extern():
                return f"extern `{op.name}` runs on the host"
            case Next() | ForChunks():
                return f"it waits for items of {_listed(op.streams)}"
            case Fork() | Drop():
                return "contexts are forked or dropped in it"
            case Loop():
                return f"loop `{op.label}` is inside it"
            case Invoke():
                return next(
                    (f"`{op.node}.{op.op}` takes the host value `{n}`" for n, _ in self.declared.host_args(op)), ""
                )
            case When() if not self._decided(op.cond):
                return "which way a `when` of it goes is not known before it starts"
        return ""

    def _unsized(self, op: Op) -> str:
        """A result of a call whose size differs from request to request, in words."""
        if not isinstance(op, Invoke):
            return ""
        free = [value.name for value in op.results if value is not None and not sized(value.type)]
        return f"the size of `{free[0]}` differs from request to request" if free else ""

    def _decided(self, cond: Expr) -> bool:
        """Whether a condition is known before the loop begins, for each of its steps if it counts them."""
        known = not self.flow.on_device(cond) and not self.flow.depends_on_carry(cond, self.loop)
        counts = Ref("iter", self.loop.label) in self.flow.leaves(cond)
        return known and (self.loop.kind == "times" or not counts)

    def _broken(self, op: Op, what: str) -> Fault:
        """MC701 if what it makes of values of the launch comes back to the launch, else MC702."""
        if isinstance(op, Extern) and self.flow.passes_through(op, self.loop):
            return self._fault(rules.MC701, f"{what}, and what it gives comes back", op)
        if isinstance(op, (Next, ForChunks)):
            sent = {inner.stream for inner in self.ops if isinstance(inner, Send)}
            way = streams_back(self.walks, sent, set(op.streams), self.walk.name)
            if way:
                return self._fault(rules.MC701, f"{what}, which come of what it sends: {' -> '.join(way)}", op)
        return self._fault(rules.MC702, what, op)

    # ----------------------------------------------------------------------------------------------------- all steps at once

    def _whole(self) -> Iterator[Fault]:
        if self.loop.kind != "times":
            yield self._fault(rules.MC702, "is said to be one launch, but only the device knows how many steps it has")
            return
        impure = [(op, what) for op in self.ops if (what := self._between_steps(op))]
        for op, what in impure:
            yield self._broken(op, f"is said to be one launch, but {what}")
        if not impure:
            yield from self._phases()

    def _between_steps(self, op: Op) -> str:
        match op:
            case Stop() if op in self._own_stops():
                return "it can end before its last step"
            case Loop():
                return f"loop `{op.label}` in it has no fixed number of steps" if op.kind == "max" else ""
            case Invoke():
                moving = [name for name, arg in self.declared.host_args(op) if self._moves(arg)]
                return f"`{op.node}.{op.op}` takes another `{moving[0]}` each step" if moving else ""
            case When():
                return (
                    "which way a `when` of it goes is known on the device only" if self.flow.on_device(op.cond) else ""
                )
        return self._impure(op)

    def _moves(self, expr: Expr) -> bool:
        """Whether an expression has another value from step to step: it reads a counter, or what is carried."""
        counts = any(isinstance(part, Ref) and part.scope == "iter" for part in self.flow.leaves(expr))
        return counts or self.flow.depends_on_carry(expr, self.loop)

    def _phases(self) -> Iterator[Fault]:
        """The calls of a step, for each way in which conditions over counters come out, in the order of the body."""
        changing = dict.fromkeys(
            _positive(op.cond)[0] for op in self.ops if isinstance(op, When) and self._moves(op.cond)
        )
        if len(self.row.conditions) != len(changing):
            said = len(self.row.conditions)
            yield self._fault(
                MC610, f"is said to have {said} conditions that change from step to step, and has {len(changing)}"
            )
            return
        due = {
            holds: self._calls(self.loop.body, dict(zip(changing, holds, strict=True)))
            for holds in product((True, False), repeat=len(changing))
        }
        for phase in self.row.phases:
            if phase.calls != due.get(tuple(phase.holds)):
                yield self._fault(
                    MC610, f"calls {_listed(phase.calls)} in a phase, and its body does not, in this order"
                )
        missing = [calls for calls in due.values() if calls not in [phase.calls for phase in self.row.phases]]
        if missing:
            yield self._fault(MC610, f"has no phase that calls {_listed(missing[0])}")

    def _calls(self, block: Block, truth: Mapping[Expr, bool]) -> list[str]:
        found: list[str] = []
        for op in block.ops:
            if isinstance(op, When):
                cond, wanted = _positive(op.cond)
                if truth.get(cond, wanted) != wanted:
                    continue
            if isinstance(op, Invoke):
                on = (*op.writes, *op.reads)
                found.append(f"{op.node}.{op.op}" + (f" on {', '.join(on)}" if on else ""))
            for inner in blocks_of(op):
                found += self._calls(inner, truth)
        return found


def _positive(cond: Expr) -> tuple[Expr, bool]:
    return (cond.x, False) if isinstance(cond, Unary) and cond.op == "not" else (cond, True)


def sized(kind: Type) -> bool:
    """Whether values of a type have one size in every request: its dims are made of numbers and configs."""
    if not isinstance(kind, Tensor) or kind.optional:
        return False
    leaves = [part for dim in kind.dims for part in every_expr(dim)]
    return not any(isinstance(part, Var) or (isinstance(part, Ref) and part.scope != "config") for part in leaves)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"
