"""One rank of a linked program: its components, sessions and streams, and what to do with each message."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from mstarc_runtime.abi.chunks import Chunker, policy_of
from mstarc_runtime.abi.formula import evaluate
from mstarc_runtime.abi.linked import Linked, StreamLink
from mstarc_runtime.abi.messages import (
    CloseStream,
    Credit,
    Emitted,
    EndOfStream,
    Finish,
    Freed,
    Items,
    Message,
    Open,
    SinkStream,
    Start,
    WalkEnded,
    WalkFailed,
)
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.checkpoints import Externs
from mstarc_runtime.errors import BadRequest, RequestFailed
from mstarc_runtime.program import WorkerProgram, rich
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.outbox import Event, Outbox, host_value
from mstarc_runtime.worker.scheduler import Scheduler
from mstarc_runtime.worker.session import Session
from mstarc_runtime.worker.streams import StreamIn, StreamOut
from mstarc_runtime.worker.swap import Swaps
from mstarc_runtime.worker.walks import WalkRun

if TYPE_CHECKING:
    from mstarc_runtime.worker.batch import Rows
    from mstarc_runtime.worker.device_regions import DeviceOptions
    from mstarc_runtime.worker.device_runner import Runner
    from mstarc_runtime.worker.late_draws import LateDraws

Regions: TypeAlias = 'DeviceOptions | Literal["auto", "host"]'

log = logging.getLogger("mstarc.worker")

CONDUCTOR = -1
MAX_ROWS = 64
REMEMBERED = 4096  # finished requests whose late stream messages are dropped


class Rank:
    """State and behaviour of one rank, without its process: `handle` takes messages, `turn` does one piece of work."""

    def __init__(
        self,
        linked: Linked,
        rank: int,
        program: WorkerProgram,
        port: Any,
        ops: OpTable,
        regions: Regions = "auto",
    ) -> None:
        """`regions`: where region loops run: on the device as these options say, on the `host`, or `auto`: on the device if it is a GPU."""
        self.linked = linked
        self.rank = rank
        self.program = program
        self.port = port
        self.ops = ops
        self.arrays = ops.arrays
        self.config = SimpleNamespace(**linked.config)
        self.externs = Externs(linked)
        self.context_max = {context.name: context.max for context in linked.contexts}
        self.device_options = _device_options(ops) if regions == "auto" else None if regions == "host" else regions
        self.sessions: dict[int, Session] = {}
        self.swaps = Swaps(linked, ops.swaps, self.sessions, self.fail_session)
        self.scheduler = Scheduler(self, MAX_ROWS)
        self.turns = 0
        self._streams = {stream.name: stream for stream in linked.streams}
        self._takers = {stream: walk.name for walk in linked.walks for stream in walk.takes}
        runner = self.device_options.runner if self.device_options is not None else None
        self.queues = runner.queues if runner is not None else None
        self.consumers = _consumers(linked, rank) if self.queues is not None else frozenset[str]()
        self.outbox = Outbox(self.arrays, runner, self._send_events)
        self.late_draws = _late_draws(self, runner) if runner is not None else None
        self._early: dict[int, list[Message]] = {}
        self._over: dict[int, None] = {}  # requests that are over, oldest first
        self.unhurried: list[Message] = []  # for the conductor, where no request waits for them
        self._flushes: deque[Callable[[], None]] = deque()

    def warm_up(self, progress: Callable[[int, int, str], None]) -> None:
        """Before the first request: capture the region loops and the stacked ops of this rank's walks, if they run on the device."""
        if self.device_options is None:
            return
        main = [walk for walk in self.linked.walks if walk.rank == self.rank and walk.name not in self.consumers]
        self.ops.capture_stacks(main, self.device_options.runner, progress)
        here = {walk.name for walk in self.linked.walks if walk.rank == self.rank}
        for link in self.linked.loops:
            if link.region and link.walk in here:
                self.scheduler.warm_up(link, progress)
        for loop in self.scheduler.device_loops():
            for name, rows in loop.state.samplers.items():
                self.late_draws.warm_up(name, rows.vocab)  # type: ignore[union-attr]
        self._warm_up_consumers(progress)

    def _warm_up_consumers(self, progress: Callable[[int, int, str], None]) -> None:
        """Capture what consumers call. Their graphs run beside the others, so they share no memory with them."""
        if self.queues is None:
            return
        runner = self.device_options.runner.beside()  # type: ignore[union-attr]
        loaded = self.queues.mark()
        with self.queues.on(side=True):
            self.queues.wait(loaded)
            for walk in self.linked.walks:
                if walk.name in self.consumers:
                    self.ops.capture_beside(walk, runner, progress)

    # ---------------------------------------------------------------------------------------------------------- messages

    def handle(self, message: Message) -> None:
        """Take one message.

        A peer's stream message may overtake the conductor's `Open`: it is held until then. One of a request that is over here is
        dropped.
        """
        match message:
            case Open(request=request):
                self.sessions[request] = Session(self, message)
                for held in self._early.pop(request, ()):
                    self._handle_guarded(self.sessions[request], held)
            case Finish(request=request):
                self._finish(request)
            case Items() | EndOfStream() | Credit() if message.request not in self.sessions:
                if message.request not in self._over:
                    self._early.setdefault(message.request, []).append(message)
            case Start() | CloseStream() | SinkStream() | Items() | EndOfStream() | Credit():
                session = self.sessions.get(message.request)
                if session is not None:
                    self._handle_guarded(session, message)
            case _:
                raise TypeError(f"a worker does not take {type(message).__name__}")

    def _finish(self, request: int) -> None:
        session = self.sessions.pop(request, None)
        self.outbox.forget(request)
        counts: dict[str, int] = {}
        if session is not None:
            counts = session.context_lengths()
            session.close()
            self.scheduler.forget_dead()
            self.swaps.over(request)
        self._early.pop(request, None)
        self._over[request] = None
        if len(self._over) > REMEMBERED:
            self._over.pop(next(iter(self._over)))
        self.unhurried.append(Freed(request, counts))

    def tell(self) -> None:
        """Send what nobody hurries for."""
        for message in self.unhurried:
            self.port.send(CONDUCTOR, message)
        self.unhurried.clear()

    def _handle_guarded(self, session: Session, message: Message) -> None:
        """Whatever a message of a request raises is that request's failure, and no other's."""
        try:
            self._handle_session(session, message)
        except Exception as error:
            self.fail_session(session, error)

    def _handle_session(self, session: Session, message: Message) -> None:
        match message:
            case Start():
                self._start(session, message)
            case CloseStream(stream=stream, scope=scope):
                self.stream_out(session, stream, scope).close()
            case SinkStream(stream=stream, scope=scope):
                self.stream_out(session, stream, scope).discard()
            case Items(stream=stream, scope=scope, values=values):
                end = self.stream_in(session, stream, scope)
                with self.queue_of(end.taker):
                    items = [self.arrays.asarray(value) for value in values]
                for item in items:
                    end.accept(item, there=True)
            case EndOfStream(stream=stream, scope=scope, total=total):
                self.stream_in(session, stream, scope).end(total)
            case Credit(stream=stream, scope=scope, consumed=consumed):
                self.stream_out(session, stream, scope).credit(consumed)

    def _start(self, session: Session, start: Start) -> None:
        if start.after and start.after not in session.ended:
            session.held.setdefault(start.after, []).append(start)
            return
        run = WalkRun(self, session, start.run, start.walk, start.scope, start.closes)
        session.runs[start.run] = run
        if session.broken is not None:
            self.fail(run, session.broken)
            return
        run.steps = getattr(self.program, start.walk)(run, *[rich(value) for value in start.args])
        self.scheduler.resume_later(run, None)

    # -------------------------------------------------------------------------------------------------------------- work

    def turn(self) -> None:
        """One turn of the scheduler; what it emitted and sent leaves at its end, in one message per peer and stream."""
        self.turns += 1
        self.scheduler.turn()
        self.flush()

    def idle(self) -> bool:
        """Whether nothing can be done until a message arrives."""
        return self.scheduler.idle() and self.outbox.empty()

    def flush(self) -> None:
        """Hand stream items and what the conductor is to know to the transport."""
        while self._flushes:
            self._flushes.popleft()()
        self.outbox.flush()

    def _send_events(self, events: list[Event]) -> None:
        """One message for all; if a value in it cannot travel, one by one, and only its request fails."""
        try:
            self.port.send(CONDUCTOR, Emitted(events))
        except WireError as error:
            if len(events) == 1:
                session = self.sessions.get(events[0][0])
                if session is not None:
                    self.fail_session(session, error)
                return
            for event in events:
                self._send_events([event])

    def flush_later(self, flush: Callable[[], None]) -> None:
        self._flushes.append(flush)

    def walk_ended(self, run: WalkRun, results: Sequence[Any] | None) -> None:
        """A coroutine returned: close the streams that end with it and report."""
        session = run.session
        for stream in run.closes:
            self.stream_out(session, stream, run.scope).close()
        counts = {**run.counts, **session.context_lengths()}
        self.flush()
        if not run.alive:  # what it emitted or sent last may have failed it
            return

        def report(values: list[Any]) -> None:
            if session.broken is not None:  # found out on the device after the coroutine had returned
                self.port.send(CONDUCTOR, self._failure(run, session.broken))
                return
            try:
                self.port.send(CONDUCTOR, WalkEnded(session.request, run.run, values, run.causes, counts))
            except WireError as error:
                self.port.send(CONDUCTOR, self._failure(run, error))
                self.fail_session(session, error)

        session.end_run(run)
        self.outbox.send(session.request, results or (), report)
        session.ended.add(run.run)
        for start in session.held.pop(run.run, ()):
            self._handle_guarded(session, start)

    def fail_session(self, session: Session, error: BaseException) -> None:
        """Something outside a walk raised for this request: every walk of it fails, the ones that come too."""
        session.broken = session.broken or error
        for run in list(session.runs.values()):
            self.fail(run, error)

    def fail(self, run: WalkRun, error: BaseException) -> None:
        """A walk raised: that request fails, no other is touched."""
        if not run.alive:
            return
        run.session.end_run(run)
        run.close()
        failure = self._failure(run, error)
        self.outbox.send(run.session.request, (), lambda values: self.port.send(CONDUCTOR, failure))
        self.flush()

    @staticmethod
    def _failure(run: WalkRun, error: BaseException) -> WalkFailed:
        field = error.field if isinstance(error, BadRequest) else None
        if isinstance(error, RequestFailed | BadRequest):
            text, status = str(error), error.status
        else:
            log.error("walk %s of request %d failed", run.name, run.session.request, exc_info=error)
            text, status = f"walk `{run.name}` failed at {run.waiting}: {type(error).__name__}: {error}", 500
        return WalkFailed(run.session.request, run.run, text, status, field)

    # ------------------------------------------------------------------------------------------------ services for verbs

    def queue_of(self, walk: str) -> AbstractContextManager[None]:
        """Inside, work on the device goes to the queue of that walk."""
        return nullcontext() if self.queues is None else self.queues.on(walk in self.consumers)

    def emit(self, session: Session, walk: str, modality: str, value: Any, attributes: dict[str, Any]) -> None:
        """Queue one emitted value; it leaves with this turn, or when it has arrived on the host."""
        self.outbox.emit(session.request, walk, modality, value, attributes)

    def host_value(self, value: Any) -> Any:
        """A value as host Python sees it."""
        return host_value(self.arrays, value)

    def new_context(self, name: str) -> Any:
        return self.ops.new_context(name)

    def collects(self, region: str) -> tuple[str, ...]:
        return tuple(self.program.COLLECTS.get(region, ()))

    def where(self, stream: str, rows: Rows, items: Any) -> list[bool] | None:
        """Which of the items [B] of the rows pass the stream's `where`; None = all."""
        predicate = self.where_of(stream)
        if predicate is None:
            return None
        flags = self.arrays.to_host(predicate(rows, items))
        return [bool(flag) for flag in np.broadcast_to(flags, (len(items),))]

    def where_of(self, stream: str) -> Callable[[Any, Any], Any] | None:
        """The predicate (batch, items [B]) -> flags [B], or one flag for all, of a stream with a `where`."""
        name = self._streams[stream].where
        return getattr(self.program, name) if name else None

    def stays_here(self, stream: str) -> bool:
        """Whether the items of a stream are taken on this rank as they are: no copy on the host, no cut that looks at them."""
        link = self._streams[stream]
        return link.sink == self.rank and link.policy != "phrase"

    def stream_out(self, session: Session, stream: str, scope: int) -> StreamOut:
        """The producer's end, made on first use."""
        key = (stream, scope)
        end = session.outs.get(key)
        if end is None:
            link = self._streams[stream]
            end = StreamOut(self, session, stream, scope, _capacity(link, session), link.sink)
            session.outs[key] = end
        return end

    def stream_in(self, session: Session, stream: str, scope: int) -> StreamIn:
        """The consumer's end, made on first use."""
        key = (stream, scope)
        end = session.ins.get(key)
        if end is None:
            link = self._streams[stream]
            cut = self.externs[link.args["cut"]] if link.policy == "phrase" else None
            chunker: Chunker[Any] = Chunker(policy_of(link.policy, link.args), link.at_end, self.arrays.zeros_like)
            end = StreamIn(self, session, stream, scope, chunker, cut, link.source, self._takers.get(stream, ""))
            session.ins[key] = end
        return end

    def gauges(self) -> dict[str, float]:
        """What `/metrics` shows of this rank."""
        values = {
            "requests": float(len(self.sessions)),
            "walks": float(sum(len(session.runs) for session in self.sessions.values())),
            "turns": float(self.turns),
            "streams": float(sum(len(s.ins) + len(s.outs) for s in self.sessions.values())),
            "held_messages": float(sum(len(held) for held in self._early.values())),
        }
        values.update(self.ops.gauges())
        return values


def _consumers(linked: Linked, rank: int) -> frozenset[str]:
    from mstarc_runtime.worker.device_queues import consumers

    return consumers(linked, rank)


def _late_draws(rank: Rank, runner: Runner) -> LateDraws:
    from mstarc_runtime.worker.late_draws import LateDraws

    return LateDraws(rank, runner)


def _device_options(ops: OpTable) -> DeviceOptions | None:
    """Regions run on a GPU in captured loops, elsewhere on the host."""
    if ops.arrays.name != "torch" or ops.arrays.device.type != "cuda":
        return None
    from mstarc_runtime.worker.device_regions import DeviceOptions
    from mstarc_runtime.worker.device_runner import GraphRunner

    return DeviceOptions(GraphRunner(ops.arrays.device))


def _capacity(link: StreamLink, session: Session) -> int:
    if not isinstance(link.capacity, str):
        return int(evaluate(link.capacity, session.params, session.host))
    total = 0
    for term in link.capacity.split("+"):
        name = term.removeprefix("param:")
        total += int(getattr(session.params, name)) if name != term else int(term)
    return total
