"""Executes the operations of a program, one request at a time: this file is the meaning of each operation.

Every method is a generator that yields `None` before an effect (another arm may go first) or a `Wait`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from mstarc.interp.calls import Calls
from mstarc.interp.errors import ExecutionError, RequestRefused
from mstarc.interp.machine import Machine
from mstarc.interp.reach import NOTHING, Ends, Reach
from mstarc.interp.schedule import Scheduler, Steps, Wait
from mstarc.interp.scope import Frame, RequestScope, checked_length
from mstarc.interp.streams import LiveStream
from mstarc.ir.core import (
    Block,
    CallWalk,
    Case,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Program,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    When,
)
from mstarc.ir.declarations import Stream
from mstarc.ir.fold import ABSENT, field_of
from mstarc.ir.loop_ends import cause_of
from mstarc.ir.types import Tensor
from mstarc_runtime.abi.chunks import Chunker, policy_of


@dataclass(frozen=True, slots=True)
class Emitted:
    """One emission, in the order of the run. Emissions of one modality come from one arm, so their order is the program's."""

    modality: str
    value: Any
    attrs: dict[str, Any]
    walk: str


class _Stopped(Exception):
    """`stop when` held: ends the innermost loop with these carried values."""

    def __init__(self, stop: Stop, carried: tuple[Any, ...]) -> None:
        super().__init__()
        self.stop = stop
        self.carried = carried


@dataclass(slots=True)
class Run:
    """One request in execution. `causes`: how each dynamic loop ended last (`stop` or `max`), by `walk.label`."""

    program: Program
    machine: Machine
    scope: RequestScope
    calls: Calls
    scheduler: Scheduler
    reach: Reach
    events: list[Emitted] = field(default_factory=list)
    causes: dict[str, str] = field(default_factory=dict)
    streams: list[LiveStream] = field(default_factory=list)

    # ------------------------------------------------------------------------------------------------------------- blocks

    def block(self, block: Block, frame: Frame, after: Ends) -> Steps:
        """The operations in order. `after`: the ends of streams that the arm may still touch after the block."""
        rest = self.reach.suffixes(block)
        for i, op in enumerate(block.ops):
            self._narrow(frame, rest[i] | after)
            yield from self._execute(op, frame, rest[i + 1] | after)
        self._narrow(frame, after)

    def _narrow(self, frame: Frame, reach: Ends) -> None:
        """Close the ends of streams that this arm held and can no longer reach."""
        for streams, arm in frame.roles:
            for stream in streams.values():
                if stream.producer == arm and ("send", stream.name) not in reach:
                    stream.close_producer()
                if stream.consumer == arm and ("take", stream.name) not in reach:
                    stream.close_consumer()

    def _execute(self, op: Op, frame: Frame, after: Ends) -> Steps:
        match op:
            case Compute() | Require() | Collect() | Stop():
                self._pure(op, frame)
            case Invoke() | Sample() | Noise() | Extern() | Emit() | Fork() | Drop():
                yield None
                self._effect(op, frame)
            case Send():
                yield from self._send(op, frame)
            case Next():
                yield from self._next(op, frame)
            case ForChunks():
                yield from self._for_chunks(op, frame, after)
            case Loop():
                yield from self._loop(op, frame, after)
            case Par():
                yield from self.block(op.body, frame, after)
            case When():
                taken = bool(frame.eval(op.cond))
                if taken:
                    yield from self.block(op.body, frame, after)
                for phi in op.results:
                    frame.bind(phi.result, frame.values[phi.inner] if taken else ABSENT)
            case If():
                yield from self.block(op.then if frame.eval(op.cond) else op.other, frame, after)
            case ForParts():
                yield from self._for_parts(op, frame, after)
            case CallWalk():
                yield from self._call_walk(op, frame, after)
            case Together():
                yield from self._together(op, frame, after)

    def _pure(self, op: Compute | Require | Collect | Stop, frame: Frame) -> None:
        match op:
            case Compute():
                frame.bind(op.result, frame.eval(op.expr))
            case Require():
                if not frame.eval(op.cond):
                    raise RequestRefused(f"the request does not satisfy `{op.text}`", op.text)
            case Collect():
                frame.gathers[-1][op.name].append(frame.eval(op.value))
            case Stop():
                if self.machine.truth(frame.eval(op.cond)):
                    raise _Stopped(op, tuple(frame.eval(expr) for expr in op.carried))

    def _effect(self, op: Invoke | Sample | Noise | Extern | Emit | Fork | Drop, frame: Frame) -> None:
        match op:
            case Invoke():
                for value, found in zip(op.results, self.calls.invoke(op, frame), strict=True):
                    frame.bind(value, found)
            case Sample():
                frame.bind(op.result, self.calls.sample(op, frame))
            case Noise():
                assert isinstance(op.result.type, Tensor)
                what = f"walk `{frame.walk}`: a dim of noise `{op.site}`"
                shape = tuple(checked_length(frame.eval(dim), dim, what, frame.names) for dim in op.result.type.dims)
                key = self.calls.key(frame.walk, op.site)
                frame.bind(op.result, self.machine.noise(op.result.type.dtype, shape, key))
            case Extern():
                given = (frame.eval(arg) for arg in op.args)
                args = tuple(None if arg is ABSENT else self.machine.host(arg) for arg in given)
                for value, found in zip(op.results, self.machine.extern(op.name, args, len(op.results)), strict=True):
                    frame.bind(value, found)
            case Emit():
                attrs = {name: frame.eval(value) for name, value in op.attrs}
                self.events.append(Emitted(op.modality, frame.eval(op.value), attrs, frame.walk))
            case Fork():
                self.calls.contexts.fork(op.target, op.source)
            case Drop():
                for name in op.contexts:
                    self.calls.contexts.drop(name)

    # -------------------------------------------------------------------------------------------------------------- loops

    def _loop(self, op: Loop, frame: Frame, after: Ends) -> Steps:
        bound = int(frame.eval(op.bound))
        if bound < 0:
            raise ExecutionError(f"walk `{frame.walk}`: loop `{op.label}` has the bound {bound}")
        carried = tuple(frame.eval(carry.init) for carry in op.carries)
        frame.gathers.append({gather.name: [] for gather in op.gathers})
        again = self.reach.of_block(op.body) | after
        cause: str = "max"
        try:
            for i in range(bound):
                frame.iters[op.label] = i
                for carry, value in zip(op.carries, carried, strict=True):
                    frame.bind(carry.inner, value)
                yield from self.block(op.body, frame, after if i == bound - 1 else again)
                carried = tuple(frame.eval(carry.next) for carry in op.carries)
        except _Stopped as stop:
            carried, cause = stop.carried, cause_of(stop.stop, op)
        gathered = frame.gathers.pop()
        frame.iters.pop(op.label, None)
        if op.kind == "max":
            self.causes[f"{frame.walk}.{op.label}"] = cause
        for carry, value in zip(op.carries, carried, strict=True):
            frame.bind(carry.result, value)
        for gather in op.gathers:
            frame.bind(gather.result, self.machine.cat(gathered[gather.name]))

    # ------------------------------------------------------------------------------------------------------------ streams

    def _send(self, op: Send, frame: Frame) -> Steps:
        item = frame.eval(op.value)
        decl = next(s for s in self.program.streams if s.name == op.stream)
        stream = frame.stream(op.stream)
        yield None
        if stream is None or not self._is_item(decl, item, frame):
            return
        if not stream.has_credit():
            yield Wait(
                f"credit on `{op.stream}` (capacity {stream.capacity}) in walk `{frame.walk}`", stream.has_credit
            )
        stream.send(item)

    def _is_item(self, decl: Stream, item: Any, frame: Frame) -> bool:
        if decl.where is None:
            return True
        inner = Frame(self.scope, self.machine, frame.walk, frame.arm, dims={"item": item})
        return self.machine.truth(inner.eval(decl.where))

    def _await_chunk(self, names: tuple[str, ...], frame: Frame) -> Steps:
        """Until every stream has a chunk, or one is over."""
        streams = [s for s in (frame.stream(name) for name in names) if s is not None]

        def ready() -> bool:
            return any(s.is_over() for s in streams) or all(s.can_take() for s in streams)

        yield None
        if not ready():
            short = ", ".join(f"`{s.name}`" for s in streams if not s.can_take())
            yield Wait(f"a chunk of {short} in walk `{frame.walk}`", ready)

    def _take(self, names: tuple[str, ...], frame: Frame) -> list[Any] | None:
        """One chunk of each stream jointly; None if one of them is over."""
        streams = [frame.stream(name) for name in names]
        live = [s for s in streams if s is not None and s.can_take()]
        return [s.take() for s in live] if len(live) == len(streams) else None

    def _next(self, op: Next, frame: Frame) -> Steps:
        yield from self._await_chunk(op.streams, frame)
        chunks = self._take(op.streams, frame)
        if chunks is None:
            for decl in self.program.streams:
                if decl.name in op.streams and not decl.after_end_empty:
                    raise ExecutionError(
                        f"walk `{frame.walk}`: `{decl.name}` has ended, and `after_end empty` is not declared"
                    )
        for value, chunk in zip(op.results, chunks or [ABSENT] * len(op.streams), strict=True):
            frame.bind(value, chunk)

    def _for_chunks(self, op: ForChunks, frame: Frame, after: Ends) -> Steps:
        again = self.reach.of_op(op) | after
        while True:
            yield from self._await_chunk(op.streams, frame)
            chunks = self._take(op.streams, frame)
            if chunks is None:
                return
            for value, chunk in zip(op.items, chunks, strict=True):
                frame.bind(value, chunk)
            yield from self.block(op.body, frame, again)

    # ----------------------------------------------------------------------------------------------------------- requests

    def _for_parts(self, op: ForParts, frame: Frame, after: Ends) -> Steps:
        parts = list(frame.eval(op.over))
        again = self.reach.of_op(op) | after
        for i, part in enumerate(parts):
            case = self._case_of(op, part)
            frame.bind(case.item, part)
            yield from self.block(case.body, frame, after if i == len(parts) - 1 else again)

    def _case_of(self, op: ForParts, part: Any) -> Case:
        if op.cases and not op.cases[0].kind:
            return op.cases[0]
        kind = field_of(part, "kind")
        found = [case for case in op.cases if case.kind == kind]
        if not found:
            raise ExecutionError(f"no `case` takes a part of kind `{kind}`")
        return found[0]

    def _call_walk(self, op: CallWalk, frame: Frame, after: Ends) -> Steps:
        walk = next(w for w in self.program.walks if w.name == op.walk)
        inner = Frame(self.scope, self.machine, walk.name, frame.arm, frame.roles)
        for value, arg in zip(walk.params, op.args, strict=True):
            inner.bind(value, frame.eval(arg))
        yield from self.block(walk.body, inner, after)
        for result, output in zip(op.results, walk.outputs, strict=True):
            frame.bind(result, inner.var(output.value))

    def _together(self, op: Together, frame: Frame, after: Ends) -> Steps:
        reaches = [self.reach.of_block(arm.body) for arm in op.arms]
        streams: dict[str, LiveStream] = {}
        for decl in self.program.streams:
            ends = [
                [arm.label for arm, r in zip(op.arms, reaches, strict=True) if (end, decl.name) in r]
                for end in ("send", "take")
            ]
            if all(ends):
                streams[decl.name] = self._live(decl, ends[0][0], ends[1][0], frame)
        self.streams.extend(streams.values())
        tasks = []
        for k, arm in enumerate(op.arms):
            # for the streams of an outer `together`, all arms here are one arm
            others = after.union(*(r for j, r in enumerate(reaches) if j != k))
            roles = (*frame.roles, (streams, arm.label))
            inner = Frame(
                self.scope, self.machine, frame.walk, arm.label, roles, frame.values, frame.dims, names=frame.names
            )
            steps = self._arm(arm.body, inner, others if frame.roles else NOTHING)
            tasks.append(self.scheduler.start(arm.label, steps))
        yield Wait(
            f"the arms {', '.join(f'`{arm.label}`' for arm in op.arms)}", lambda: all(task.done for task in tasks)
        )

    def _arm(self, body: Block, frame: Frame, after: Ends) -> Steps:
        yield from self.block(body, frame, after)
        self._narrow(replace(frame, roles=frame.roles[-1:]), NOTHING)

    def _live(self, decl: Stream, producer: str, consumer: str, frame: Frame) -> LiveStream:
        args = {name: frame.eval(value) for name, value in decl.args}
        chunker: Chunker[Any] = Chunker(policy_of(decl.policy, args), decl.at_end, self.machine.zero)
        capacity = int(frame.eval(decl.capacity))
        cuts = self._cutter(args["cut"]) if "cut" in args else lambda item: False
        return LiveStream(decl.name, producer, consumer, capacity, chunker, self.machine.stack, cuts)

    def _cutter(self, extern: str) -> Callable[[Any], bool]:
        """The phrase rule `extern(state, item) -> (state, cut)`; the state is None before the first item."""
        state: Any = None

        def cuts(item: Any) -> bool:
            nonlocal state
            state, cut = self.machine.extern(extern, (state, self.machine.host(item)), 2)
            return bool(cut)

        return cuts
