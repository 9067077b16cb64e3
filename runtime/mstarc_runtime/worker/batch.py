"""One iteration of a region for a batch of requests: what the generated body speaks to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.guidance import guide
from mstarc_runtime.program import ABSENT
from mstarc_runtime.worker.ragged import Fault, Ragged
from mstarc_runtime.worker.waits import CallWait, LoopWait

if TYPE_CHECKING:
    from mstarc_runtime.arrays import Arrays
    from mstarc_runtime.worker.ops import OpTable
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
        # items by stream that a device loop sent in the head of the present iteration; None if it did not do it
        self.head: dict[str, int] | None = None

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

    def __init__(self, rank: Rank, rows: list[Row], ragged: bool = False) -> None:
        """ragged: values with dims are kept request by request, numbers are arrays [B] all the same."""
        super().__init__(rank)
        self.rows = rows
        self.ragged = ragged
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
        if not isinstance(table, Ragged):
            return table[self.rank.arrays.asarray(np.arange(len(self.rows))), index]
        self.check((table,))
        if len({tuple(getattr(item, "shape", ())) for item in table.items}) == 1:
            return self._column(list(self.at(self.rank.arrays.stack(table.items), index)))
        places = np.broadcast_to(self.rank.arrays.to_host(index), len(self.rows))
        return self._by_row(lambda i: table[i][int(places[i])])

    def number(self, of: Callable[[Any], Any]) -> Any:
        return self._numbers(of, self._host_rows())

    def _host_rows(self) -> Iterator[Any]:
        """What the host knows of each row."""
        for row in self.rows:
            session = row.session
            yield SimpleNamespace(iter=row.iteration, params=session.params, config=self.config, host=session.host)

    def stop(self, flag: Any, carried: tuple[Any, ...], live: tuple[Any, ...], why: str = "stop") -> tuple[Any, ...]:
        self.check(carried)
        flags = self.rank.arrays.to_host(flag)
        ending = [bool(flags)] * len(self.rows) if flags.ndim == 0 else [bool(f) for f in flags]
        if not any(ending):
            return live
        stay = [i for i, ends in enumerate(ending) if not ends]
        for i, ends in enumerate(ending):
            if ends:
                self.left.append((self.rows[i], tuple(value[i] for value in carried), why))
        self.rows = [self.rows[i] for i in stay]
        if all(row.error is not None for row in self.rows):
            raise DrainedError
        return tuple(selected(self.rank.arrays, value, stay) for value in live)

    def call(
        self,
        op: str,
        *args: Any,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> Any:
        if self.ragged:
            return self.parallel(self.arm(op, *args, writes=writes, reads=reads, only=only))[0]
        self._in_head = False
        errors: list[tuple[int, BaseException]] = []
        sessions, walk = self.sessions, self.rows[0].run.name
        columns = tuple(self._rowwise(arg) for arg in args)
        outputs = self.rank.ops.call_batch(op, walk, sessions, columns, writes, reads, only, errors)
        self._note(errors)
        return outputs

    def _rowwise(self, arg: Any) -> Any:
        """An argument with a row per request: a number is that of all of them."""
        number = isinstance(arg, bool | int | float)
        return self.rank.arrays.asarray(np.full(len(self.rows), arg)) if number else arg

    def arm(
        self,
        op: str,
        *args: Any,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> CallWait:
        return CallWait(op, args, writes, reads, only, self.rows[0].run.name)

    def parallel(self, *arms: CallWait) -> tuple[Any, ...]:
        """Each row's calls as those of a walk, of which equal ones on equal contexts are run once. A row that has failed calls nothing."""
        self._in_head = False
        self.check(column for arm in arms for column in arm.args)
        rows: dict[int, list[Any]] = {}  # of a column, by its id: the same objects in all arms

        def of_row(column: Any, i: int) -> Any:
            if isinstance(column, Ragged):
                return column[i]
            if not hasattr(column, "shape"):
                return column
            if id(column) not in rows:
                rows[id(column)] = [column[k, ...] for k in range(len(self.rows))]
            return rows[id(column)][i]

        places = [(a, i) for i, row in enumerate(self.rows) if row.error is None for a in range(len(arms))]
        calls = [
            (self.rows[i].session, replace(arms[a], args=tuple(of_row(column, i) for column in arms[a].args)))
            for a, i in places
        ]
        outcomes: list[list[Any]] = [[ABSENT] * len(self.rows) for _ in arms]
        errors: list[tuple[int, BaseException]] = []
        for (a, i), outcome in zip(places, call_each(self.rank.ops, calls), strict=True):
            if isinstance(outcome, BaseException):
                errors.append((i, outcome))
            elif outcome is not None:
                outcomes[a][i] = outcome
        self._note(errors)
        return tuple(self._results(arm, found) for arm, found in zip(arms, outcomes, strict=True))

    def _results(self, arm: CallWait, outcomes: list[Any]) -> Any:
        """What one arm gave, by result if it has several; None if it has none."""
        count = self._count(arm)
        if count < 2:
            return self._column(outcomes) if count else None
        return tuple(
            self._column([outcome if outcome is ABSENT else outcome[k] for outcome in outcomes]) for k in range(count)
        )

    def _count(self, arm: CallWait) -> int:
        """How many results of an arm are used."""
        node, _, op = arm.op.partition(".")
        link = next(
            link for found in self.rank.linked.nodes if found.name == node for link in found.ops if link.name == op
        )
        return link.results if arm.only is None or link.results < 2 else len(arm.only)

    def _column(self, items: list[Any]) -> Any:
        """One value per row as a batch has it. A row that has failed gets zeros where the others are stacked."""
        items = [ABSENT if item is None else item for item in items]
        there = [item for item, row in zip(items, self.rows, strict=True) if row.error is None]
        numbers = all(item is not ABSENT and getattr(item, "ndim", 0) == 0 for item in there)
        if self.ragged and not numbers:
            return Ragged(items)
        if len(there) < len(items):
            filler = self.rank.arrays.zeros_like(there[0])
            items = [filler if row.error is not None else item for item, row in zip(items, self.rows, strict=True)]
        return self.rank.arrays.stack(items)

    def guide(self, v: Any, *branches: Any, settings: Callable[[Any], tuple[Any, ...]]) -> Any:
        self.check((v, *branches))
        known = list(self._host_rows())
        return self._by_row(lambda i: guide(v[i], *(branch[i] for branch in branches), *settings(known[i])))

    def _by_row(self, of: Callable[[int], Any]) -> Any:
        """What a function gives for each row that has not failed. What it raises fails the row."""
        found: list[Any] = [ABSENT] * len(self.rows)
        errors: list[tuple[int, BaseException]] = []
        for i, row in enumerate(self.rows):
            if row.error is None:
                try:
                    found[i] = of(i)
                except Exception as error:
                    errors.append((i, error))
        self._note(errors)
        return self._column(found)

    def check(self, columns: Iterable[Any]) -> None:
        """Before values are used: a row of which one could not be computed has failed."""
        self._note([fault for column in columns if isinstance(column, Ragged) for fault in column.faults()])

    def _note(self, errors: list[tuple[int, BaseException]]) -> None:
        """Mark rows that failed; they go on with zeros until the body ends, and nothing of them is seen."""
        for i, error in errors:
            self.rows[i].error = self.rows[i].error or error
        if errors and all(row.error is not None for row in self.rows):
            raise DrainedError

    def sample(self, sampler: str, logits: Any, site: str) -> Any:
        self._in_head = False
        errors: list[tuple[int, BaseException]] = []
        if isinstance(logits, Ragged):
            self.check((logits,))
            logits = self._stacked(logits)
        ids = self.rank.ops.sample(sampler, logits, [row.site(site) for row in self.rows], errors)
        self._note(errors)
        return ids

    def _stacked(self, column: Ragged) -> Any:
        """A column whose rows have one shape as an array; a row that has failed gets zeros."""
        there = [row.error is None for row in self.rows]
        filler = self.rank.arrays.zeros_like(column[there.index(True)])
        return self.rank.arrays.stack([column[i] if is_there else filler for i, is_there in enumerate(there)])

    def noise(self, dtype: str, dims: tuple[Any, ...], site: str) -> Any:
        self._in_head = False
        sites = [row.site(site) for row in self.rows]
        if not self.ragged:
            return self.rank.ops.noise(dtype, dims, sites)
        sizes = zip(*(np.broadcast_to(self.rank.arrays.to_host(dim), len(sites)).tolist() for dim in dims), strict=True)
        each = sizes if dims else [()] * len(sites)
        return self._column([self._drawn(dtype, size, place) for size, place in zip(each, sites, strict=True)])

    def _drawn(self, dtype: str, size: tuple[int, ...], place: tuple[Session, str]) -> Any:
        """The noise of one row, or why there is none."""
        try:
            return self.rank.ops.noise(dtype, size, [place])[0]
        except RequestFailed as error:
            return Fault(error)

    def emit(self, modality: str, value: Any, **attributes: Any) -> None:
        self.check((value,))
        items: Any = value if isinstance(value, Ragged) else self.rank.arrays.to_host(value)
        if getattr(items, "ndim", 0) == 1:
            items = items.tolist()  # numbers of all rows at once
        for i, row in enumerate(self.rows):
            if self._seen(row):
                self.rank.emit(row.session, row.run.name, modality, items[i], attributes)

    def send(self, stream: str, item: Any) -> None:
        self.check((item,))
        keep = self.rank.where(stream, self, item)
        for i, row in enumerate(self.rows):
            if self._seen(row) and (keep is None or keep[i]):
                self.rank.stream_out(row.session, stream, row.run.scope).push(item[i])

    def collect(self, name: str, value: Any) -> None:
        self.check((value,))
        for i, row in enumerate(self.rows):
            if self._seen(row):
                row.collected.setdefault(name, []).append(value[i])


def call_each(ops: OpTable, calls: Sequence[tuple[Session, CallWait]]) -> list[Any]:
    """One outcome per call in the middle of an iteration, as `OpTable.call_rows` gives it; calls of one op that may share a batch do."""
    outcomes: list[Any] = [None] * len(calls)
    left = list(range(len(calls)))
    while left:
        first = calls[left[0]][1]
        fitting = [k for k in left if calls[k][1].op == first.op and ops.fits(first, calls[k][1])]
        together = fitting[: ops.most_rows(first.op)]
        for k, outcome in zip(together, ops.call_rows(first.op, [calls[k] for k in together], force=True), strict=True):
            outcomes[k] = outcome
        left = [k for k in left if k not in set(together)]
    return outcomes


def column_of(arrays: Arrays, pieces: Sequence[Any], ragged: bool) -> Any:
    """The values of several requests as a batch has them."""
    return Ragged(pieces) if ragged and pieces[0].ndim else arrays.stack(pieces)


def selected(arrays: Arrays, column: Any, rows: Sequence[int]) -> Any:
    """Some rows of a column."""
    return column.select(rows) if isinstance(column, Ragged) else arrays.select(column, rows)
