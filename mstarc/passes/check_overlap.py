"""Overlapping chunks: MC409 overlap-untrimmed. Takes a program; reports where an item that two chunks hold is used twice.

An op whose output has length a * n + b (b <= 0) of n items, behind a policy with L items of context, is trimmed exactly by
`last(x, a * chunk.new)` if a * L + b >= 0: the pieces abut and their sum is a * N + b. Whether L covers the op's receptive
field is not something that lengths can show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Collect, Compute, Emit, Extern, ForChunks, Invoke, Next, Op, Program, Send, Value, Walk
from mstarc.ir.declarations import Stream
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Apply, Expr, FieldOf, Index, Ref, Tensor, ValueId, Var
from mstarc.ir.visit import blocks_of, every_op, parts_of
from mstarc.passes.check_streams import stream_policy
from mstarc.passes.effects import Names
from mstarc.passes.ranges import Poly, Ranges, constant, definitions, linear_in, poly, value_names
from mstarc_runtime.abi.chunks import LeftContext, overlap


@dataclass(frozen=True, slots=True)
class _Length:
    """Length of a value in items of the chunk: slope * n + rest; None if it is not known."""

    slope: Poly
    rest: Poly


_CHUNK = _Length({(): 1}, {})


def check_overlap(program: Program, report: Collector) -> None:
    """Every statement that takes chunks of one overlapping stream; `overlap ok` on the stream allows any use."""
    names, ranges = Names(program), Ranges(program)
    for walk in program.walks:
        tracker = _Tracker(program, names, ranges, report, walk)
        for op in every_op(walk.body):
            for stream, chunk, ops in _taken(op, walk):
                tracker.follow(stream, chunk.id, ops)


def _taken(op: Op, walk: Walk) -> Iterator[tuple[str, Value, tuple[Op, ...]]]:
    """The chunks that an operation takes: of which stream, and the operations that may use them."""
    match op:
        case ForChunks(streams, items, body):
            for stream, item in zip(streams, items, strict=True):
                yield stream, item, body.ops
        case Next(streams, results):
            for stream, result in zip(streams, results, strict=True):
                if result is not None:
                    yield stream, result, walk.body.ops


class _Tracker:
    """Follows one chunk through the operations after it."""

    def __init__(self, program: Program, names: Names, ranges: Ranges, report: Collector, walk: Walk) -> None:
        self._program = program
        self._defs = definitions(walk.body)
        self._words = value_names(walk.body, walk.params)
        self._names = names
        self._ranges = ranges
        self._report = report
        self._lengths: dict[ValueId, _Length | None] = {}

    def follow(self, stream: str, chunk: ValueId, ops: tuple[Op, ...]) -> None:
        declared = self._names.streams[stream]
        policy = stream_policy(declared, self._ranges)
        left = overlap(policy) if policy is not None else 0
        if declared.overlap_ok or (left == 0 and not isinstance(policy, LeftContext)):
            return
        self._lengths = {chunk: _CHUNK}
        for top in ops:
            for op in (top, *(inner for block in blocks_of(top) for inner in every_op(block))):
                self._step(op, declared, chunk, left)

    def _step(self, op: Op, stream: Stream, chunk: ValueId, left: int) -> None:
        match op:
            case Invoke() if left and op.writes and any(self._tainted(a) for a in op.args if a is not None):
                text = f"`{op.node}.{op.op}` appends the context items of `{stream.name}` again with every chunk"
                self._fail(op, stream, text, "take the stream with `fixed`, or declare `overlap ok`")
            case Invoke() | Extern():
                self._invoke(op)
            case Compute():
                if self._tainted(op.expr):
                    self._lengths[op.result.id] = self._length_of(op.expr)
            case Emit() | Send() | Collect() if self._tainted(op.value):
                self._use(op, op.value, stream, chunk, left)
            case _:
                pass

    def _tainted(self, expr: Expr) -> bool:
        """Whether the value of an expression holds items of the chunk (its counts do not)."""
        match expr:
            case Var(ident):
                return ident in self._lengths
            case FieldOf(base, name):
                return name not in ("new", "index", "first", "tail") and self._tainted(base)
            case Index(base, _):
                return self._tainted(base)
            case Apply("last", args):
                return self._tainted(args[0])
            case _:
                return any(self._tainted(part) for part in parts_of(expr))

    def _length_of(self, expr: Expr) -> _Length | None:
        if isinstance(expr, Var):
            return self._lengths.get(expr.id)
        inside = [self._length_of(part) for part in parts_of(expr) if self._tainted(part)]
        return inside[0] if len(inside) == 1 and not isinstance(expr, (Index, Apply)) else None

    def _invoke(self, op: Invoke | Extern) -> None:
        """Lengths of the results from the op's own signature, where one tainted argument has a free first dim."""
        tainted = [i for i, a in enumerate(op.args) if a is not None and self._tainted(a)]
        if not tainted:
            return
        declared = self._names.op(op) if isinstance(op, Invoke) else None
        for position, result in enumerate(op.results):
            if result is None:
                continue
            length: _Length | None = None
            if declared is not None and len(tainted) == 1:
                argument = op.args[tainted[0]]
                inner = self._length_of(argument) if argument is not None else None
                source, target = declared.params[tainted[0]].type, declared.results[position].type
                length = self._composed(inner, source, target)
            self._lengths[result.id] = length

    def _composed(self, inner: _Length | None, source: object, target: object) -> _Length | None:
        if inner is None or not isinstance(source, Tensor) or not isinstance(target, Tensor):
            return None
        if not source.dims or not target.dims or not isinstance(source.dims[0], Ref) or source.dims[0].scope != "dim":
            return None
        line = linear_in(poly(target.dims[0], self._program), f"dim:{source.dims[0].name}")
        if line is None or inner is not _CHUNK:
            return None if line is None else _chain(inner, line)
        return _Length(*line)

    def _use(self, op: Emit | Send | Collect, value: Expr, stream: Stream, chunk: ValueId, left: int) -> None:
        """An item leaves here: it must be the new part alone."""
        if left == 0:
            whole = self._length_of(value.args[0] if isinstance(value, Apply) and value.fn == "last" else value)
            if whole is not None:
                self._check_seam(op, stream, whole, left)
            return
        if not (isinstance(value, Apply) and value.fn == "last"):
            text = f"what chunks of `{stream.name}` share is used twice: {left} items of context are not trimmed off"
            self._fail(op, stream, text, "use `last(x, k * chunk.new)`, or declare `overlap ok` on the stream")
            return
        length = self._length_of(value.args[0])
        if length is None or not length.slope:
            given = shown(value.args[0], self._words)
            text = (
                f"the length of `{given}` per item of `{stream.name}` is not known, so the trim cannot be shown exact"
            )
            self._fail(
                op, stream, text, "give the op a first dim like `a * n + b`, or declare `overlap ok` on the stream"
            )
            return
        kept = linear_in(poly(value.args[1], self._program, self._defs), f"%{chunk}.new")
        if kept is None or kept[0] != length.slope or kept[1]:
            want = f"{_text(length.slope)} * {self._words.get(int(chunk), 'chunk')}.new"
            text = f"the trim keeps `{shown(value.args[1], self._words)}`, but each new item of `{stream.name}` gives {_text(length.slope)}"
            self._fail(op, stream, text, f"keep `last(x, {want})`")
            return
        self._check_seam(op, stream, length, left)

    def _check_seam(self, op: Emit | Send | Collect, stream: Stream, length: _Length, left: int) -> None:
        slope, rest = constant(length.slope), constant(length.rest)
        if slope is None or rest is None or slope * left + rest >= 0:
            return
        sums = f"{slope} * {left} - {-rest} = {slope * left + rest}"
        text = f"the context of `{stream.name}` is too short for an exact seam: {sums} is below 0"
        self._fail(op, stream, text, "take more context to the left")

    def _fail(self, op: Invoke | Emit | Send | Collect, stream: Stream, message: str, help_text: str) -> None:
        second = (Label(stream.span, f"`{stream.name}` gives overlapping chunks"),)
        note = "context that is decoded twice and heard twice is a stutter"
        self._report.report(
            rules.MC409, message, op.span, secondary=second, notes=(note,), help=help_text, subject=stream.name
        )


def _chain(inner: _Length, line: tuple[Poly, Poly]) -> _Length | None:
    """a2 * (a1 n + b1) + b2 with numbers; symbolic chains are not followed."""
    numbers = [constant(p) for p in (inner.slope, inner.rest, *line)]
    if any(n is None for n in numbers):
        return None
    a1, b1, a2, b2 = (n if n is not None else 0 for n in numbers)
    return _Length({(): a1 * a2}, {(): a2 * b1 + b2} if a2 * b1 + b2 else {})


def _text(p: Poly) -> str:
    """A polynomial as a sum of products."""
    rows = []
    for key, value in sorted(p.items()):
        names = " * ".join(part.split(":")[-1] for part in key)
        rows.append(f"{value} * {names}" if names else f"{value}")
    return " + ".join(rows) or "0"
