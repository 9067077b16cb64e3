"""An op that takes any number of rows (a prompt), captured once per number of rows in all: static rows and places in, one replay a call.

A prompt of some dozens of tokens is read in less time than its kernels take to launch, so launches are what is saved. Calls are padded
to a bucket of rows; rows beyond the calls' are nobody's: they compute along, attention and writes pass them over. The calls of a batch
are split among replays where they have more rows, or are more, than one replay takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines import attend_torch
from mstarc_runtime.engines.op_graphs import Capture, capture_each
from mstarc_runtime.engines.paged_run import EngineError
from mstarc_runtime.engines.transformer import Call, Column, OpSpec

BUCKETS = (64, 128, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048)  # rows of all requests together
REQUESTS = 32  # the most of one replay


def attention_on(device: torch.device) -> Callable[..., Tensor]:
    """`attend_packed` for tensors of that device (see `attend_torch.attend_packed`)."""
    if device.type == "cuda":
        from mstarc_runtime.engines import attend_triton  # triton is there where CUDA is

        return attend_triton.attend_packed
    return attend_torch.attend_packed


def places_on(device: torch.device) -> Any:
    """`positions_of` and `append_packed` for tensors of that device."""
    if device.type == "cuda":
        from mstarc_runtime.engines import places_triton

        return places_triton
    return attend_torch


@dataclass(frozen=True, slots=True)
class RaggedOp:
    """What a graph must know of an op beside its spec: dtype and dims of each argument of one request, a `packed` one without its first.

    counts: the argument whose rows are the entries that a call takes.
    """

    spec: OpSpec
    inputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    counts: int


class RaggedGraph:
    """Replays of one op by bucket. Made at start-up. A call then costs one upload of places, copies of its arguments and a replay."""

    def __init__(
        self,
        method: Callable[..., Any],
        op: RaggedOp,
        pool: PagedPool,
        pages: int,
        capture: Capture,
        buckets: Sequence[int] = BUCKETS,
        requests: int = REQUESTS,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """`pages`: the most that a context has. Captures every bucket; raises what the component raises without a request."""
        device = pool.data.device
        self._method, self._op, self._pool, self._requests = method, op, pool, requests
        sizes = [requests * pages, requests, requests, requests + 1]  # table, length, position, starts
        self._host = np.zeros(sum(sizes), np.int32)
        self._static = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
        self._parts = [part.numpy() for part in torch.split(torch.from_numpy(self._host), sizes)]
        self._parts[0] = self._parts[0].reshape(requests, pages)
        table, *rest = torch.split(self._static, sizes)
        self._places = (table.view(requests, pages), *rest)
        most = max(buckets)
        self._inputs = [
            torch.zeros(most if kind == "packed" else requests, *dims, dtype=dtype, device=device)
            for kind, (dtype, dims) in zip(op.spec.params, op.inputs, strict=True)
        ]
        self._replays = capture_each(buckets, self._work, capture, progress)

    def fits(self, calls: Sequence[Call]) -> bool:
        """Whether these calls can be replayed."""
        return all(self._fits(call) for call in calls)

    def _fits(self, call: Call) -> bool:
        width = self._places[0].shape[1]
        return (
            len(call.contexts) == 1
            and call.cross is None
            and call.takes <= max(self._replays)
            and len(call.contexts[0].pages) <= width
            and len(call.args[self._op.counts]) == call.takes
            and all(
                value is not None
                and tuple(getattr(value, "shape", ())) == ((call.takes, *dims) if kind == "packed" else dims)
                for kind, value, (_, dims) in zip(self._op.spec.params, call.args, self._op.inputs, strict=True)
            )
        )

    def run(self, calls: Sequence[Call]) -> tuple[Column, ...]:
        """One column per result, of the calls' contexts, which have room. The contexts do not count it yet."""
        pieces = [self._replay(piece) for piece in self._split(calls)]
        if len(pieces) == 1:
            return pieces[0]
        return tuple(
            torch.cat(columns) if kind == "row" else [each for column in columns for each in column]
            for kind, columns in zip(self._op.spec.results, zip(*pieces, strict=True), strict=True)
        )

    def _split(self, calls: Sequence[Call]) -> list[list[Call]]:
        """The calls in order, as many a replay as it takes."""
        pieces: list[list[Call]] = [[]]
        rows, most = 0, max(self._replays)
        for call in calls:
            if rows + call.takes > most or len(pieces[-1]) == self._requests:
                pieces.append([])
                rows = 0
            pieces[-1].append(call)
            rows += call.takes
        return pieces

    def _replay(self, calls: Sequence[Call]) -> tuple[Column, ...]:
        takes = [call.takes for call in calls]
        bucket = min(size for size in self._replays if size >= sum(takes))
        self._place(calls, takes)
        for k, (kind, static) in enumerate(zip(self._op.spec.params, self._inputs, strict=True)):
            values = [torch.as_tensor(call.args[k], device=static.device) for call in calls]
            joined = torch.cat(values) if kind == "packed" else torch.stack(values)
            static[: len(joined)].copy_(joined)
        found: list[Column] = []
        for given, column in zip(self._op.spec.results, self._replays[bucket](), strict=True):
            kept = column[: sum(takes) if given == "packed" else len(calls)].clone()
            found.append(list(torch.split(kept, takes)) if given == "packed" else kept)
        return tuple(found)

    def _place(self, calls: Sequence[Call], takes: Sequence[int]) -> None:
        """Where the calls' contexts are, in one upload behind the work that is queued. Requests that are not there have no rows."""
        table, length, position, starts = self._parts
        for line, call in enumerate(calls):
            context = call.contexts[0]
            table[line, : len(context.pages)] = context.pages
            length[line], position[line] = context.length, context.position
        starts[1 : len(takes) + 1] = np.cumsum(takes)
        starts[len(takes) + 1 :] = starts[len(takes)]
        host = torch.from_numpy(self._host)
        self._static.copy_(host.pin_memory() if self._static.is_cuda else host, non_blocking=True)

    def _work(self, bucket: int) -> tuple[Tensor, ...]:
        op = self._op
        inputs = [
            static[:bucket] if kind == "packed" else static
            for kind, static in zip(op.spec.params, self._inputs, strict=True)
        ]
        run = StaticRun(op.spec, self._pool, *self._places, rows=bucket)
        value = self._method(run, *inputs)
        run.check_complete()
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        wanted = [bucket if kind == "packed" else self._requests for kind in op.spec.results]
        if [len(each) for each in values] != wanted:
            raise EngineError(f"the component of `{op.spec.name}` gives {[len(v) for v in values]} rows, not {wanted}")
        return values


class StaticRun:
    """Implements `component.Run` on `rows` packed rows of B requests whose numbers of rows are known on the device only.

    table i32 [B, P], length, position i32 [B], starts i32 [B + 1]: as of `attend_packed`. Rows from starts[B] on are nobody's.
    """

    def __init__(
        self,
        spec: OpSpec,
        pool: PagedPool,
        table: Tensor,
        length: Tensor,
        position: Tensor,
        starts: Tensor,
        *,
        rows: int,
    ) -> None:
        self._spec, self._pool, self._rows = spec, pool, rows
        self._table, self._length, self._starts = table, length, starts
        self._attend, self._on = attention_on(length.device), places_on(length.device)
        self._written: set[int] = set()
        self.last = starts[1:].long() - 1
        self.last.clamp_(min=0)
        self.positions = self._on.positions_of(position, starts, rows, spec.positions == "seq")

    @property
    def rows(self) -> list[int]:
        """Not known to the host; a component that asks runs without a graph."""
        raise EngineError(f"the component of `{self._spec.name}` asks how many rows each request has")

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.attend`."""
        if not self._spec.frozen:
            self._note(layer)
        return self._attend(
            self._pool.data[layer],
            q,
            k,
            v,
            self._table,
            self._length,
            self._starts,
            most_rows=self._rows,
            page_size=self._pool.page_size,
            causal=self._spec.attend == "causal",
            frozen=self._spec.frozen,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
        )

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `Run.write`."""
        self._note(layer)
        data, size = self._pool.data[layer], self._pool.page_size
        self._on.append_packed(data, k, v, self._table, self._length, self._starts, page_size=size)

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.cross`: an op that attends across has no graph."""
        raise EngineError(f"the component of `{self._spec.name}` attends across, but the op does not say so")

    def check_complete(self) -> None:
        """After the component returned: every layer of a written context has got the rows. Raises EngineError."""
        layers = self._pool.geometry.layers
        if not self._spec.frozen and len(self._written) != layers:
            missing = sorted(set(range(layers)) - self._written)
            raise EngineError(f"the component of `{self._spec.name}` did not write layers {missing}")

    def _note(self, layer: int) -> None:
        if self._spec.frozen:
            raise EngineError(f"`{self._spec.name}` is frozen but its component writes to its context")
        if layer in self._written:
            raise EngineError(f"the component of `{self._spec.name}` writes layer {layer} twice")
        self._written.add(layer)
