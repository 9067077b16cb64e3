"""Decides what a rank runs next: one turn of one ready group at a time, in the order in which groups became ready.

A group is everything that waits for the same work: calls of one op, one extern, or one region loop. After its turn a group that
still has work goes to the back, so two kinds of work share the rank fairly and neither waits longer than one op of the other.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mstarc_runtime.abi.linked import LoopLink
from mstarc_runtime.errors import OutOfPages
from mstarc_runtime.program import ABSENT
from mstarc_runtime.worker.batch import Row, Rows
from mstarc_runtime.worker.regions import RegionLoop
from mstarc_runtime.worker.waits import CallWait, ExternWait, LoopWait, ParallelWait, SendWait, TakeWait

if TYPE_CHECKING:
    from mstarc_runtime.worker.device_regions import DeviceLoop
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.swap import Swap
    from mstarc_runtime.worker.walks import WalkRun

log = logging.getLogger("mstarc.worker")

LoopKey = tuple[str, tuple[tuple[tuple[int, ...], str], ...]]  # region; shape and dtype of each value


def loop_key(region: str, values: Sequence[Any]) -> LoopKey:
    """What the requests of one loop have in common."""
    return region, tuple((tuple(value.shape), str(value.dtype)) for value in values)


class Group(Protocol):
    """Work of several requests that is done in turns: calls of one op, or one region loop."""

    name: str

    def has_work(self) -> bool: ...

    def turn(self) -> None: ...


class Answers:
    """What the calls of one `parallel` give, until all are there."""

    def __init__(self, wait: ParallelWait) -> None:
        self.values: list[Any] = list(wait.calls)
        self.left = sum(isinstance(call, CallWait) for call in wait.calls)

    def put(self, place: int, value: Any) -> bool:
        """Whether this was the last."""
        self.values[place] = value
        self.left -= 1
        return self.left == 0


Waiting: TypeAlias = "tuple[WalkRun, CallWait, Answers | None, int]"


class CallGroup:
    """Calls of one op that wait; one of a `parallel` with its place among that one's answers."""

    def __init__(self, rank: Rank, op: str) -> None:
        self.rank = rank
        self.name = op
        self.queue: deque[Waiting] = deque()
        self._swaps = rank.ops.swaps_of(op)

    def has_work(self) -> bool:
        return bool(self.queue)

    def turn(self) -> None:
        most = self.rank.ops.most_rows(self.name)
        full = [swap for swap in self._swaps if swap.waiting]
        taken: list[Waiting] = []
        while self.queue and len(taken) < most:
            first = self.queue[0]
            if taken and not self._together(taken[0], first):
                break
            self.queue.popleft()
            if first[0].alive and not (full and self._held_up(first, full)):
                taken.append(first)
        if not taken:
            return
        with self.rank.queue_of(taken[0][0].name):
            outcomes = self.rank.ops.call_rows(self.name, [(run.session, wait) for run, wait, _, _ in taken])
        for waiting, outcome in zip(taken, outcomes, strict=True):
            run, _, answers, place = waiting
            if isinstance(outcome, OutOfPages):
                self._wait(waiting, self.rank.swaps.of(outcome.pool))
            elif isinstance(outcome, BaseException):
                if run.alive:  # not yet ended by another call of the same `parallel`
                    self.rank.fail(run, outcome)
            elif answers is None:
                self.rank.scheduler.resume_later(run, outcome)
            elif answers.put(place, outcome):
                self.rank.scheduler.resume_later(run, tuple(answers.values))

    def _held_up(self, call: Waiting, full: Sequence[Swap]) -> bool:
        """Whether the call has to wait for pages."""
        for swap in full:
            if swap.holds_up(call[0].session):
                self._wait(call, swap)
                return True
        return False

    def _wait(self, call: Waiting, swap: Swap) -> None:
        call[0].waiting = f"pages for op {self.name}"
        swap.wait(call[0].session, lambda: self.put(call))

    def put(self, call: Waiting) -> None:
        """One more call that can be made."""
        self.queue.append(call)
        self.rank.scheduler.ready(self)

    def _together(self, one: Waiting, other: Waiting) -> bool:
        """Whether two calls may share a batch."""
        consumers = self.rank.consumers
        return (one[0].name in consumers) == (other[0].name in consumers) and self.rank.ops.fits(one[1], other[1])


class ExternGroup:
    """Calls of one extern that wait; one call a turn."""

    def __init__(self, rank: Rank, name: str) -> None:
        self.rank = rank
        self.name = name
        self.queue: deque[tuple[WalkRun, ExternWait]] = deque()

    def has_work(self) -> bool:
        return bool(self.queue)

    def turn(self) -> None:
        run, wait = self.queue.popleft()
        if not run.alive:
            return
        try:
            with self.rank.queue_of(run.name):
                arguments = [self.rank.host_value(value) for value in wait.args]
            result = self.rank.externs[self.name](*arguments)
        except Exception as error:
            self.rank.fail(run, error)
            return
        self.rank.scheduler.resume_later(run, result)


class Scheduler:
    """The ready groups of a rank and the coroutines that can go on."""

    def __init__(self, rank: Rank, max_rows: int) -> None:
        self.rank = rank
        self.max_rows = max_rows
        self._ready: deque[Group] = deque()
        self._queued: set[int] = set()
        self._resumable: deque[tuple[WalkRun, Any]] = deque()
        self._calls: dict[str, CallGroup] = {}
        self._externs: dict[str, ExternGroup] = {}
        self._loops: dict[LoopKey, RegionLoop] = {}
        self._device_loops: dict[LoopKey, DeviceLoop | None] = {}

    def ready(self, group: Group) -> None:
        """The group has, or may have, work for a turn."""
        if id(group) not in self._queued:
            self._queued.add(id(group))
            self._ready.append(group)

    def others_wait(self) -> bool:
        """Whether groups wait for the turn that the one which asks has now."""
        return bool(self._ready)

    def resume_later(self, run: WalkRun, value: Any) -> None:
        """Resume a coroutine with the answer to what it waited for, before the next turn."""
        self._resumable.append((run, value))

    def forget_dead(self) -> None:
        """Drop what still refers to walks that are over."""
        for key, loop in list(self._loops.items()):
            loop.forget_dead()
            if loop.empty() and id(loop) not in self._queued:
                del self._loops[key]
        for device_loop in self.device_loops():
            device_loop.forget_dead()

    def idle(self) -> bool:
        """Whether nothing can run until a message arrives."""
        return not self._ready and not self._resumable

    def turn(self) -> None:
        """Resume what can go on, then run one turn of the group that has been ready longest."""
        self._resume_all()
        if self._ready:
            group = self._ready.popleft()
            self._queued.discard(id(group))
            group.turn()
            self._resume_all()
            if group.has_work():
                self.ready(group)
        self.rank.swaps.turn()

    # -------------------------------------------------------------------------------------------------------- coroutines

    def _resume_all(self) -> None:
        while self._resumable:
            run, value = self._resumable.popleft()
            if run.alive:
                self._resume(run, value)

    def _resume(self, run: WalkRun, value: Any) -> None:
        """Run a coroutine until it has to wait, ends or fails. What it raises, or what it waits for, is its own failure."""
        try:
            with self.rank.queue_of(run.name):
                self._advance(run, value)
        except Exception as error:
            self.rank.fail(run, error)

    def _advance(self, run: WalkRun, value: Any) -> None:
        assert run.steps is not None
        while run.alive:
            try:
                wait = run.steps.send(value)
            except StopIteration as end:
                self.rank.walk_ended(run, end.value)
                return
            match wait:
                case SendWait() if self._try_send(run, wait):
                    value = None
                case TakeWait() if self._can_take(run, wait):
                    value = self._take(run, wait)
                case ParallelWait(calls=calls) if not any(isinstance(call, CallWait) for call in calls):
                    value = calls
                case _:
                    self._park(run, wait)
                    return

    def _park(self, run: WalkRun, wait: Any) -> None:
        match wait:
            case CallWait(op=op):
                run.waiting = f"op {op}"
                self._queue(run, wait, None, 0)
            case ParallelWait(calls=calls):
                answers = Answers(wait)
                run.waiting = "ops " + ", ".join(dict.fromkeys(call.op for call in calls if isinstance(call, CallWait)))
                for place, call in enumerate(calls):
                    if isinstance(call, CallWait):
                        self._queue(run, call, answers, place)
            case ExternWait(name=name):
                run.waiting = f"extern {name}"
                externs = self._externs.setdefault(name, ExternGroup(self.rank, name))
                externs.queue.append((run, wait))
                self.ready(externs)
            case LoopWait():
                run.waiting = f"loop {wait.label}"
                self._join(run, wait)
            case SendWait(stream=stream):
                run.waiting = f"credit of stream {stream}"
                out = self.rank.stream_out(run.session, stream, run.scope)
                out.wakers.append(lambda: self._retry(run, wait))
            case TakeWait(streams=streams):
                run.waiting = f"stream {', '.join(streams)}"
                for stream in streams:
                    end = self.rank.stream_in(run.session, stream, run.scope)
                    if not end.ready():
                        end.wakers.append(lambda: self._retry(run, wait))
                        return
            case _:
                raise TypeError(f"walk {run.name} yielded {wait!r}, which no verb gives")

    def _queue(self, run: WalkRun, call: CallWait, answers: Answers | None, place: int) -> None:
        group = self._calls.get(call.op)
        if group is None:
            group = self._calls[call.op] = CallGroup(self.rank, call.op)
        group.put((run, call, answers, place))

    def _join(self, run: WalkRun, wait: LoopWait) -> None:
        """Enter the loop."""
        self.go_on(Row(run, wait), tuple(self.rank.arrays.asarray(value) for value in wait.carry))

    def go_on(self, row: Row, carry: tuple[Any, ...]) -> None:
        """Run a row's body together with other requests, on the device if regions run there."""
        key, fixed = self._key(row, carry)
        ragged = key[0] in self.rank.program.RAGGED
        on_device = None if ragged else self.device_loop(key, row.run.name, carry, fixed)
        loop = on_device or self._host_loop(key)
        loop.join(row, carry)
        self.ready(loop)

    def join_host(self, row: Row, carry: tuple[Any, ...]) -> None:
        """The host's loop goes on with a row that a device loop cannot run."""
        key, _ = self._key(row, carry)
        loop = self._host_loop(key)
        loop.join(row, carry)
        self.ready(loop)

    def _key(self, row: Row, carry: tuple[Any, ...]) -> tuple[LoopKey, tuple[Any, ...]]:
        """Which requests a row is batched with, and its values from outside: with those whose values have the same shapes, if a batch is
        one array per value; with all in a ragged region.
        """
        name = row.body.__name__
        fixed = tuple(self.rank.arrays.asarray(value) for value in row.wait.fixed)
        return (name, ()) if name in self.rank.program.RAGGED else loop_key(name, carry + fixed), fixed

    def warm_up(self, link: LoopLink, progress: Callable[[int, int, str], None]) -> None:
        """Capture the bodies of a region before its first request comes. Those of a ragged one run on the host."""
        for name in (link.region, *link.others):
            if name not in self.rank.program.RAGGED:
                self._warm_up(link, name, progress)

    def _warm_up(self, link: LoopLink, name: str, progress: Callable[[int, int, str], None]) -> None:
        carry, fixed = (
            tuple(self.rank.arrays.zeros(shape.dtype, shape.dims) for shape in shapes)
            for shapes in (link.carry, link.fixed)
        )
        what = f"capturing {link.walk}.{link.label}"
        self.device_loop(
            loop_key(name, carry + fixed),
            link.walk,
            carry,
            fixed,
            lambda done, total: progress(done, total, what),
        )

    def device_loops(self) -> list[DeviceLoop]:
        """The loops that have been captured."""
        return [loop for loop in self._device_loops.values() if loop is not None]

    def _host_loop(self, key: LoopKey) -> RegionLoop:
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = RegionLoop(self.rank, key[0], self.max_rows)
        return loop

    def device_loop(
        self,
        key: LoopKey,
        walk: str,
        carry: tuple[Any, ...],
        fixed: tuple[Any, ...],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> DeviceLoop | None:
        """The loop on the device, captured when it is first asked for; None if regions run on the host, or this one has to."""
        if self.rank.device_options is None:
            return None
        if key not in self._device_loops:
            from mstarc_runtime.worker.device_regions import DeviceLoop
            from mstarc_runtime.worker.device_state import NotOnDevice

            try:
                self._device_loops[key] = DeviceLoop(
                    self.rank, key[0], walk, carry, fixed, self.rank.device_options, self.max_rows, progress
                )
            except NotOnDevice as reason:
                log.info("region %s runs on the host: %s", key[0], reason)
                self._device_loops[key] = None
            except Exception:
                log.warning("region %s cannot be captured and runs on the host", key[0], exc_info=True)
                self._device_loops[key] = None
        return self._device_loops[key]

    def _retry(self, run: WalkRun, wait: SendWait | TakeWait) -> None:
        """What a send or take waited for may be there now."""
        if run.alive:
            try:
                with self.rank.queue_of(run.name):
                    self._try_again(run, wait)
            except Exception as error:
                self.rank.fail(run, error)

    def _try_again(self, run: WalkRun, wait: SendWait | TakeWait) -> None:
        if isinstance(wait, SendWait):
            if self._try_send(run, wait):
                self.resume_later(run, None)
            else:
                self._park(run, wait)
        elif self._can_take(run, wait):
            self.resume_later(run, self._take(run, wait))
        else:
            self._park(run, wait)

    def _try_send(self, run: WalkRun, wait: SendWait) -> bool:
        item = self.rank.arrays.asarray(wait.item)  # a host value counts as what it is on the device
        keep = self.rank.where(wait.stream, Rows(self.rank, (run.session,)), item[None])
        if keep is not None and not keep[0]:
            return True
        out = self.rank.stream_out(run.session, wait.stream, run.scope)
        if not out.room():
            return False
        out.push(item)
        return True

    def _can_take(self, run: WalkRun, wait: TakeWait) -> bool:
        return all(self.rank.stream_in(run.session, stream, run.scope).ready() for stream in wait.streams)

    def _take(self, run: WalkRun, wait: TakeWait) -> Any:
        views = [self.rank.stream_in(run.session, stream, run.scope).take() for stream in wait.streams]
        if all(view is None for view in views):
            return ABSENT
        given = tuple(ABSENT if view is None else view for view in views)
        return given[0] if len(given) == 1 else given
