"""The captured runs of one region loop, one for each number of rows and of iterations that is offered, and what an iteration records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from mstarc_runtime.worker.device_batch import DeviceBatch, Outcome, Record
from mstarc_runtime.worker.device_row import DeviceRow, Taken, kept_in_order
from mstarc_runtime.worker.device_runner import Fetch, Runner
from mstarc_runtime.worker.device_state import LoopState

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
DISTINCT = 3  # iterations that can differ in their kernels: the first, those between, and the last


@dataclass(slots=True)
class Run:
    """A run under way: who was where, what it did (on the device), and the copies for the host.

    fetch: `ended`, `iter`, `valid` and `ids` of the outcome, results of the loop, and those of its values that are not kept. results: of a
    loop that the run holds all of, what a row that ends in it leaves with, [B, ...] each; none of other loops.
    """

    rows: list[tuple[int, DeviceRow]]
    outcome: Outcome
    fetch: Fetch
    kept: dict[int, Tensor]  # values that stay on the device, by record
    bucket: int
    steps: int
    results: list[Tensor]
    began: float  # when the device began with it, as far as the host knows

    def read(self, results: int, in_order: frozenset[int]) -> tuple[list[Tensor], Taken]:
        """The copies of so many results, [B, ...] each, and what the iterations did, once the copies are there."""
        _, _, valid, ids, *values = self.fetch.tensors
        names = [r for r in self.outcome.values if r not in self.kept]
        taken = Taken(
            self.outcome.records,
            in_order,
            valid.numpy(),
            {r: ids[:, n].numpy() for n, r in enumerate(self.outcome.packed)},
            {**self.kept, **dict(zip(names, values[results:], strict=True))},
        )
        return values[:results], taken


class Captures:
    """Runs of a loop's body on its state.

    records: what one iteration does, in order. head: 1 if the body emits or sends in its head, of which a run shows one more than it has
    iterations. stays: the records whose values are used on the device. entries: what an iteration adds to each context. in_order: see
    `kept_in_order`.
    """

    def __init__(
        self,
        state: LoopState,
        body: Callable[..., tuple[Tensor, ...]],
        lengths: Sequence[int],
        runner: Runner,
        progress: Callable[[int, int], None],
    ) -> None:
        """Captures runs of so many iterations. Raises what the body raises on the rows of no request."""
        self._state, self._body = state, body
        self._buckets = [bucket for bucket in BUCKETS if bucket < state.rows] + [state.rows]
        self._replays: dict[tuple[int, int], Callable[[], Outcome]] = {}
        for done, bucket in enumerate(reversed(self._buckets)):
            progress(done, len(self._buckets))
            for _ in range(2 if bucket == state.rows else 1):
                self.records, self.head = self._try(bucket, lengths)
            for steps in lengths:
                self._replays[bucket, steps] = runner.capture(partial(self._work, bucket, steps))
        progress(len(self._buckets), len(self._buckets))
        self.stays = {r for r, record in enumerate(self.records) if self._stays(record)}
        self.entries: dict[str, int] = {}
        for record in self.records:
            for context in record.contexts:
                self.entries[context] = self.entries.get(context, 0) + record.entries
        self.in_order = kept_in_order(self.records)

    def bucket(self, rows: int) -> int:
        """The least number of rows that a run was captured for and that holds these."""
        return next(bucket for bucket in self._buckets if bucket >= rows)

    def run(self, bucket: int, steps: int) -> Outcome:
        """Queue a run of the first `bucket` rows. What it gives is overwritten by the next one."""
        return self._replays[bucket, steps]()

    def _work(self, bucket: int, steps: int) -> Outcome:
        return DeviceBatch(self._state, bucket).run(self._body, steps)

    def _try(self, bucket: int, lengths: Sequence[int]) -> tuple[tuple[Record, ...], int]:
        """Run the body before it is captured: this makes what it keeps in the state, and compiles its kernels. (records, head)."""
        for steps in lengths:
            iterations = min(steps, DISTINCT)
            tried = self._work(bucket, iterations)
        return tried.records, len(tried.valid) - iterations

    def _stays(self, record: Record) -> bool:
        return record.kind == "collect" or (record.kind == "send" and self._state.rank.stays_here(record.name))
