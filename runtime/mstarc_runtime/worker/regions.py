"""Region loops: the generated straight-line body runs on a batch of requests that join and leave at iteration boundaries.

The carried values of the running rows stay stacked from one iteration to the next (request by request in a ragged region); they are
rearranged only when membership changes. A row leaves by `Batch.stop`, at the loop's bound, by failure, or because its request is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mstarc_runtime.worker.batch import Batch, DrainedError, Row, column_of, selected

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.swap import Swap


class RegionLoop:
    """All requests that are inside one region loop of one walk on this rank."""

    def __init__(self, rank: Rank, name: str, max_rows: int) -> None:
        self.rank = rank
        self.name = name  # <walk>_<label>
        self.max_rows = max_rows
        self.sends = rank.program.SENDS.get(name, {})
        self.ragged = name in rank.program.RAGGED
        self.waiting: list[tuple[Row, tuple[Any, ...]]] = []  # rows outside the stacked batch, with their own carry
        self.rows: list[Row] = []
        self.carry: tuple[Any, ...] = ()
        self.fixed: tuple[Any, ...] = ()
        self._swaps: tuple[Swap, ...] = ()  # of the pools that contexts of the loop's walk are on

    def join(self, row: Row, carry: tuple[Any, ...]) -> None:
        """A request reaches the loop, its initial values as arrays."""
        self._swaps = self.rank.swaps.of_walk(row.run)
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
        for swap in self._swaps:
            if swap.pool.free_pages < len(self.rows) * swap.contexts:
                swap.prepare(row.session for row in self.rows)
                self._leave_out()
        if not self.rows:
            return
        rows = self.rows
        waiting = f"loop {rows[0].wait.label}"
        for row in rows:
            row.run.waiting = waiting
        batch = Batch(self.rank, rows, self.ragged)
        try:
            carry = rows[0].body(batch, *self.carry, *self.fixed)
            batch.check(carry)
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
            # its stream wakes this loop, but it may come back to another one, which then parks it anew
            row.parked = False
            row.run.waiting = f"pages for loop {row.wait.label}"
            swap.wait(row.session, lambda: self.rank.scheduler.join_host(row, carry))
        return swap is not None

    def _regroup(self) -> None:
        """Form the batch of this turn: drop dead rows, finish spent ones, park those without credit, let waiting ones in."""
        for swap in self._swaps:
            if swap.waiting:
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
                columns.append(column_of(arrays, pieces, self.ragged))
        self.rows = rows
        self.carry = tuple(columns)
        self._gather_fixed()

    def _gather_fixed(self) -> None:
        """The values from outside of the present rows."""
        if self.rows:
            arrays = self.rank.arrays
            values = zip(*([arrays.asarray(value) for value in row.wait.fixed] for row in self.rows), strict=True)
            self.fixed = tuple(column_of(arrays, pieces, self.ragged) for pieces in values)

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
            carry = tuple(selected(self.rank.arrays, value, keep) for value in carry) if keep else ()
        changed = len(survivors) != len(self.rows)
        self.rows, self.carry = survivors, carry
        if changed:
            self._gather_fixed()
        for row, values, why in batch.left:
            if row.error is None:
                self._finish(row, values, why)
        for row, values in spent:
            self._finish(row, values, "max")
        for row in failed:
            if row.error is not None:
                self.rank.fail(row.run, row.error)

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
