"""Region loops: the generated straight-line body runs on a batch of requests that join and leave at iteration boundaries.

The carried values of the running rows stay stacked from one iteration to the next; they are rearranged only when membership
changes. A row leaves by `Batch.stop`, at the loop's bound, by failure, or because its request is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mstarc_runtime.worker.waits import LoopWait

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.session import Session
    from mstarc_runtime.worker.walks import WalkRun


class DrainedError(Exception):
    """Every row has left in the middle of a body: the rest of it has nothing to do."""


class Row:
    """One request inside a region loop."""

    __slots__ = ("body", "collected", "error", "head", "iteration", "parked", "run", "until", "wait")

    def __init__(self, run: WalkRun, wait: LoopWait) -> None:
        self.run = run
        self.wait = wait
        self.iteration = 0
        self.until, self.body = wait.phase(0)  # the iteration before which this body is run
        self.collected: dict[str, list[Any]] = {}
        self.error: BaseException | None = None
        self.parked = False  # a stream will wake the loop for this row
        self.head: dict[str, int] | None = (
            None  # items by stream that a device loop sent in the head of the present iteration, if it did it
        )

    @property
    def session(self) -> Session:
        return self.run.session

    def site(self, name: str) -> tuple[Session, str]:
        return self.run.session, f"{self.run.name}/{name}"

    def note_head(self, stream: str) -> None:
        """The head of the present iteration sent to a stream, or did something else that is seen (""): see `device_batch`."""
        self.head = self.head or {}
        if stream:
            self.head[stream] = self.head.get(stream, 0) + 1

    def needs(self, stream: str, most: int) -> int:
        """The most items that the present iteration has yet to send, of `most` in all."""
        return most - (self.head or {}).get(stream, 0)


class Rows:
    """Implements the part of `mstarc_runtime.program.Batch` that says what is known of the requests of its rows, as arrays [B]."""

    def __init__(self, rank: Rank, sessions: Sequence[Session] = ()) -> None:
        self.rank = rank
        self.config = rank.config
        self.params = RowParams(self)
        self.host = RowHost(self)
        self._sessions = sessions

    @property
    def sessions(self) -> Sequence[Session]:
        return self._sessions

    def number(self, of: Callable[[Any], Any]) -> Any:
        return self._numbers(of, (SimpleNamespace(params=s.params, config=self.config) for s in self.sessions))

    def _numbers(self, of: Callable[[Any], Any], rows: Iterable[Any]) -> Any:
        return self.rank.arrays.asarray(np.asarray([of(row) for row in rows], dtype=np.float32))


class RowParams:
    """Params of the rows of a batch as arrays: `b.params.max_tokens` is [B]."""

    def __init__(self, batch: Rows) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        batch = self._batch
        return batch.rank.arrays.asarray([getattr(session.params, name) for session in batch.sessions])


class RowHost:
    """`wants`, `given` and lets of the rows, as arrays."""

    def __init__(self, batch: Rows) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        batch = self._batch
        return batch.rank.arrays.asarray([getattr(session.host, name) for session in batch.sessions])

    def wants(self, modality: str) -> Any:
        batch = self._batch
        return batch.rank.arrays.asarray([session.host.wants(modality) for session in batch.sessions])

    def given(self, modality: str) -> Any:
        batch = self._batch
        return batch.rank.arrays.asarray([session.host.given(modality) for session in batch.sessions])


class Batch(Rows):
    """Implements `mstarc_runtime.program.Batch` for one iteration."""

    def __init__(self, rank: Rank, rows: list[Row]) -> None:
        super().__init__(rank)
        self.rows = rows
        self.left: list[tuple[Row, tuple[Any, ...], str]] = []  # with what they carry and the cause
        self._in_head = True  # before the first op or draw

    def _seen(self, row: Row) -> bool:
        """Whether what a row does now is seen: it has not failed, and a device loop has not done it already."""
        return row.error is None and not (self._in_head and row.head is not None)

    @property
    def sessions(self) -> Sequence[Session]:
        return [row.session for row in self.rows]

    @property
    def iter(self) -> Any:
        return self.rank.arrays.asarray([row.iteration for row in self.rows])

    def at(self, table: Any, index: Any) -> Any:
        return table[self.rank.arrays.asarray(np.arange(len(self.rows))), index]

    def number(self, of: Callable[[Any], Any]) -> Any:
        rows = (SimpleNamespace(iter=r.iteration, params=r.session.params, config=self.config) for r in self.rows)
        return self._numbers(of, rows)

    def stop(self, flag: Any, carried: tuple[Any, ...], live: tuple[Any, ...], why: str = "stop") -> tuple[Any, ...]:
        flags = self.rank.arrays.to_host(flag)
        ending = [bool(flags)] * len(self.rows) if flags.ndim == 0 else [bool(f) for f in flags]
        if not any(ending):
            return live
        stay = [i for i, ends in enumerate(ending) if not ends]
        for i, ends in enumerate(ending):
            if ends:
                self.left.append((self.rows[i], tuple(value[i] for value in carried), why))
        self.rows = [self.rows[i] for i in stay]
        if not stay:
            raise DrainedError
        return tuple(self.rank.arrays.select(value, stay) for value in live)

    def call(
        self,
        op: str,
        *args: Any,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any:
        self._in_head = False
        errors: list[tuple[int, BaseException]] = []
        sessions = self.sessions
        walk = self.rows[0].run.name
        outputs = self.rank.ops.call_batch(op, walk, sessions, args, writes, reads, only, errors)
        self._note(errors)
        return outputs

    def _note(self, errors: list[tuple[int, BaseException]]) -> None:
        """Mark rows that failed; they go on with zeros until the body ends, and nothing of them is seen."""
        for i, error in errors:
            self.rows[i].error = self.rows[i].error or error
        if errors and all(row.error is not None for row in self.rows):
            raise DrainedError

    def sample(self, sampler: str, logits: Any, site: str) -> Any:
        self._in_head = False
        errors: list[tuple[int, BaseException]] = []
        ids = self.rank.ops.sample(sampler, logits, [row.site(site) for row in self.rows], errors)
        self._note(errors)
        return ids

    def noise(self, dtype: str, dims: tuple[int, ...], site: str) -> Any:
        self._in_head = False
        return self.rank.ops.noise(dtype, dims, [row.site(site) for row in self.rows])

    def emit(self, modality: str, value: Any, **attributes: Any) -> None:
        host = self.rank.arrays.to_host(value)
        items = host.tolist() if host.ndim == 1 else host  # numbers of all rows at once
        for row, item in zip(self.rows, items, strict=True):
            if self._seen(row):
                self.rank.emit(row.session, row.run.name, modality, item, attributes)

    def send(self, stream: str, item: Any) -> None:
        keep = self.rank.where(stream, self, item)
        for i, row in enumerate(self.rows):
            if self._seen(row) and (keep is None or keep[i]):
                self.rank.stream_out(row.session, stream, row.run.scope).push(item[i])

    def collect(self, name: str, value: Any) -> None:
        for i, row in enumerate(self.rows):
            if self._seen(row):
                row.collected.setdefault(name, []).append(value[i])


class RegionLoop:
    """All requests that are inside one region loop of one walk on this rank."""

    def __init__(self, rank: Rank, name: str, max_rows: int) -> None:
        self.rank = rank
        self.name = name  # <walk>_<label>
        self.max_rows = max_rows
        self.sends = rank.program.SENDS.get(name, {})
        self.waiting: list[tuple[Row, tuple[Any, ...]]] = []  # rows outside the stacked batch, with their own carry
        self.rows: list[Row] = []
        self.carry: tuple[Any, ...] = ()
        self.fixed: tuple[Any, ...] = ()

    def join(self, row: Row, carry: tuple[Any, ...]) -> None:
        """A request reaches the loop, its initial values as arrays."""
        self.waiting.append((row, carry))

    def empty(self) -> bool:
        """Whether no request is inside."""
        return not self.rows and not self.waiting

    def has_work(self) -> bool:
        """Whether a turn is due: a row runs, wants to join, or has to be parked. Parked rows are woken by their stream."""
        return bool(self.rows) or any(not row.parked for row, _ in self.waiting)

    def forget_dead(self) -> None:
        """Drop parked rows whose request is over."""
        self.waiting = [(row, carry) for row, carry in self.waiting if row.run.alive]

    def turn(self) -> None:
        """Run one iteration for every row that can run, up to the batch limit."""
        self._regroup()
        if not self.rows:
            return
        rows = self.rows
        waiting = f"loop {rows[0].wait.label}"
        for row in rows:
            row.run.waiting = waiting
        batch = Batch(self.rank, rows)
        try:
            carry = rows[0].body(batch, *self.carry, *self.fixed)
        except DrainedError:
            carry = ()
        except Exception as error:  # not of one row: nothing that this iteration did can be told apart
            carry = ()
            for row in batch.rows:
                row.error = row.error or error
        self._settle(batch, carry)

    # ------------------------------------------------------------------------------------------------------- membership

    def _can_run(self, row: Row) -> bool:
        if not self.sends or not row.run.alive:
            return True  # a turn is needed to forget a dead one
        session, scope = row.session, row.run.scope
        outs = ((self.rank.stream_out(session, stream, scope), stream, most) for stream, most in self.sends.items())
        return all(out.room(row.needs(stream, most)) for out, stream, most in outs)

    def _park(self, row: Row, carry: tuple[Any, ...]) -> None:
        """Wait for credit outside the batch; the stream wakes this loop."""
        self.waiting.append((row, carry))
        if row.parked:
            return
        for stream, most in self.sends.items():
            out = self.rank.stream_out(row.session, stream, row.run.scope)
            if not out.room(row.needs(stream, most)):
                row.parked = True
                row.run.waiting = f"credit of stream {stream}"
                out.wakers.append(lambda: self._unpark(row))
                return

    def _unpark(self, row: Row) -> None:
        row.parked = False
        self.rank.scheduler.ready(self)

    def _leave_out(self) -> None:
        """Rows whose requests have to wait for pages leave the loop until their turn has come."""
        rows = enumerate(self.rows)
        keep = [i for i, row in rows if not self._awaits_pages(row, tuple(value[i] for value in self.carry))]
        if len(keep) != len(self.rows):
            self._rebuild(keep, [])
        self.waiting = [(row, carry) for row, carry in self.waiting if not self._awaits_pages(row, carry)]

    def _awaits_pages(self, row: Row, carry: tuple[Any, ...]) -> bool:
        swap = self.rank.swaps.held_up(row.run) if row.run.alive else None
        if swap is not None:
            row.run.waiting = f"pages for loop {row.wait.label}"
            swap.wait(row.session, lambda: self.rank.scheduler.join_host(row, carry))
        return swap is not None

    def _regroup(self) -> None:
        """Form the batch of this turn: drop dead rows, finish spent ones, park those without credit, let waiting ones in."""
        if self.rank.swaps.full():
            self._leave_out()
        keep: list[int] = []
        for i, row in enumerate(self.rows):
            if not row.run.alive:
                continue
            if self._can_run(row):
                keep.append(i)
            else:
                self._park(row, tuple(value[i] for value in self.carry))
        joining: list[tuple[Row, tuple[Any, ...]]] = []
        waiting, self.waiting = self.waiting, []
        for row, carry in waiting:
            if not row.run.alive:
                continue
            if row.iteration >= row.until:
                self._finish(row, carry, "max")
            elif len(keep) + len(joining) < self.max_rows and self._can_run(row):
                joining.append((row, carry))
            elif self._can_run(row):
                self.waiting.append((row, carry))
            else:
                self._park(row, carry)
        if joining or len(keep) != len(self.rows):
            self._rebuild(keep, joining)

    def _rebuild(self, keep: list[int], joining: list[tuple[Row, tuple[Any, ...]]]) -> None:
        arrays = self.rank.arrays
        rows = [self.rows[i] for i in keep] + [row for row, _ in joining]
        columns: list[Any] = []
        if rows:
            for k in range(len(rows[0].wait.carry)):
                pieces = [self.carry[k][i] for i in keep] + [carry[k] for _, carry in joining]
                columns.append(arrays.stack(pieces))
            self.fixed = tuple(
                arrays.stack([arrays.asarray(row.wait.fixed[k]) for row in rows])
                for k in range(len(rows[0].wait.fixed))
            )
        self.rows = rows
        self.carry = tuple(columns)

    # ----------------------------------------------------------------------------------------------------------- leaving

    def _settle(self, batch: Batch, carry: tuple[Any, ...]) -> None:
        """After a body: hand results to the rows that left, count the others on, drop the failed ones."""
        keep: list[int] = []
        spent: list[tuple[Row, tuple[Any, ...]]] = []
        for i, row in enumerate(batch.rows):
            if row.error is not None or not row.run.alive:
                continue
            row.iteration += 1
            row.head = None
            if row.iteration >= row.until:
                spent.append((row, tuple(value[i] for value in carry)))
            else:
                keep.append(i)
        survivors = [batch.rows[i] for i in keep]
        failed = [row for row in self.rows if row.error is not None]
        if len(keep) != len(batch.rows):
            carry = tuple(self.rank.arrays.select(value, keep) for value in carry) if keep else ()
        changed = len(survivors) != len(self.rows)
        self.rows, self.carry = survivors, carry
        if changed and survivors and survivors[0].wait.fixed:
            self._restack_fixed()
        for row, values, why in batch.left:
            if row.error is None:
                self._finish(row, values, why)
        for row, values in spent:
            self._finish(row, values, "max")
        for row in failed:
            if row.error is not None:
                self.rank.fail(row.run, row.error)

    def _restack_fixed(self) -> None:
        arrays = self.rank.arrays
        first = self.rows[0].wait.fixed
        self.fixed = tuple(
            arrays.stack([arrays.asarray(row.wait.fixed[k]) for row in self.rows]) for k in range(len(first))
        )

    def _finish(self, row: Row, carried: tuple[Any, ...], why: str) -> None:
        end_loop(self.rank, self.name, row, carried, why)


def end_loop(rank: Rank, name: str, row: Row, carried: tuple[Any, ...], why: str) -> None:
    """The loop `name` is over for a row: its coroutine goes on with the carried and the collected values, or another body with the row."""
    run, wait = row.run, row.wait
    if row.iteration == row.until < wait.bound:
        row.until, row.body = wait.phase(row.iteration)
        rank.scheduler.go_on(row, carried)
        return
    if wait.kind == "max":
        run.causes[wait.label] = why
    run.counts[wait.label] = row.iteration
    try:
        gathered = tuple(rank.arrays.cat(row.collected.get(item, [])) for item in rank.collects(name))
    except Exception as error:  # items that do not fit together: this request's
        rank.fail(run, error)
        return
    rank.scheduler.resume_later(run, carried + gathered)
