"""The packed batch that a component sees (`component.Run`), over the pages of contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.attention import Attention, Query, Workspace


class EngineError(RuntimeError):
    """A rule of the engine was broken by the plan, the component or the worker: an internal error, not the request's."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One run of the op: a call on one of its contexts."""

    context: Context
    takes: int
    cross: Context | None


def upload(values: NDArray[Any], device: torch.device) -> Tensor:
    """The values on the device, behind the work that is queued there; the host does not wait for it."""
    host = torch.from_numpy(values)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


class PagedRun:
    """Implements `Run` for one call. Made after every write context has room for its rows."""

    def __init__(
        self,
        name: str,
        pool: PagedPool,
        lanes: Sequence[Lane],
        positions: Tensor,
        attend: Literal["causal", "full"],
        frozen: bool,
        space: Workspace,
    ) -> None:
        """`positions` of the packed rows, i64 [ΣT] or [3, ΣT]."""
        self.rows = [lane.takes for lane in lanes]
        self.positions = positions
        self._name, self._pool, self._lanes, self._frozen, self._space = name, pool, lanes, frozen, space
        self._causal = attend == "causal"
        self._written: set[int] = set()

    @cached_property
    def last(self) -> Tensor:
        """Index of the last row of each run, i64 [B]."""
        return torch.tensor(self.rows, device=self._pool.data.device).cumsum(0) - 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.attend`."""
        self._check(layer, q, "q")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        if self._frozen:
            self._check(layer, k, "k")
            self._check(layer, v, "v")
            return self._own(layer, q, k, v, scale)
        self.write(layer, k, v)
        return self._own(layer, q, None, None, scale)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `Run.write`."""
        self._note(layer, k, v)
        data, kv_heads = self._pool.data[layer], self._pool.geometry.kv_heads
        if isinstance(self._slots, slice):
            data[:kv_heads, self._slots] = k.transpose(0, 1)
            data[kv_heads:, self._slots] = v.transpose(0, 1)
        else:
            data.index_copy_(1, self._slots, torch.cat([k, v], dim=1).transpose(0, 1).to(data.dtype))

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.cross`. A source without entries gives zeros."""
        self._check(layer, q, "q")
        return self._cross(layer, q, None, None, q.shape[-1] ** -0.5 if scale is None else scale)

    def check_complete(self) -> None:
        """After the component returned: every layer of a written context has got the rows. Raises EngineError."""
        if not self._frozen and len(self._written) != self._pool.geometry.layers:
            missing = sorted(set(range(self._pool.geometry.layers)) - self._written)
            raise EngineError(f"the component of `{self._name}` did not write layers {missing}")

    # --------------------------------------------------------------------------------------------------------------- plans

    @cached_property
    def _own(self) -> Attention:
        queries = []
        for first, lane in zip(self._firsts(), self._lanes, strict=True):
            own = 0 if self._frozen else lane.takes
            queries.append(Query(lane.context, first, lane.takes, lane.context.length + own, own))
        return Attention(self._pool, queries, self._causal, self._frozen, self._space)

    @cached_property
    def _cross(self) -> Attention:
        queries = []
        for first, lane in zip(self._firsts(), self._lanes, strict=True):
            if lane.cross is None:
                raise EngineError(f"the component of `{self._name}` attends across, but the call names no source")
            queries.append(Query(lane.cross, first, lane.takes, lane.cross.length, 0))
        pool = queries[0].context.pool
        if any(query.context.pool is not pool for query in queries):
            raise EngineError(f"`{self._name}`: the cross sources of a batch lie in different pools")
        return Attention(pool, queries, False, False, self._space)

    def _note(self, layer: int, k: Tensor, v: Tensor) -> None:
        """A layer is about to be written."""
        if self._frozen:
            raise EngineError(f"`{self._name}` is frozen but its component writes to its context")
        self._check(layer, k, "k")
        self._check(layer, v, "v")
        if layer in self._written:
            raise EngineError(f"the component of `{self._name}` writes layer {layer} twice")
        self._written.add(layer)

    def _firsts(self) -> list[int]:
        firsts = [0]
        for count in self.rows[:-1]:
            firsts.append(firsts[-1] + count)
        return firsts

    @cached_property
    def _slots(self) -> slice | Tensor:
        """Where the packed rows go: a slice if they are neighbours, else i64 [ΣT]."""
        slots = [
            slot
            for lane in self._lanes
            for slot in lane.context.slots(lane.context.length, lane.context.length + lane.takes)
        ]
        if slots == list(range(slots[0], slots[0] + len(slots))):
            return slice(slots[0], slots[0] + len(slots))
        return torch.tensor(slots, device=self._pool.data.device)

    def _check(self, layer: int, rows: Tensor, what: str) -> None:
        geometry = self._pool.geometry
        if not 0 <= layer < geometry.layers:
            raise EngineError(f"`{self._name}`: layer {layer} of a cache with {geometry.layers} layers")
        heads = geometry.heads if what == "q" else geometry.kv_heads
        wanted = (int(self.positions.shape[-1]), heads, geometry.head_dim)
        if tuple(rows.shape) != wanted:
            raise EngineError(f"`{self._name}`: {what} of layer {layer} is {list(rows.shape)}, expected {list(wanted)}")
