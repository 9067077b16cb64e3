"""One course of a request for an estimate: which op calls it makes, how often, on how many rows, behind how many entries.

Takes a program, a shape with its parts in order, and the binding's `cost` table; gives a tree of `Step`s. What no expression of the
model says (a length that a client brings, what an extern gives) is taken from the table, or from what the caller set, and listed in
`assumed`. A condition that is not known is taken to hold. A static loop is run iteration by iteration; of a dynamic one, which runs to
its bound here, the last iteration is run, and the first and the last but one stand for half each of those before it: what an iteration
costs grows linearly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Case,
    Collect,
    Compute,
    Drop,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    Gather,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Program,
    Sample,
    Send,
    Stop,
    Together,
    When,
)
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Tensor
from mstarc.passes.effects import Names, StreamEnds
from mstarc.passes.provenance import beginning, drop, fork, write
from mstarc.passes.shape import Shape, ShapeScope, request_of
from mstarc.plan.cost_table import Cost
from mstarc.plan.course_values import Assumptions, Collected, Frame, Sizes
from mstarc.plan.sizes import BYTES
from mstarc_runtime.abi.chunks import Chunker, policy_of

STATIC = 4096  # iterations of a static loop that are run one by one
Fate: TypeAlias = Literal["runs", "same", "absent"]


@dataclass(frozen=True, slots=True)
class Step:
    """One op call, `times` times. rows: entries it takes (0: stateless), behind `length` entries, on `runs` contexts;
    it attends to `source` entries of another context across.

    batch: calls of one `parallel` have one number, 0 = none. sizes: free dims and host arguments of the op.
    """

    walk: str
    loop: str
    node: str
    op: str
    result: str
    fate: Fate
    context: str
    rows: int
    length: int
    source: int
    runs: int
    sizes: Sizes
    times: float
    batch: int


@dataclass(slots=True)
class Row:
    """Steps, rows and arms one after the other."""

    parts: list[Step | Row | Arms] = field(default_factory=list)

    def steps(self) -> Iterator[Step]:
        """Every step, in program order."""
        for part in self.parts:
            if isinstance(part, Step):
                yield part
            else:
                for row in part.arms if isinstance(part, Arms) else [part]:
                    yield from row.steps()


@dataclass(slots=True)
class Arms:
    """The arms of a `together`, at once."""

    arms: list[Row]


@dataclass(frozen=True, slots=True)
class Course:
    """root: what is called. peaks: the most entries of each context. loops: `walk.label` -> iterations.

    collected: the largest of each loop and name. assumed: name -> its value and where that comes from.
    """

    root: Row
    peaks: Mapping[str, int]
    loops: Mapping[str, float]
    collected: tuple[Collected, ...]
    assumed: Mapping[str, str]


class _Stopped(Exception):
    """A stop whose condition is known to hold."""


def course_of(program: Program, shape: Shape, cost: Cost, sizes: Mapping[str, int] | None = None) -> Course:
    """The course of a request of the shape. Raises RequestRefused for a shape that is refused, FormulaError for a bad formula."""
    run = _Run(program, shape, cost, sizes or {})
    request = request_of(program, shape.request)
    frame = Frame(run.scope, run.assumptions)
    for value in request.inputs:
        frame.bind(value)
    run.block(request.body, frame)
    return Course(run.row, run.peaks, run.loops, tuple(run.collected.values()), run.assumptions.told)


class _Run:
    """Goes through a program once. `times`: how often the present place is come to."""

    def __init__(self, program: Program, shape: Shape, cost: Cost, sizes: Mapping[str, int]) -> None:
        self.program, self.shape = program, shape
        self.names = Names(program)
        self.scope = ShapeScope(program, shape)
        self.assumptions = Assumptions(program, self.scope, cost, sizes)
        frame = Frame(self.scope, self.assumptions)
        self.on = {c.name: c.when is None or frame.eval(c.when) is not False for c in program.contexts}
        self.classes = beginning(program)
        self.lengths = dict.fromkeys(self.classes, 0)
        self.peaks = dict(self.lengths)
        self.loops: dict[str, float] = {}
        self.collected: dict[tuple[str, str, str], Collected] = {}
        self.sent: dict[str, float] = {}
        self.row = Row()
        self.times = 1.0
        self.batches = 0
        self.walk, self.loop_name = "", ""
        self.iterations: list[float] = []

    def block(self, block: Block, frame: Frame) -> None:
        for op in block.ops:
            self.op(op, frame)

    def op(self, op: Op, frame: Frame) -> None:
        match op:
            case Compute(result=result, expr=expr):
                frame.compute(result, expr)
            case Invoke():
                self.invoke(op, frame, 0, [])
            case Noise(result=result) | Sample(result=result):
                frame.bind(result)
            case Extern():
                frame.extern(op)
            case Send(stream=stream):
                self.sent[stream] = self.sent.get(stream, 0.0) + self.times
            case Next(results=results):
                for value in results:
                    if value is not None:
                        frame.bind(value)
            case Collect(value=value, name=name):
                frame.collect(name, value, self.times)
            case Stop(cond=cond):
                if frame.eval(cond) is True:
                    raise _Stopped
            case Fork() | Drop():
                self.move(op)
            case Par(body=body):
                self.parallel(body, frame)
            case When(cond=cond, body=body):
                if frame.eval(cond) is not False:
                    self.block(body, frame)
                for phi in op.results:
                    frame.alias(phi.result, phi.inner)
            case If(cond=cond, then=then, other=other):
                self.block(then if frame.eval(cond) is not False else other, frame)
            case Loop():
                self.loop(op, frame)
            case ForChunks():
                self.for_chunks(op, frame)
            case ForParts():
                for case in self.cases(op):
                    frame.bind(case.item)
                    self.block(case.body, frame)
            case CallWalk():
                self.call(op, frame)
            case Together():
                self.together(op, frame)

    # ----------------------------------------------------------------------------------------------------------- op calls

    def move(self, op: Fork | Drop) -> None:
        if isinstance(op, Drop):
            self.classes = drop(self.classes, op.contexts)
            self.lengths |= dict.fromkeys(op.contexts, 0)
        elif self.on[op.target] and self.on[op.source]:
            self.classes = fork(self.classes, op.target, op.source)
            self.lengths[op.target] = self.lengths[op.source]
            self.peaks[op.target] = max(self.peaks[op.target], self.lengths[op.target])

    def invoke(self, op: Invoke, frame: Frame, batch: int, earlier: list[tuple[Invoke, int]]) -> None:
        """One call. earlier: the calls of its `parallel` that ran, with the class of the context that each read."""
        node, decl = self.names.nodes[op.node], self.names.op(op)
        assert decl is not None, "the verifier knows every op"
        sizes = frame.op_sizes(op, decl)
        for value, port in zip(op.results, decl.results, strict=True):
            if value is not None:
                frame.bind_result(value, port, sizes)
        name = next((value.name for value in op.results if value is not None), op.op)
        written = tuple(c for c in op.writes if self.on[c])
        context = (written or op.reads or ("",))[0]
        off = not all(self.on[c] for c in op.reads) or bool(op.writes and not written)
        fate: Fate = "absent" if off else "runs"
        runs, rows, length = 1, 0, 0
        source = self.lengths[op.reads[0]] if decl.attrs.cross and op.reads else 0
        if node.kind == "transformer" and not off:
            rows, length = frame.takes(decl, sizes), self.lengths[context]
            runs = len({self.classes[c] for c in written}) or 1
            if not written:
                of = self.classes[context]
                same = any(_alike(op, other) and of == read for other, read in earlier)
                fate = "same" if same and not decl.attrs.random and not decl.attrs.samples else "runs"
                earlier.append((op, of))
            self.grow(written, rows)
        called = (self.walk, self.loop_name, op.node, op.op, name)
        self.row.parts.append(Step(*called, fate, context, rows, length, source, runs, sizes, self.times, batch))

    def grow(self, written: tuple[str, ...], rows: int) -> None:
        if written and rows:
            self.classes = write(self.classes, written)
            for context in written:
                self.lengths[context] += rows
                self.peaks[context] = max(self.peaks[context], self.lengths[context])

    def parallel(self, body: Block, frame: Frame) -> None:
        self.batches += 1
        batch, earlier = self.batches, list[tuple[Invoke, int]]()
        for op in body.ops:
            taken = not isinstance(op, When) or frame.eval(op.cond) is not False
            inner = op.body.ops if isinstance(op, When) else (op,)
            for call in inner if taken else ():
                if isinstance(call, Invoke):
                    self.invoke(call, frame, batch, earlier)
                else:
                    self.op(call, frame)
            if isinstance(op, When):
                for phi in op.results:
                    frame.alias(phi.result, phi.inner)

    # --------------------------------------------------------------------------------------------------------------- loops

    def loop(self, op: Loop, frame: Frame) -> None:
        bound = frame.eval(op.bound)
        count = int(bound) if isinstance(bound, int | float) else 1
        outer = (self.times, self.loop_name)
        self.loop_name = op.label
        shares = _shares(count, op.kind == "times")
        before, ran = dict(self.lengths), 0.0
        for carry in op.carries:
            frame.alias_expr(carry.inner, carry.init)
        try:
            for place, (i, share) in enumerate(shares):
                if place == 1 and len(shares) < count:  # behind what the iterations between have written
                    self.skip(before, count - 3)
                frame.iters[op.label] = i
                self.times = outer[0] * share
                ran += share
                self.block(op.body, frame)
                for carry in op.carries:
                    frame.alias_expr(carry.inner, carry.next)
        except _Stopped:
            pass
        self.times, self.loop_name = outer
        frame.iters.pop(op.label, None)
        name = f"{self.walk}.{op.label}"
        self.loops[name] = self.loops.get(name, 0.0) + ran * self.times
        for carry in op.carries:
            frame.alias(carry.result, carry.inner.id)
        for gather in op.gathers:
            self.gather(op, gather, frame)

    def gather(self, op: Loop, gather: Gather, frame: Frame) -> None:
        """What a loop has collected under a name."""
        times, dims = frame.gathered.get(gather.name, (0.0, ()))
        if times and isinstance(gather.result.type, Tensor):
            number, once = BYTES[gather.result.type.dtype], round(times / self.times)
            found = Collected(self.walk, op.label, gather.name, shown(op.bound), once, dims, number)
            key = (self.walk, op.label, gather.name)
            self.collected[key] = max(found, self.collected.get(key, found), key=lambda c: c.bytes)
        frame.gather(gather)

    def skip(self, before: Mapping[str, int], iterations: int) -> None:
        """Contexts as so many more iterations like the first leave them."""
        for name, length in before.items():
            self.lengths[name] += (self.lengths[name] - length) * iterations
            self.peaks[name] = max(self.peaks[name], self.lengths[name])

    def for_chunks(self, op: ForChunks, frame: Frame) -> None:
        """The body once for each length of chunk that the stream comes to."""
        stream = self.names.streams[op.streams[0]]
        args = {name: frame.eval(value) for name, value in stream.args}
        chunker: Chunker[int] = Chunker(policy_of(stream.policy, args), stream.at_end, lambda item: item)
        counts: dict[tuple[int, int], int] = {}
        for item in range(round(self.sent.get(op.streams[0], 1.0))):
            chunker.push(item)
            while chunker.ready():
                chunk = chunker.take()
                counts[len(chunk.items), chunk.new] = counts.get((len(chunk.items), chunk.new), 0) + 1
        chunker.end()
        while chunker.ready():
            chunk = chunker.take()
            counts[len(chunk.items), chunk.new] = counts.get((len(chunk.items), chunk.new), 0) + 1
        outer = (self.times, self.loop_name)
        self.loop_name = f"for {op.streams[0]}"
        for (length, new), count in counts.items():
            self.times = float(count)
            for value, name in zip(op.items, op.streams, strict=True):
                frame.bind_chunk(value, self.names.streams[name].item, length, new, chunker.single)
            self.block(op.body, frame)
        self.times, self.loop_name = outer
        self.loops[f"{self.walk}.for {op.streams[0]}"] = float(sum(counts.values()))

    # ------------------------------------------------------------------------------------------------------------ requests

    def cases(self, op: ForParts) -> list[Case]:
        """The case of each part; without kinds, once for each part."""
        kinds = {case.kind: case for case in op.cases}
        if "" in kinds:
            return [kinds[""]] * max(1, len(self.shape.parts or ()))
        return [kinds[kind] for kind in self.shape.parts or () if kind in kinds]

    def call(self, op: CallWalk, frame: Frame) -> None:
        walk = self.names.walks[op.walk]
        outer = (self.walk, self.loop_name)
        self.walk, self.loop_name = walk.name, ""
        inner = Frame(self.scope, self.assumptions)
        for value, arg in zip(walk.params, op.args, strict=True):
            inner.pass_in(value, arg, frame)
        self.block(walk.body, inner)
        self.walk, self.loop_name = outer
        for result, output in zip(op.results, walk.outputs, strict=True):
            if result is not None:
                frame.shapes[result.id] = inner.shape_of(output.value)
                frame.bind(result)

    def together(self, op: Together, frame: Frame) -> None:
        """Arms that send before those that take, so that it is known how much they take."""
        ends = StreamEnds(self.names)
        arms = {arm.label: ends.of(arm.body) for arm in op.arms}
        taken = {label: {name for kind, name in touched if kind == "take"} for label, touched in arms.items()}
        sent = {label: {name for kind, name in touched if kind == "send"} for label, touched in arms.items()}
        left, order = list(op.arms), []
        while left:
            first = next(
                (a for a in left if not any(taken[a.label] & sent[b.label] for b in left if b is not a)), left[0]
            )
            left.remove(first)
            order.append(first)
        outer, rows = self.row, {}
        for arm in order:
            self.row = rows[arm.label] = Row()
            self.block(arm.body, frame)
        self.row = outer
        self.row.parts.append(Arms([rows[arm.label] for arm in op.arms]))


def _alike(a: Invoke, b: Invoke) -> bool:
    return (a.node, a.op, a.args) == (b.node, b.op, b.args)


def _shares(count: int, static: bool) -> list[tuple[int, float]]:
    """(iteration, how many it stands for): each, or the first and the last but one for half of those before the last, and the last."""
    if (static and count <= STATIC) or count <= 3:
        return [(i, 1.0) for i in range(count)]
    return [(0, (count - 1) / 2), (count - 2, (count - 1) / 2), (count - 1, 1.0)]
