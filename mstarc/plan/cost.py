"""What a request costs under a placement: bytes, FLOPs and seconds of its calls, its critical path, and the memory of each rank.

Takes a linked program, the program it was made from, a shape and the binding's `cost` table; gives an `Estimate`. A call takes the
longer of its bytes at the chip's bandwidth and its FLOPs at the chip's rate; calls of one `parallel` on one rank are one batch, which
reads the weights once. It is a floor: host work, launches and what is not weights, KV entries or matrix products count nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from mstarc.ir.core import Invoke, Program
from mstarc.ir.declarations import Node
from mstarc.ir.types import Ref, Tensor
from mstarc.ir.visit import every_op
from mstarc.passes.shape import Shape
from mstarc.plan.chips import CHIPS, Chip, number_bytes
from mstarc.plan.closed_forms import NodeCosts
from mstarc.plan.cost_table import Cost
from mstarc.plan.course import Arms, Course, Row, Step, course_of
from mstarc.plan.course_values import Collected
from mstarc.plan.placement import Placement
from mstarc.plan.resident import held_by, weights_of
from mstarc_runtime.abi.linked import Linked


@dataclass(frozen=True, slots=True)
class CallCost:
    """All calls of one op in one loop of one walk ("" = outside loops). seconds: None without a chip or a number that is not known."""

    ranks: tuple[int, ...]
    walk: str
    loop: str
    op: str
    calls: float
    rows: float
    flops: float | None
    bytes: float | None
    seconds: float | None
    bound: str
    source: str


@dataclass(frozen=True, slots=True)
class BranchCount:
    """Iterations of a loop that have so many branches. `reused`: branches whose value is another's."""

    walk: str
    loop: str
    iterations: float
    branches: tuple[str, ...]
    reused: tuple[str, ...] = ()

    @property
    def steps(self) -> float:
        return self.iterations * len(self.branches)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank. contexts: of one request with every context at its max; request: at the longest that this one comes to."""

    rank: int
    weights: float | None
    contexts: float
    request: float
    activations: float
    limit: float | None
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """Calls of one op in a `parallel`, on one rank. binds: the value of the first."""

    binds: str
    op: str
    rank: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Parallel:
    """One `parallel` whose calls are on several ranks, with the time of each batch."""

    walk: str
    calls: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds: the critical path. busy: seconds of each rank. unknown: ops whose costs are not known."""

    shape: str
    chips: Mapping[int, str]
    branches: tuple[BranchCount, ...]
    calls: tuple[CallCost, ...]
    memory: tuple[Memory, ...]
    collected: tuple[Collected, ...]
    flops: float
    bytes: float
    seconds: float | None
    busy: Mapping[int, float]
    unknown: tuple[str, ...]
    assumed: Mapping[str, str]
    loops: Mapping[str, float]
    parallels: tuple[Parallel, ...] = ()


def estimate(
    program: Program,
    linked: Linked,
    placement: Placement,
    shape: Shape,
    cost: Cost,
    sections: Mapping[str, Mapping[str, Any]],
    sizes: Mapping[str, int] | None = None,
) -> Estimate:
    """The costs of one request. Raises RequestRefused and FormulaError."""
    return _Estimator(linked, placement, cost, sections, program).estimate(
        course_of(program, shape, cost, sizes), shape
    )


class _Batch:
    """Calls that a node gets at once, with what they cost together."""

    def __init__(self, steps: list[Step], of: _Estimator) -> None:
        self.steps, self.first = steps, steps[0]
        self.ranks = of.ranks_of(self.first)
        self.rank = self.ranks[0]
        self.ran = [step for step in steps if step.fate == "runs"]
        node = of.nodes[self.first.node]
        number = of.number(self.rank, node.node.name)
        works = [(node.work(step, number), step.runs) for step in self.ran]
        weights = max((w.weights for w, _ in works if w.weights is not None), default=None)
        self.source = works[0][0].source if works else ""
        self.flops: float | None = sum((w.flops or 0.0) * runs for w, runs in works)
        self.bytes: float | None = (weights or 0.0) * number + sum(w.entries * runs for w, runs in works)
        if any(w.flops is None for w, _ in works):
            self.flops = None
        if any(w.weights is None for w, _ in works):
            self.bytes = None
        self.activations = sum(node.activations(step, number) * step.runs for step in self.ran)
        self.seconds, self.bound = _time(self.bytes, self.flops, of.chip(self.rank)) if works else (0.0, "")
        if self.seconds is not None:
            self.seconds /= len(self.ranks)  # a tensor parallel group shares weights, heads and products


def _time(count: float | None, flops: float | None, chip: Chip | None) -> tuple[float | None, str]:
    """The longer of two floors, and which it is."""
    if chip is None or count is None or flops is None:
        return None, ""
    by_bytes, by_flops = count / chip.bandwidth, flops / chip.rate
    return (by_bytes, "memory") if by_bytes > by_flops else (by_flops, "compute")


class _Estimator:
    def __init__(
        self,
        linked: Linked,
        placement: Placement,
        cost: Cost,
        sections: Mapping[str, Mapping[str, Any]],
        program: Program,
    ) -> None:
        self.linked, self.placement = linked, placement
        logits = {node.name: _logits(node, linked) for node in program.nodes}
        self.nodes = {node.name: NodeCosts(node, linked, cost, sections, logits[node.name]) for node in linked.nodes}
        self.program = program
        self.precisions = {node.name: node.precision for node in program.nodes}
        self.devices = {rank.rank: rank.device for rank in linked.ranks}

    def ranks_of(self, step: Step) -> tuple[int, ...]:
        """Where a call runs; several ranks are a tensor parallel group."""
        return self.placement.ranks_of(step.node, step.op, step.walk, [step.result])

    def chip(self, rank: int) -> Chip | None:
        return CHIPS.get(self.placement.ranks[rank].chip)

    def number(self, rank: int, node: str) -> int:
        """Bytes of one number on a rank."""
        return number_bytes(self.devices[rank], self.precisions[node])

    def estimate(self, course: Course, shape: Shape) -> Estimate:
        batches = list(self.batches(course.root))
        calls = tuple(self.calls(batches))
        path = self.path(course.root)
        busy = dict.fromkeys(self.devices, 0.0)
        _add_busy(busy, batches)
        unknown = sorted({call.op for call in calls if call.flops is None or call.bytes is None})
        return Estimate(
            shape.told(),
            {rank: chip.name for rank in self.devices if (chip := self.chip(rank)) is not None},
            tuple(branch_counts(course)),
            calls,
            tuple(self.memory(course, batches)),
            course.collected,
            sum(call.flops or 0.0 for call in calls),
            sum(call.bytes or 0.0 for call in calls),
            path,
            busy,
            tuple(unknown),
            course.assumed,
            course.loops,
            tuple(dict.fromkeys(parallels(batches))),
        )

    # --------------------------------------------------------------------------------------------------------------- calls

    def batches(self, row: Row) -> Iterator[_Batch]:
        """Every batch, in program order."""
        for part in self.units(row):
            if isinstance(part, _Batch):
                yield part
            else:
                for inner in part.arms if isinstance(part, Arms) else [part]:
                    yield from self.batches(inner)

    def units(self, row: Row) -> Iterator[_Batch | Row | Arms]:
        """The parts of a row, with the calls of one op in one `parallel` together."""
        for key, group in groupby(
            row.parts, lambda part: isinstance(part, Step) and part.batch and (part.node, part.op)
        ):
            parts = list(group)
            steps = [part for part in parts if isinstance(part, Step)]
            if key:
                for _, same in groupby(steps, lambda step: (step.batch, self.ranks_of(step))):
                    yield _Batch(list(same), self)
            else:
                for part in parts:
                    yield _Batch([part], self) if isinstance(part, Step) else part

    def calls(self, batches: Iterable[_Batch]) -> Iterator[CallCost]:
        """Batches by walk, loop, op and ranks, in the order in which they are first come to."""
        groups: dict[tuple[str, str, str, tuple[int, ...]], list[_Batch]] = {}
        for batch in batches:
            if batch.ran:
                step = batch.first
                groups.setdefault((step.walk, step.loop, f"{step.node}.{step.op}", batch.ranks), []).append(batch)
        for (walk, loop, op, ranks), found in groups.items():
            flops, count, seconds = (
                _total((getattr(b, name), b.first.times) for b in found) for name in ("flops", "bytes", "seconds")
            )
            yield CallCost(
                ranks,
                walk,
                loop,
                op,
                sum(step.times * step.runs for b in found for step in b.ran),
                sum(step.times * step.runs * step.rows for b in found for step in b.ran),
                flops,
                count,
                seconds,
                _bound(found),
                found[0].source,
            )

    def path(self, row: Row) -> float | None:
        """Seconds of the critical path: one after the other, arms at once, but a rank does one thing at a time."""
        total = 0.0
        for number, group in groupby(self.units(row), lambda unit: isinstance(unit, _Batch) and unit.first.batch):
            parts = list(group)
            batches = [part for part in parts if isinstance(part, _Batch)]
            if number:  # one `parallel`: its ranks work at once
                if any(batch.seconds is None for batch in batches):
                    return None
                at_once: dict[int, float] = {}
                _add_busy(at_once, batches)
                total += max(at_once.values(), default=0.0)
                continue
            found = self.one_by_one(parts)
            if found is None:
                return None
            total += found
        return total

    def one_by_one(self, parts: list[_Batch | Row | Arms]) -> float | None:
        """Seconds of parts that follow each other."""
        total = 0.0
        for part in parts:
            if isinstance(part, Arms):
                found = [self.path(arm) for arm in part.arms]
                ranks: dict[int, float] = {}
                _add_busy(ranks, (b for arm in part.arms for b in self.batches(arm)))
                if any(seconds is None for seconds in found):
                    return None
                total += max([*(seconds or 0.0 for seconds in found), *ranks.values()], default=0.0)
            elif isinstance(part, _Batch):
                if part.seconds is None:
                    return None
                total += part.seconds * part.first.times
        return total

    # -------------------------------------------------------------------------------------------------------------- memory

    def memory(self, course: Course, batches: list[_Batch]) -> Iterator[Memory]:
        calls = [
            (op, self.placement.ranks_of(op.node, op.op, walk.name, [v.name for v in op.results if v is not None]))
            for walk in self.program.walks
            for op in every_op(walk.body)
            if isinstance(op, Invoke)
        ]
        for rank in self.devices:
            held = held_by(rank, calls, self.linked, number_bytes(self.devices[rank]))
            weights = weights_of(held.nodes, self.nodes, self.linked, partial(self.number, rank))
            chip = self.chip(rank)
            yield Memory(
                rank,
                None if weights.unknown else weights.bytes,
                sum(entry * _most(self.linked, name) for name, entry in held.contexts.items()),
                sum(entry * course.peaks[name] for name, entry in held.contexts.items()),
                max((b.activations for b in batches if rank in b.ranks), default=0.0),
                chip.memory if chip is not None else None,
                (*weights.sources, *(f"{name}: {why}" for name, why in weights.unknown.items())),
            )


def _logits(node: Node, linked: Linked) -> set[str]:
    """Ops with a result whose last dim is the node's vocabulary."""
    vocab = next(n.config.get("vocab_size") for n in linked.nodes if n.name == node.name)
    found = set()
    for op in node.ops:
        for port in op.results:
            last = port.type.dims[-1] if isinstance(port.type, Tensor) and port.type.dims else None
            if isinstance(last, Ref) and last.scope == "config" and vocab == linked.config.get(last.name):
                found.add(op.name)
    return found if vocab is not None else set()


def _add_busy(busy: dict[int, float], batches: Iterable[_Batch]) -> None:
    """Add the seconds of batches to their ranks."""
    for batch in batches:
        for rank in batch.ranks:
            busy[rank] = busy.get(rank, 0.0) + (batch.seconds or 0.0) * batch.first.times


def _most(linked: Linked, context: str) -> int:
    return next(c.max for c in linked.contexts if c.name == context)


def _total(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    total = 0.0
    for value, times in pairs:
        if value is None:
            return None
        total += value * times
    return total


def _bound(batches: Iterable[_Batch]) -> str:
    """What bounds the batches: `compute`, `memory`, or both words if it differs."""
    return ", ".join(dict.fromkeys(b.bound for b in batches if b.bound))


def parallels(batches: Iterable[_Batch]) -> Iterator[Parallel]:
    """Every `parallel` that is spread over ranks and whose times are known, as often as it runs."""
    for number, group in groupby(batches, lambda batch: batch.first.batch):
        found = [batch for batch in group if batch.ran]
        shares = [
            Share(batch.first.result, f"{batch.first.node}.{batch.first.op}", batch.rank, batch.seconds)
            for batch in found
            if batch.seconds
        ]
        if number and len(shares) == len(found) and len({share.rank for share in shares}) > 1:
            yield Parallel(found[0].first.walk, tuple(shares))


def branch_counts(course: Course) -> Iterator[BranchCount]:
    """How often each loop runs with which branches of its `parallel`, in the order of first coming to it."""
    counts: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], float] = {}
    for batch, group in groupby(course.root.steps(), lambda step: step.batch):
        steps = list(group)
        if batch:
            ran = tuple(step.result for step in steps if step.fate == "runs")
            same = tuple(step.result for step in steps if step.fate == "same")
            place = (steps[0].walk, steps[0].loop, ran, same)
            counts[place] = counts.get(place, 0.0) + steps[0].times
    for (walk, loop, ran, same), times in counts.items():
        yield BranchCount(walk, loop, times, ran, same)
