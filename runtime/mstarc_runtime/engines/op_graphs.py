"""An op outside regions whose shapes are fixed, captured once per batch size: static inputs and slots in, one replay a call.

An op has a graph if every argument is a scalar or of fixed shape and it takes a constant number of entries on one context (a flow
step, a frame of a rollout, a decode step that a coroutine calls). Batches are padded to a bucket; padding rows are not active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.slots import Slots, call_slots
from mstarc_runtime.engines.transformer import Call, OpSpec

Out = TypeVar("Out")
BUCKETS = (1, 2, 4, 8, 16)


class Capture(Protocol):
    """Makes fixed-shape device work something to replay; it has run once before."""

    def capture(self, work: Callable[[], Out]) -> Callable[[], Out]: ...


def capture_each(
    buckets: Iterable[int], work: Callable[[int], Out], capture: Capture, progress: Callable[[int, int], None]
) -> dict[int, Callable[[], Out]]:
    """Replays of `work(bucket)` by bucket, the largest first, so that the smaller ones find memory. Raises what the work raises."""
    made: dict[int, Callable[[], Out]] = {}
    order = sorted(buckets, reverse=True)
    with torch.inference_mode():
        for bucket in order:
            progress(len(made), len(order))
            work(bucket)  # compiles kernels and settles what the component keeps
            made[bucket] = capture.capture(partial(work, bucket))
    progress(len(made), len(order))
    return made


@dataclass(frozen=True, slots=True)
class FixedOp:
    """What a graph must know of an op beside its spec: dtype and dims of each argument of one request, entries and advance."""

    spec: OpSpec
    inputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    takes: int
    advance: int | None = None


class OpGraph:
    """Replays of one op by bucket. Made at start-up; a call then costs one upload of pages and lengths, copies and a replay."""

    def __init__(
        self,
        method: Callable[..., Any],
        op: FixedOp,
        pool: PagedPool,
        pages: int,
        capture: Capture,
        buckets: Sequence[int] = BUCKETS,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`pages`: the most that a context has. Captures every bucket; raises what the component raises on zeros."""
        most, device = max(buckets), pool.data.device
        self._op, self._method, self._pool = op, method, pool
        self._slots = Slots(pool, most, pages)
        self._inputs = [torch.zeros(most, *dims, dtype=dtype, device=device) for dtype, dims in op.inputs]
        self._replays = capture_each(buckets, self._work, capture, progress)

    def fits(self, calls: Sequence[Call]) -> bool:
        """Whether these calls can be replayed."""
        return all(
            len(call.contexts) == 1
            and call.takes == self._op.takes
            and call.cross is None
            and len(call.contexts[0].pages) <= self._slots.table.shape[1]
            and all(
                tuple(getattr(value, "shape", ())) == dims
                for value, (_, dims) in zip(call.args, self._op.inputs, strict=True)
            )
            and None not in call.args
            for call in calls
        )

    def run(self, calls: Sequence[Call]) -> tuple[Tensor, ...]:
        """One column [B, ...] per result, of the calls' contexts, which have room. The contexts do not count it yet.

        More calls than the largest bucket are several replays.
        """
        most = self._slots.rows
        pieces = [self._replay(calls[first : first + most]) for first in range(0, len(calls), most)]
        return pieces[0] if len(pieces) == 1 else tuple(torch.cat(columns) for columns in zip(*pieces, strict=True))

    def _replay(self, calls: Sequence[Call]) -> tuple[Tensor, ...]:
        bucket = min(size for size in self._replays if size >= len(calls))
        contexts = [call.contexts[0] for call in calls]
        self._slots.load(contexts)
        for k, static in enumerate(self._inputs):
            values = [torch.as_tensor(call.args[k], device=static.device) for call in calls]
            if len(values) == 1:
                static[0].copy_(values[0])
            else:
                static[: len(calls)].copy_(torch.stack(values))
        return tuple(column[: len(calls)].clone() for column in self._replays[bucket]())

    def _work(self, bucket: int) -> tuple[Tensor, ...]:
        slots = self._slots.first(bucket)
        inputs = [static[:bucket] for static in self._inputs]
        op = self._op
        return call_slots(self._method, op.spec, [slots], inputs, slots.active, takes=op.takes, advance=op.advance)
