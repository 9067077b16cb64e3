"""Runs the arms of a request without their computing: only sends, takes and ends, with the declared policies and capacities.

Takes a request and a course (`scenario`); gives a `Stuck` or a `Surplus` if the arms cannot go on, else None. The arms are a Kahn
network, so within one course no order of running them changes the outcome, and one order is enough.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Compute,
    ForChunks,
    ForParts,
    If,
    Loop,
    Next,
    Op,
    Par,
    Send,
    Stop,
    Together,
    When,
)
from mstarc.ir.declarations import Stream
from mstarc.ir.fold import ABSENT, FoldError, fold
from mstarc.ir.types import Binary, Expr, Unary, Var
from mstarc.ir.visit import every_op
from mstarc.passes.effects import Ends, Names, StreamEnds
from mstarc.passes.scenario import Frame, Opaque, OutOfSteps, Stuck, Surplus, Wait
from mstarc.source import Span
from mstarc_runtime.abi.chunks import Chunker, Phrase, Policy


@dataclass(frozen=True, slots=True)
class _SendOne:
    stream: str
    span: Span


@dataclass(frozen=True, slots=True)
class _TakeAll:
    streams: tuple[str, ...]
    span: Span
    loop: bool


@dataclass(frozen=True, slots=True)
class _Close:
    ends: Ends


@dataclass(frozen=True, slots=True)
class _Spawn:
    op: Together
    frame: Frame


_Event: TypeAlias = _SendOne | _TakeAll | _Close | _Spawn
_Steps: TypeAlias = Generator[_Event, Any, bool]


@dataclass
class _Line:
    """A live stream: who sends, who takes, and what is in it."""

    chunker: Chunker[int]
    capacity: int
    sender: str
    taker: str
    closed: bool = False
    sink: bool = False
    taken: int = 0


@dataclass
class _Task:
    label: str
    steps: _Steps
    lines: dict[str, _Line]  # by stream, those that this arm can reach
    event: _Event | None = None
    reply: Any = None
    children: list[_Task] = field(default_factory=list)
    done: bool = False


class Schedule:
    """One course of one request.

    A stream ends after the last walk call of its arm that may send on it. What is sent to a taker is discarded once its arm has
    ended; with `sinks_early`, already after its last walk call that may take.
    """

    def __init__(
        self,
        names: Names,
        policies: dict[str, Policy],
        ends: StreamEnds,
        frame: Frame,
        budget: list[int],
        sinks_early: bool = False,
    ) -> None:
        self._names = names
        self._sinks_early = sinks_early
        self._ends = ends
        self._policies = policies
        self._frame = frame
        self._budget = budget
        self._tasks: list[_Task] = []
        self._found: Surplus | None = None
        self._known: dict[int, list[tuple[int, Op]]] = {}

    def run(self) -> Stuck | Surplus | None:
        """Until all has ended, or no arm can go on."""
        body = self._frame.request.body
        self._tasks = [_Task("request", self._block(body, self._frame, frozenset(), True), {})]
        while True:
            moved = False
            for task in list(self._tasks):
                while not task.done and self._step(task):
                    moved = True
                    if self._found:
                        return self._found
            if all(task.done for task in self._tasks):
                return None
            if not moved:
                return self._stuck()

    # ------------------------------------------------------------------------------------------------------- one step

    def _step(self, task: _Task) -> bool:
        """Let a task run to its next event if the one it stands at is granted; whether it moved."""
        if task.event is not None and not self._grant(task, task.event):
            return False
        self._budget[0] -= 1
        if self._budget[0] < 0:
            raise OutOfSteps
        try:
            task.event = task.steps.send(task.reply)
            task.reply = None
        except StopIteration:
            task.done, task.event = True, None
            self._ended(task)
        return True

    def _grant(self, task: _Task, event: _Event) -> bool:
        if isinstance(event, _SendOne):
            return self._send(event.stream, task.lines.get(event.stream))
        if isinstance(event, _TakeAll):
            return self._take(task, event)
        if isinstance(event, _Close):
            for kind, stream in event.ends:
                if kind == "send":
                    self._close(task.lines.get(stream), task.label)
                elif self._sinks_early:
                    self._sink(task.lines.get(stream), task.label)
            return True
        if not task.children:
            task.children = self._spawn(task, event)
        if not all(child.done for child in task.children):
            return False
        task.children = []
        return True

    def _send(self, stream: str, line: _Line | None) -> bool:
        if line is None or line.sink or line.closed:
            return True
        if line.chunker.held >= line.capacity:
            return False
        cut = isinstance(line.chunker.policy, Phrase) and self._frame.choices.pick(f"cut {stream}", (False, True))
        line.chunker.push(0, cut)
        return True

    def _take(self, task: _Task, event: _TakeAll) -> bool:
        lines = {s: task.lines[s] for s in event.streams if s in task.lines}
        if any(not line.chunker.ready() and not line.closed for line in lines.values()):
            return False
        ended = [s for s in event.streams if s not in lines or not lines[s].chunker.ready()]
        more = [s for s in event.streams if s not in ended]
        tolerant = all(self._names.streams[s].after_end_empty for s in event.streams)
        if ended and more and not tolerant:
            self._found = Surplus("joint", ended[0], event.span, lines[more[0]].taken, tuple(more))
        elif ended and not event.loop and not tolerant and ended[0] in lines:
            self._found = Surplus("next", ended[0], event.span, lines[ended[0]].taken)
        for stream in more:
            lines[stream].chunker.take()
            lines[stream].taken += 1
        task.reply = [None if s in ended else True for s in event.streams]
        return True

    def _close(self, line: _Line | None, label: str) -> None:
        if line is not None and not line.closed and line.sender == label:
            line.closed = True
            line.chunker.end()

    def _ended(self, task: _Task) -> None:
        """An arm has ended: what it sends on ends, and what is sent to it is discarded."""
        for line in task.lines.values():
            self._close(line, task.label)
            self._sink(line, task.label)

    def _sink(self, line: _Line | None, label: str) -> None:
        if line is not None and line.taker == label:
            line.sink = True

    def _spawn(self, parent: _Task, event: _Spawn) -> list[_Task]:
        """Tasks for the arms, with the streams that live between them."""
        arms = [(arm.label, arm.body, self._ends.of(arm.body)) for arm in event.op.arms]
        lines = dict(parent.lines)
        for stream in self._names.streams.values():
            sender = next((label for label, _, ends in arms if ("send", stream.name) in ends), None)
            taker = next((label for label, _, ends in arms if ("take", stream.name) in ends), None)
            if sender is not None and taker is not None and sender != taker:
                lines[stream.name] = self._line(stream, sender, taker)
        tasks = [_Task(label, self._block(body, event.frame, frozenset(), True), lines) for label, body, _ in arms]
        self._tasks += tasks
        return tasks

    def _line(self, stream: Stream, sender: str, taker: str) -> _Line:
        chunker: Chunker[int] = Chunker(self._policies[stream.name], stream.at_end)
        try:
            capacity = int(fold(stream.capacity, self._frame))
        except FoldError:
            capacity = 1 << 30
        return _Line(chunker, capacity, sender, taker)

    def _stuck(self) -> Stuck:
        waits = []
        for task in self._tasks:
            event = task.event
            if isinstance(event, _SendOne):
                line = task.lines[event.stream]
                waits.append(Wait(task.label, "room", event.stream, event.span, line.chunker.held, line.capacity))
            elif isinstance(event, _TakeAll):
                for stream in event.streams:
                    line = task.lines[stream]
                    if not line.chunker.ready() and not line.closed:
                        waits.append(Wait(task.label, "item", stream, event.span, line.chunker.held, line.capacity))
        return Stuck(tuple(waits))

    # ------------------------------------------------------------------------------------------- from structure to events

    def _block(self, block: Block, frame: Frame, later: Ends, top: bool) -> _Steps:
        """Events of a block; True if a `stop when` fired. `later`: streams that this arm may send on after the block."""
        for position, op in self._telling(block):
            if isinstance(op, Stop):
                if self._stops(op, frame):
                    return True
                continue
            if isinstance(op, Compute):
                frame.values[op.result.id] = _value(op.expr, frame)
                continue
            if isinstance(op, Send):
                declared = self._names.streams[op.stream]
                if declared.where is None or frame.choices.pick(f"where {op.stream}", (True, False)):
                    yield _SendOne(op.stream, op.span)
                continue
            rest = later | self._ends.of(block, position + 1) if top else later
            if (yield from self._op(op, frame, rest, top)):
                return True
        return False

    def _telling(self, block: Block) -> list[tuple[int, Op]]:
        """The operations of a block that decide about events, with their places."""
        found = self._known.get(id(block))
        if found is None:
            found = [(i, op) for i, op in enumerate(block.ops) if self._tells(op)]
            self._known[id(block)] = found
        return found

    def _tells(self, op: Op) -> bool:
        """Whether an operation, or what it holds, is an event or decides about one. What touches no stream, and leaves no value that a
        condition can ask about, takes part in no course.
        """
        match op:
            case Send() | Next() | ForChunks() | Stop() | When() | Together():
                return True
            case If() | ForParts() | CallWalk():
                return bool(self._ends.of(Block((op,)))) or any(isinstance(o, Together) for o in every_op(Block((op,))))
            case Compute():
                return op.result.phase == "host"
            case Loop() | Par():
                return any(
                    isinstance(inner, (Send, Next, ForChunks, Together, CallWalk)) for inner in every_op(op.body)
                )
            case _:
                return False

    def _op(self, op: Op, frame: Frame, later: Ends, top: bool) -> _Steps:
        match op:
            case CallWalk():
                return self._call(op, frame, later)
            case Loop():
                return self._loop(op, frame, later)
            case When():
                return self._when(op, frame, later)
            case Next():
                return self._next(op, frame)
            case ForChunks():
                return self._chunks(op, frame, later)
            case Par(body):
                return self._block(body, frame, later, False)
            case If():
                return self._block(op.then if frame.truth(op.cond) else op.other, frame, later, top)
            case ForParts():
                return self._parts(op, frame, later)
            case Together():
                return self._together(op, frame)
        raise AssertionError(f"{type(op).__name__} tells nothing")

    def _together(self, op: Together, frame: Frame) -> _Steps:
        yield _Spawn(op, frame)
        return False

    def _next(self, op: Next, frame: Frame) -> _Steps:
        got = yield _TakeAll(op.streams, op.span, False)
        for result, item in zip(op.results, got, strict=True):
            if result is not None:
                frame.values[result.id] = ABSENT if item is None else Opaque(f"{frame.unit}%{result.id}")
        return False

    def _call(self, op: CallWalk, frame: Frame, later: Ends) -> _Steps:
        walk = self._names.walks[op.walk]
        inner = frame.enter(walk.name, tuple((v.id, v.type) for v in walk.params), op.args)
        yield from self._block(walk.body, inner, frozenset(), False)
        yield _Close(self._ends.of(walk.body) - later)
        return False

    def _when(self, op: When, frame: Frame, later: Ends) -> _Steps:
        taken = frame.truth(op.cond)
        stopped = (yield from self._block(op.body, frame, later, False)) if taken else False
        for phi in op.results:
            inner = frame.values.get(phi.inner, Opaque(f"{frame.unit}%{phi.inner}"))
            frame.values[phi.result.id] = inner if taken else ABSENT
        return stopped

    def _chunks(self, op: ForChunks, frame: Frame, later: Ends) -> _Steps:
        while True:
            got = yield _TakeAll(op.streams, op.span, True)
            if any(item is None for item in got):
                return False
            if (yield from self._block(op.body, frame, later, False)):
                return True

    def _parts(self, op: ForParts, frame: Frame, later: Ends) -> _Steps:
        key = frame.key(op.over)
        again = later.union(*(self._ends.of(case.body) for case in op.cases))
        number = frame.choices.pick(f"parts {key}", (2, 0, 1), "{} parts")
        for position in range(number):
            kinds = tuple(range(len(op.cases)))
            case = op.cases[frame.choices.pick(f"kind {key}.{position}.{len(kinds)}", kinds) if len(kinds) > 1 else 0]
            frame.values[case.item.id] = Opaque(f"{key}.{position}")
            yield from self._block(case.body, frame, again, True)
        return False

    def _loop(self, op: Loop, frame: Frame, later: Ends) -> _Steps:
        host = [carry for carry in op.carries if carry.inner.phase == "host"]
        for carry in host:
            frame.values[carry.inner.id] = _value(carry.init, frame)
        for count in range(frame.whole(op.bound)):
            frame.iters[op.label] = count
            if (yield from self._block(op.body, frame, later, False)):
                break
            carried = [_value(carry.next, frame) for carry in host]
            frame.values.update(zip((carry.inner.id for carry in host), carried, strict=True))
        frame.iters.pop(op.label, None)
        for carry in host:
            frame.values[carry.result.id] = frame.values[carry.inner.id]
        return False

    def _stops(self, op: Stop, frame: Frame) -> bool:
        """Whether a `stop when` fires. A flag of the device does in some iteration of the innermost loop, or never."""
        if id(op) not in frame.stops:
            try:
                return bool(fold(op.cond, frame))
            except (FoldError, TypeError):
                pass
        label, count = next(reversed(frame.iters.items()), ("", 0))
        if id(op) in frame.stops:
            when = frame.stops[id(op)]
        else:
            words = "a stop of `" + label + "` in iteration {}"
            when = frame.choices.pick(f"stop {frame.unit}.{label}.{op.span.start}", (None, 0, 1, 2, 5), words)
            if _stays_open(op.cond, frame):
                frame.stops[id(op)] = when
        return when is not None and count >= when


def _stays_open(cond: Expr, frame: Frame) -> bool:
    """Whether a condition has no value in any iteration: what it evaluates first needs a value of the device."""
    match cond:
        case Var(ident):
            return ident not in frame.values
        case Unary(_, x):
            return _stays_open(x, frame)
        case Binary(op, a, b):
            return _stays_open(a, frame) or (op not in ("and", "or") and _stays_open(b, frame))
        case _:
            return False


def _value(expr: Expr, frame: Frame) -> Any:
    try:
        return fold(expr, frame)
    except (FoldError, TypeError):
        return Opaque(frame.key(expr))
