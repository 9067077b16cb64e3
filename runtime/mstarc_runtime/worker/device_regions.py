"""Region loops on the device: k iterations for all rows in one captured run, with the host one run behind.

A run is launched before the results of the one before it were read, so the device never waits for the host. That is sound because a
row's fate is decided on the device: a row that stops, reaches its bound or fails inside a run does nothing more there, nor in the
next run. What the host decides holds at the boundaries of runs: who joins, who is dropped because its request is over, and how far
each row may go (`until`), which covers its credit, its pages, the loop's bound and its contexts' room. Between two launches no row may
go further than it was expected to come (`until` = `expect`), so pages of any row may be moved then: the copies come after the runs.

A row that cannot go on here (its context is full) goes to the host's loop, which runs the iteration and says what is wrong. A row
without pages keeps its place and waits for them (`swap`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mstarc_runtime.sampling.sampler import BadLogits
from mstarc_runtime.worker.batch import Row
from mstarc_runtime.worker.device_captures import Captures, Run
from mstarc_runtime.worker.device_row import DeviceRow, Written
from mstarc_runtime.worker.device_runner import Runner
from mstarc_runtime.worker.device_state import FAILED, RUNNING, STOPPED, Entrant, LoopState
from mstarc_runtime.worker.regions import end_loop

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.streams import StreamOut
    from mstarc_runtime.worker.swap import Swap

UNROLL = 7
BURST_S = 0.006  # between the requests of one burst
LEAD_S = 0.004  # before the end of a run, the next is launched
FETCHED_MAX = 1 << 16  # bytes of a result that is copied to the host before it is known that anybody wants it there


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """How region loops run on the device. ahead: runs launched before the results of one are read. unroll: iterations of a run; 0 = as
    many as link says, or `UNROLL` where a launch of more than one step needs no agreement with a consumer."""

    runner: Runner
    unroll: int = 0
    ahead: int = 1


def limited(unroll: int, ahead: int, most: int) -> tuple[int, int]:
    """(iterations of a run, runs launched ahead of the one whose results are awaited), no more than these, of which at most `most`
    iterations begin before it is known that the first of them was the last: (ahead + 1) * unroll - 1 <= most."""
    unroll = min(unroll, most + 1)
    return unroll, min(ahead, (most + 1) // unroll - 1)


class DeviceLoop:
    """All requests inside one region loop of one walk, on the device. A group of the scheduler, as `RegionLoop`."""

    def __init__(
        self,
        rank: Rank,
        name: str,
        walk: str,
        carry: Sequence[Tensor],
        fixed: Sequence[Tensor],
        options: DeviceOptions,
        max_rows: int,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Makes the loop's state and captures its buckets; `carry` and `fixed` are values of one request, for their shapes.

        Raises NotOnDevice, or what the body raises when it is tried without a request.
        """
        self.rank, self.name, self.options = rank, name, options
        link = next((link for link in rank.linked.loops if name in (link.region, *link.others)), None)
        said = link.unroll if link is not None and (link.whole or link.unroll > 1) else UNROLL
        self.unroll, self.ahead = options.unroll or said, options.ahead
        if link is not None and link.ahead is not None:
            self.unroll, self.ahead = limited(self.unroll, self.ahead, link.ahead)
        self._whole = link is not None and link.whole
        self.sends = rank.program.SENDS.get(name, {})
        self.rows: dict[int, DeviceRow] = {}  # by slot
        self.waiting: deque[tuple[Row, tuple[Any, ...]]] = deque()
        self.under_way: deque[Run] = deque()
        self._opened = 0.0  # when the first of the rows that are inside came
        self._since = 0  # iterations since rows joined last
        self._gave_way = False  # to other work, before the next run
        self._took: dict[tuple[int, int], float] = {}  # seconds of a run, by bucket and iterations
        with torch.inference_mode():
            self.state = LoopState(rank, walk, carry, fixed, max_rows)
            lengths = (self.unroll,) if self._whole else tuple(sorted({1, self.unroll}))
            self._captures = Captures(self.state, getattr(rank.program, name), lengths, options.runner, progress)
        small = [k for k, value in enumerate(self.state.results) if value[0].nbytes <= FETCHED_MAX]
        self._fetched = small if self._whole else []  # the results that are copied to the host with every run

    # ------------------------------------------------------------------------------------------------------------- group

    def join(self, row: Row, carry: tuple[Any, ...]) -> None:
        """A request reaches the loop, its initial values as arrays."""
        self.waiting.append((row, carry))

    def empty(self) -> bool:
        """Whether no request is inside and no run under way."""
        return not (self.rows or self.waiting or self.under_way)

    def has_work(self) -> bool:
        """Whether a turn is due: a run is under way, or a row can run or join. Rows without credit are woken by their stream."""
        free = len(self.rows) < self.state.rows
        return bool(self.under_way or (self.waiting and free)) or any(not row.parked for row in self.rows.values())

    def forget_dead(self) -> None:
        """Drop rows whose request is over."""
        self.waiting = deque((row, carry) for row, carry in self.waiting if row.run.alive)
        for slot, row in list(self.rows.items()):
            if not row.row.run.alive:
                del self.rows[slot]
                with torch.inference_mode():
                    self.state.remove(slot)

    @torch.inference_mode()
    def turn(self) -> None:
        """Take the results that have arrived, then launch the next run if enough are not under way. Never waits for the device.

        While the device is busy with a run, what results woke goes first: a consumer's ops are queued before the next run.
        """
        settled = False
        while self.under_way and self.under_way[0].fetch.ready():
            self._settle(self._arrived())
            settled = True
        if (settled and self.under_way) or not self._due():
            return
        if self.rank.scheduler.others_wait() and not self._gave_way:
            self._gave_way = True
            return
        self.forget_dead()
        self._let_in()
        steps = self._steps()
        if len(self.under_way) <= self.ahead and self.rows and self._promise(steps):
            self._launch(steps)
            self._gave_way = False

    def _arrived(self) -> Run:
        """The first run under way, whose results are there; the next one runs since then."""
        now = time.monotonic()
        run = self.under_way.popleft()
        key, took = (run.bucket, run.steps), now - run.began
        self._took[key] = min(took, 1.02 * self._took.get(key, took))  # what was seen late makes it no longer
        if self.under_way:
            self.under_way[0].began = now
        return run

    def _due(self) -> bool:
        """Whether it is time for the next run: the device is about to finish. Launched any sooner, it would only keep out
        requests that come meanwhile."""
        if len(self.under_way) != 1:
            return True
        run = self.under_way[0]
        return time.monotonic() >= run.began + self._took.get((run.bucket, run.steps), 0.0) - LEAD_S

    def _steps(self) -> int:
        """Iterations of the next run. Requests come in bursts: as long as the first is alone, runs are short, so that the others need
        not wait. Then long ones, at whose ends the rows that joined last have sent a multiple of `unroll`, as chunks of streams ask,
        and short ones for what is left. A loop that one run holds all of is run at once."""
        if self._whole:
            return self.unroll
        early = time.monotonic() - self._opened < BURST_S
        left = max((row.row.wait.bound - row.expect for row in self.rows.values()), default=0)
        return 1 if early or left < self.unroll or (self._since + self._captures.head) % self.unroll else self.unroll

    # ------------------------------------------------------------------------------------------------------- membership

    def _let_in(self) -> None:
        """Rows that wait take free slots."""
        entrants: list[Entrant] = []
        full = self.rank.swaps.full()
        while self.waiting and len(self.rows) < self.state.rows:
            row, carry = self.waiting.popleft()
            if full and row.run.alive and self._waits(row, carry):
                continue
            if row.iteration >= row.until:
                end_loop(self.rank, self.name, row, carry, "max")
                continue
            try:
                entrant = self._entrant(row, carry)
            except Exception as error:  # a setting out of range
                self.rank.fail(row.run, error)
                continue
            if entrant is not None:
                entrants.append(entrant)
        if entrants:
            self._put(entrants)
            self._since = 0

    def _waits(self, row: Row, carry: tuple[Any, ...]) -> bool:
        """Whether the request has to wait for pages before it can have a slot."""
        swap = self.rank.swaps.held_up(row.run)
        if swap is not None:
            row.run.waiting = f"pages for loop {row.wait.label}"
            swap.wait(row.session, lambda: self._join_again(row, carry))
        return swap is not None

    def _join_again(self, row: Row, carry: tuple[Any, ...]) -> None:
        self.join(row, carry)
        self.rank.scheduler.ready(self)

    def _put(self, entrants: Sequence[Entrant]) -> None:
        """Write the rows of requests. One whose values do not fit its row fails alone."""
        try:
            self.state.put(entrants)
        except Exception as error:
            if len(entrants) > 1:
                for entrant in entrants:
                    self._put([entrant])
                return
            row = self.rows.pop(entrants[0].slot)
            self.state.remove(row.slot)
            self.rank.fail(row.row.run, error)

    def _entrant(self, row: Row, carry: tuple[Any, ...]) -> Entrant | None:
        """The request with a slot of its own; None if the host's loop has to run it. Raises BadRequest."""
        session = row.session
        if not self.state.suits(session):
            self.rank.scheduler.join_host(row, carry)
            return None
        self.state.check(session)
        if not self.rows:
            self._opened = time.monotonic()
        slot = next(slot for slot in range(self.state.rows) if slot not in self.rows)
        fixed = [self.rank.arrays.asarray(value) for value in row.wait.fixed]
        contexts: dict[str, Any] = {name: session.context(name) for name in self._captures.entries}
        written = {name: Written(contexts[name], each) for name, each in self._captures.entries.items()}
        self.rows[slot] = DeviceRow(row, slot, written)
        row.run.waiting = f"loop {row.wait.label}"
        return Entrant(slot, session, carry, fixed, row.iteration, row.until)

    def _leave(self, row: DeviceRow, why: str, carried: Sequence[Tensor], fetched: Sequence[Tensor]) -> None:
        """A row has ended on the device: the host takes over what it did and hands out its values. fetched: host copies of some."""
        del self.rows[row.slot]
        row.catch_up(self.rank)
        for k, host in zip(self._fetched, fetched, strict=True):
            self.rank.outbox.landed(row.row.session.request, carried[k], host)
        end_loop(self.rank, self.name, row.row, tuple(carried), why)

    def _hand_over(self, row: DeviceRow) -> None:
        """The host's loop goes on with a row that cannot go on here. A run under way moves it no more; a head that it shows is not taken
        over, so that the host's loop does it."""
        del self.rows[row.slot]
        row.done = True
        row.catch_up(self.rank)
        carry = tuple(value[row.slot].clone() for value in self.state.carry)
        self.state.remove(row.slot)
        self.rank.scheduler.join_host(row.row, carry)

    def _gather_rows(self) -> int:
        """The bucket for the next run. Rows move to lower slots if that makes it smaller."""
        bucket = self._captures.bucket(len(self.rows))
        for slot in sorted(slot for slot in self.rows if slot >= bucket):
            target = next(free for free in range(bucket) if free not in self.rows)
            row = self.rows.pop(slot)
            self.state.move(slot, target)
            row.slot = target
            self.rows[target] = row
        return bucket

    # ------------------------------------------------------------------------------------------------------------ limits

    def _promise(self, steps: int) -> bool:
        """Say how far every row may go in the next run, and reserve what that needs. Whether any row can move."""
        full = self.rank.swaps.full()
        for row in list(self.rows.values()):
            swap = self.rank.swaps.held_up(row.row.run) if full else None
            if swap is not None:
                self._await_pages(row, swap)
                continue
            until = self._limit(row, steps)
            if until > row.until:
                swap = row.promise(self.rank.swaps, until)
                if swap is not None:
                    self._await_pages(row, swap)
            elif row.settled() and not row.parked:
                self._stall(row)
        if self.rank.swaps.full():  # pages of a row may have been taken for an older one that came later
            for row in self.rows.values():
                if self.rank.swaps.held_up(row.row.run) is not None:
                    row.until = row.expect
        return any(row.until > row.expect for row in self.rows.values())

    def _await_pages(self, row: DeviceRow, swap: Swap) -> None:
        """A row whose request waits for pages; one that waits for credit is looked at again when that has come."""
        if not row.parked:
            row.parked = True
            row.row.run.waiting = f"pages for loop {row.row.wait.label}"
            swap.wait(row.row.session, lambda: self._unpark(row))

    def _limit(self, row: DeviceRow, steps: int) -> int:
        """The iteration before which the row may run, by the loop's bound, its credit, and the declared max of its contexts."""
        until = min(row.expect + steps, row.row.until)
        until = min(until, self._paid(row))
        for name, written in row.written.items():
            limit = self.rank.context_max.get(name, 0)
            if limit:
                until = min(until, row.start + (limit - written.context.length) // written.each)
        return until

    def _paid(self, row: DeviceRow) -> int:
        """The iteration before which there is room for what the row sends."""
        until = row.row.until
        for stream, most in self.sends.items():
            out = self._out(row, stream)
            if not out.discards:
                room = out.capacity - out.sent + out.consumed + most - row.row.needs(stream, most)
                until = min(until, row.row.iteration + room // most)
        return until

    def _out(self, row: DeviceRow, stream: str) -> StreamOut:
        return self.rank.stream_out(row.row.session, stream, row.row.run.scope)

    def _stall(self, row: DeviceRow) -> None:
        """A row that cannot move: it waits for credit, or the host's loop finds out why."""
        for stream, most in self.sends.items():
            out = self._out(row, stream)
            if not out.room(row.row.needs(stream, most)):
                row.parked = True
                row.row.run.waiting = f"credit of stream {stream}"
                out.wakers.append(lambda: self._unpark(row))
                return
        self._hand_over(row)

    def _unpark(self, row: DeviceRow) -> None:
        row.parked = False
        row.row.run.waiting = f"loop {row.row.wait.label}"
        self.rank.scheduler.ready(self)

    # -------------------------------------------------------------------------------------------------------------- runs

    def _launch(self, steps: int) -> None:
        """Queue one run behind the work of the device."""
        bucket = self._gather_rows()
        limits = torch.zeros_like(self.state.limits, device="cpu", pin_memory=self.state.device.type == "cuda")
        until, heads = limits
        full = self.rank.swaps.full()
        for slot, row in self.rows.items():
            until[slot], heads[slot] = row.until, min(row.until + 1, self._paid(row))
            row.expect = min(row.expect + steps, row.until)
            if full and self.rank.swaps.held_up(row.row.run) is not None:
                continue  # it does not run, and its pages may be on the host
            if row.moved != row.row.session.moved:
                row.moved = row.row.session.moved
                self.state.show_pages(slot, row.row.session)
            for name, written in row.written.items():
                # there may be more, or a copy of one that a fork shares
                self.state.contexts[name].set_pages(slot, written.context.pages)
        self.state.limits.copy_(limits, non_blocking=True)
        for slots in self.state.contexts.values():
            slots.upload()
        outcome = self._captures.run(bucket, steps)
        kept = {r: value.clone() for r, value in outcome.values.items() if r in self._captures.stays}
        to_host = [value for r, value in outcome.values.items() if r not in kept]
        results = [self.state.results[k][:bucket] for k in self._fetched]
        fetch = self.options.runner.fetch([outcome.ended, outcome.iter, outcome.valid, outcome.ids, *results, *to_host])
        held = [value[:bucket].clone() for value in self.state.results] if self._whole else []
        self.under_way.append(Run(list(self.rows.items()), outcome, fetch, kept, bucket, steps, held, time.monotonic()))
        self._since += steps

    def _settle(self, run: Run) -> None:
        """Take over the results of a run: what its rows emitted, sent, drew and wrote, in order, and who has ended."""
        ended, iteration = (found.tolist() for found in run.fetch.tensors[:2])
        results, taken = run.read(len(self._fetched), self._captures.in_order)
        leaving: list[tuple[int, DeviceRow]] = []
        for slot, row in run.rows:
            if row.done or not row.row.run.alive:
                continue
            try:
                if iteration[slot] > row.row.iteration:
                    row.row.head = None
                taken.replay(self.rank, slot, row, run.steps)
            except Exception as error:
                self.rank.fail(row.row.run, error)
            if not row.row.run.alive:
                continue
            row.row.iteration = iteration[slot]
            if ended[slot] != RUNNING:
                row.done = True
                leaving.append((slot, row))
        if leaving:
            self.rank.flush()  # what they showed last need not wait until they have left
        for slot, row in leaving:
            if ended[slot] == FAILED:
                self.rank.fail(row.row.run, BadLogits([slot]))
            else:
                why = "stop" if ended[slot] == STOPPED else "max"
                kept = [value[slot] for value in run.results] or [v[row.slot].clone() for v in self.state.results]
                self._leave(row, why, kept, [value[slot] for value in results])
