"""One request inside a device loop, as the host knows it: how far it may go, and what its runs did that the host has yet to take over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import NO_ID, Context
from mstarc_runtime.errors import OutOfPages
from mstarc_runtime.worker.batch import Row
from mstarc_runtime.worker.device_batch import Record

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.swap import Swap, Swaps


@dataclass(slots=True)
class Written:
    """What a context was given in the loop; the `Context` itself learns it when the row leaves."""

    context: Context
    each: int  # entries that one iteration adds
    entries: int = 0
    advance: int = 0
    ids: list[int] = field(default_factory=list)

    def add(self, record: Record, calls: int, tokens: Sequence[int] | None) -> None:
        """So many calls of a writing op; `tokens`: their ids, if they have any."""
        self.entries += record.entries * calls
        self.advance += record.advance * calls
        self.ids += [NO_ID] * (record.entries * calls) if tokens is None else tokens


class DeviceRow:
    """A row at `slot`, in the loop since iteration `start`.

    until: the iteration before which it may run, all that needs is reserved; expect: the iteration it has reached after the runs
    under way if it does not end in them; `row.iteration` is what results have shown; moved: the session's, when the device was told where
    its pages are.
    """

    __slots__ = ("done", "drawn", "expect", "moved", "parked", "row", "sites", "slot", "start", "until", "written")

    def __init__(self, row: Row, slot: int, written: dict[str, Written]) -> None:
        self.row, self.slot, self.written = row, slot, written
        self.start = self.until = self.expect = row.iteration
        self.moved = row.session.moved
        self.drawn: dict[str, list[int]] = {}  # by sampler
        self.sites: dict[str, int] = {}  # executions by site
        self.parked = False  # a stream, or the waiting line of a pool, will wake the loop for this row
        self.done = False  # it has left or was handed over: what a run under way tells of it is nothing new

    def settled(self) -> bool:
        """Whether no run under way moves this row."""
        return self.row.iteration == self.expect

    def reserve(self, until: int) -> None:
        """Pages for every iteration before `until`. Raises OutOfPages."""
        for written in self.written.values():
            written.context.reserve((until - self.start) * written.each)

    def promise(self, swaps: Swaps, until: int) -> Swap | None:
        """Let the row go on before `until`, or one iteration far where the pages of younger requests reach no further. Gives the line to
        wait in if there are none."""
        try:
            self.reserve(until)
            self.until = until
            return None
        except OutOfPages as error:
            pool = error.pool
        for goal in (until, self.expect + 1):
            try:
                with swaps.asking(self.row.run):
                    self.reserve(goal)
                self.until = goal
                return None
            except OutOfPages as error:
                pool = error.pool
        return swaps.of(pool)

    def draw(self, record: Record, times: int, tokens: Sequence[int] | None) -> None:
        """So many executions of a drawing site; `tokens`: what a sampler drew."""
        self.sites[record.site] = self.sites.get(record.site, 0) + times
        if tokens is not None:
            self.drawn.setdefault(record.name, []).extend(tokens)

    def catch_up(self, rank: Rank) -> None:
        """Move the request's contexts, histories and counters on by what the loop did, and give back what was reserved for more."""
        session, walk = self.row.session, self.row.run.name
        for written in self.written.values():
            ids = rank.arrays.asarray(np.asarray(written.ids, dtype=np.int64))
            written.context.extend(written.entries, written.advance, ids)
            written.context.release_reserved()
        for sampler, tokens in self.drawn.items():
            _, history = rank.ops.sampler_of(sampler, session)
            history.extend(rank.arrays.asarray(np.asarray(tokens, dtype=np.int64)))
        for site, count in self.sites.items():
            name = f"{walk}/{site}"
            session.draws[name] = session.draws.get(name, 0) + count


_QUIET = ("write", "draw", "noise")  # records that nobody sees until the row leaves


def kept_in_order(records: Sequence[Record]) -> frozenset[int]:
    """The records whose place among the others of an iteration is seen: what others see, and ids that join those of other records in a
    context or in the history of a sampler."""
    joins = [{*record.contexts, *([f"sampler {record.name}"] if record.kind == "draw" else [])} for record in records]
    counted = Counter(name for names in joins for name in names)
    return frozenset(
        r
        for r, record in enumerate(records)
        if record.kind not in _QUIET or any(counted[name] > 1 for name in joins[r])
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """The results of a run on the host: valid bool [k, records, B], tokens i64 [k, B] of the records that are single integers, other
    values [k, B, ...] by record; in_order: see `kept_in_order`."""

    records: Sequence[Record]
    in_order: frozenset[int]
    valid: np.ndarray[Any, np.dtype[np.bool_]]
    tokens: Mapping[int, np.ndarray[Any, np.dtype[np.int64]]]
    values: Mapping[int, Tensor]

    def replay(self, rank: Rank, slot: int, row: DeviceRow, steps: int) -> None:
        """Do for one row what its iterations recorded: what has an order in it, the rest at once. What is behind `steps` is a head."""
        valid = self.valid[:, :, slot]
        seen = []
        for r, record in enumerate(self.records):
            if r in self.in_order:
                seen.append((r, record))
            else:
                self._count(row, r, record, valid[:, r], slot)
        for step, flags in enumerate(valid.tolist()):
            for r, record in seen:
                if flags[r] and record.kind in _QUIET:
                    self._count(row, r, record, np.arange(len(valid)) == step, slot)
                elif flags[r]:
                    value = self.tokens[r][step, slot] if r in self.tokens else self.values[r][step, slot]
                    self._do(rank, row, record, value)
                    if not row.row.run.alive:
                        return
                    if step == steps:
                        row.row.note_head(record.name if record.kind == "send" else "")

    def _count(
        self, row: DeviceRow, r: int, record: Record, valid: np.ndarray[Any, np.dtype[np.bool_]], slot: int
    ) -> None:
        """Executions of a record that change what the request holds."""
        times = int(np.count_nonzero(valid))
        if not times:
            return
        tokens: list[int] | None = self.tokens[r][valid, slot].tolist() if r in self.tokens else None
        if record.kind == "write":
            for name in record.contexts:
                row.written[name].add(record, times, tokens)
        else:
            row.draw(record, times, tokens)

    @staticmethod
    def _do(rank: Rank, row: DeviceRow, record: Record, value: np.int64 | Tensor) -> None:
        """What one execution of a record lets others see: an integer of the host, or a value."""
        session, run = row.row.session, row.row.run
        match record.kind:
            case "emit":
                item = int(value) if isinstance(value, np.int64) else rank.arrays.to_host(value)
                rank.emit(session, run.name, record.name, item, dict(record.attributes))
            case "send":
                rank.stream_out(session, record.name, run.scope).push(value, there=True)
            case "collect":
                row.row.collected.setdefault(record.name, []).append(torch.as_tensor(value))
