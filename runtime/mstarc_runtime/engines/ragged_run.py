"""`PagedRun` on the kernels of a GPU: one upload per call says where every request's rows and pages are, one kernel a layer attends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.attend_triton import attend_packed
from mstarc_runtime.engines.paged_run import EngineError, PagedRun, upload


@dataclass(frozen=True, slots=True)
class Places:
    """Contexts of a batch on the device: table i32 [B, P], length i32 [B], starts i32 [B + 1] of the packed rows, lane i32 [ΣT]."""

    pool: PagedPool
    table: Tensor
    length: Tensor
    starts: Tensor
    lane: Tensor


class RaggedRun(PagedRun):
    """Implements `Run` for one call with any number of rows per request."""

    @cached_property
    def last(self) -> Tensor:
        """Index of the last row of each run, i64 [B]."""
        return self._own_places.starts[1:].long() - 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.attend`."""
        self._check(layer, q, "q")
        if self._frozen:
            self._check(layer, k, "k")
            self._check(layer, v, "v")
        else:
            self._note(layer, k, v)
        return self._mix(self._own_places, layer, q, k, v, scale)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `Run.write`."""
        self._note(layer, k, v)
        data = self._pool.data[layer]
        data.index_copy_(1, self._row_slots, torch.cat([k, v], dim=1).transpose(0, 1).to(data.dtype))

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.cross`."""
        self._check(layer, q, "q")
        return self._mix(self._cross_places, layer, q, None, None, scale)

    def _mix(
        self, places: Places, layer: int, q: Tensor, k: Tensor | None, v: Tensor | None, scale: float | None
    ) -> Tensor:
        return attend_packed(
            places.pool.data[layer],
            q,
            k,
            v,
            places.table,
            places.length,
            places.starts,
            most_rows=max(self.rows),
            page_size=places.pool.page_size,
            causal=self._causal and k is not None,
            frozen=self._frozen,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
        )

    @cached_property
    def _own_places(self) -> Places:
        return _places(self._pool, [lane.context for lane in self._lanes], self.rows)

    @cached_property
    def _cross_places(self) -> Places:
        sources = [lane.cross for lane in self._lanes if lane.cross is not None]
        if len(sources) != len(self._lanes):
            raise EngineError(f"the component of `{self._name}` attends across, but the call names no source")
        pool = sources[0].pool
        if any(source.pool is not pool for source in sources):
            raise EngineError(f"`{self._name}`: the cross sources of a batch lie in different pools")
        return _places(pool, sources, self.rows)

    @cached_property
    def _row_slots(self) -> Tensor:
        """Where the packed rows go, i64 [ΣT]."""
        places, size = self._own_places, self._pool.page_size
        lane = places.lane.long()
        entry = places.length[lane] + torch.arange(len(lane), device=lane.device) - places.starts[lane]
        return places.table[lane, entry // size].long() * size + entry % size


def _places(pool: PagedPool, contexts: Sequence[Context], rows: Sequence[int]) -> Places:
    """One host array, one upload. Reserved pages are in the table: the rows go there."""
    count = len(contexts)
    width = max(1, max(len(context.pages) for context in contexts))
    table = np.zeros((count, width), np.int32)
    for line, context in zip(table, contexts, strict=True):
        line[: len(context.pages)] = context.pages
    lengths = np.array([context.length for context in contexts], np.int32)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    lanes = np.repeat(np.arange(count, dtype=np.int32), rows)
    device = upload(np.concatenate([table.reshape(-1), lengths, starts, lanes]), pool.data.device)
    parts = torch.split(device, [table.size, count, count + 1, len(lanes)])
    return Places(pool, parts[0].view(count, width), parts[1], parts[2], parts[3])
