"""One run of one walk for one request: the `Walk` that generated coroutines speak to, and its state for the scheduler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mstarc_runtime.guidance import guide
from mstarc_runtime.program import Absent
from mstarc_runtime.worker.waits import CallWait, ExternWait, LoopWait, ParallelWait, SendWait, TakeWait

if TYPE_CHECKING:
    from mstarc_runtime.program import Steps
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.session import Session


class WalkRun:
    """Implements `mstarc_runtime.program.Walk`. `steps` is the coroutine; `waiting` says in words what it waits for."""

    __slots__ = (
        "alive",
        "causes",
        "closes",
        "config",
        "counts",
        "name",
        "rank",
        "run",
        "scope",
        "session",
        "steps",
        "waiting",
    )

    def __init__(self, rank: Rank, session: Session, run: int, name: str, scope: int, closes: Sequence[str]) -> None:
        self.rank = rank
        self.session = session
        self.run = run
        self.name = name
        self.scope = scope
        self.closes = tuple(closes)
        self.config = rank.config
        self.causes: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.alive = True
        self.waiting = "its first step"
        self.steps: Steps | None = None

    def close(self) -> None:
        """End the coroutine, unless it is the one that runs now: it ends at its next wait, and nobody resumes it."""
        if self.steps is not None and inspect.getgeneratorstate(self.steps) != inspect.GEN_RUNNING:
            self.steps.close()

    @property
    def params(self) -> Any:
        return self.session.params

    @property
    def host(self) -> Any:
        return self.session.host

    # ------------------------------------------------------------------------------------------------- verbs that wait

    def call(
        self,
        op: str,
        *args: Any,
        writes: tuple[str, ...] = (),
        reads: tuple[str, ...] = (),
        only: tuple[int, ...] | None = None,
    ) -> CallWait:
        return CallWait(op, args, writes, reads, only, self.name)

    def parallel(self, *calls: CallWait | Absent) -> ParallelWait:
        return ParallelWait(calls)

    def loop(
        self,
        label: str,
        body: Callable[..., tuple[Any, ...]],
        kind: str,
        bound: int,
        carry: tuple[Any, ...],
        fixed: tuple[Any, ...] = (),
        bodies: Sequence[Callable[..., tuple[Any, ...]]] = (),
    ) -> LoopWait:
        return LoopWait(label, body, kind, int(bound), carry, fixed, bodies)

    def send(self, stream: str, item: Any) -> SendWait:
        return SendWait(stream, item)

    def take(self, *streams: str) -> TakeWait:
        return TakeWait(streams)

    def extern(self, name: str, *args: Any) -> ExternWait:
        return ExternWait(name, args)

    # ------------------------------------------------------------------------------------------------ verbs that do not

    def sample(self, sampler: str, logits: Any, site: str) -> Any:
        logits = self.rank.arrays.asarray(logits)
        if self.name in self.rank.consumers:
            return self._sample_joined(sampler, logits, site)
        if self.rank.late_draws is not None:
            drawn = self.rank.late_draws.sample(self, sampler, logits, site)
            if drawn is not None:
                return drawn
        return self.rank.ops.sample(sampler, logits[None], [(self.session, f"{self.name}/{site}")])[0]

    def _sample_joined(self, sampler: str, logits: Any, site: str) -> Any:
        """A draw of a walk in the queue beside: histories are of the main queue."""
        queues = self.rank.queues
        assert queues is not None, "only a rank with queues has consumers"
        with queues.joined():
            queues.lend(logits, side=False)
            drawn = self.rank.ops.sample(sampler, logits[None], [(self.session, f"{self.name}/{site}")])[0]
        queues.lend(drawn, side=True)
        return drawn

    def noise(self, dtype: str, dims: tuple[int, ...], site: str) -> Any:
        return self.rank.ops.noise(dtype, dims, [(self.session, f"{self.name}/{site}")])[0]

    def emit(self, modality: str, value: Any, **attributes: Any) -> None:
        self.rank.emit(self.session, self.name, modality, value, attributes)

    def fork(self, target: str, source: str) -> None:
        self.session.fork(target, source)

    def drop(self, *contexts: str) -> None:
        self.session.drop(contexts)

    def true(self, flag: Any) -> bool:
        return bool(flag)

    def cause(self, label: str, why: str) -> None:
        self.causes[label] = why

    def guide(self, v: Any, *branches_and_settings: Any) -> Any:
        return guide(v, *branches_and_settings)

    def rows(self, values: Any, least: int, count: int) -> Any:
        """See `Walk.rows`. A tuple holds f32 numbers of the host."""
        found = np.asarray(values, np.float32) if isinstance(values, tuple) else values
        table = self.rank.arrays.asarray(found)
        if len(table) < least:
            raise IndexError(f"{least} rows are read of a value that has {len(table)}")
        return self.rank.arrays.resized(table, count)

    def cat(self, items: Sequence[Any]) -> Any:
        return self.rank.arrays.cat(items)
