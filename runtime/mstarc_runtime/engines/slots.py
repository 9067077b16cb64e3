"""Slots: B contexts of one pool as static device tensors, and the `Run` of an op on them. Nothing here waits for the device.

An op can run on slots when every argument has a fixed shape and the number of entries it takes (E) is a constant. Then a call has
B · E rows whatever the contexts hold, its kernels are the same every time, and it can be captured once and replayed: the page
tables, lengths and positions are read on the device and moved there.

    slots = Slots(pool, rows=8, pages=64)              # room for 8 contexts of up to 64 pages
    slots.put(3, context)                              # slot 3 is this context (its pages cover what will be written)
    (logits,) = call_slots(component.step, spec, [slots], args, active=slots.active)

The host's `Context` objects do not see what happens on the slots; who replays calls keeps them in step (`Context.extend`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines import attend_torch
from mstarc_runtime.engines.paged_run import EngineError
from mstarc_runtime.engines.transformer import OpSpec

if TYPE_CHECKING:
    from mstarc_runtime.engines.attend_step_triton import Shares


def attention_on(device: torch.device) -> Callable[..., Tensor]:
    """`attend_slots` for tensors of that device (see `attend_torch.attend_slots`)."""
    if device.type == "cuda":
        from mstarc_runtime.engines import attend_triton  # triton is there where CUDA is

        return attend_triton.attend_slots
    return attend_torch.attend_slots


class Slots:
    """The contexts of B rows over one pool.

    table i32 [B, P]: pages of each context; length i32 [B]: entries before the next call; position i64 [B]: the counter; active
    bool [B]: a row that is not active writes nothing and advances nothing.
    """

    def __init__(self, pool: PagedPool, rows: int, pages: int) -> None:
        device = pool.data.device
        self.pool = pool
        self.table = torch.zeros(rows, pages, dtype=torch.int32, device=device)
        self.length = torch.zeros(rows, dtype=torch.int32, device=device)
        self.position = torch.zeros(rows, dtype=torch.int64, device=device)
        self.active = torch.zeros(rows, dtype=torch.bool, device=device)
        self._host = torch.zeros(rows, pages, dtype=torch.int32)  # what the table is to hold
        self._known: dict[int, list[int]] = {}  # by slot, what was set last
        self._stale = False
        self._ahead: dict[int, Tensor] = {}

    @property
    def rows(self) -> int:
        return len(self.length)

    def first(self, rows: int) -> Slots:
        """The first `rows` slots, sharing memory with these."""
        part = object.__new__(Slots)
        part.pool = self.pool
        for name in ("table", "length", "position", "active", "_host"):
            setattr(part, name, getattr(self, name)[:rows])
        part._known = self._known
        part._stale = False
        part._ahead = self._ahead
        return part

    def ahead(self, takes: int) -> Tensor:
        """0, 1, ... i64 [takes]; made once, because every step asks for it."""
        if takes not in self._ahead:
            self._ahead[takes] = torch.arange(takes, device=self.position.device)
        return self._ahead[takes]

    def put(self, slot: int, context: Context) -> None:
        """Slot `slot` becomes this context, active. Raises EngineError if its pages do not fit the table."""
        self.set_pages(slot, context.pages)
        self.upload()
        self.length[slot] = context.length
        self.position[slot] = context.position
        self.active[slot] = True

    def load(self, contexts: Sequence[Context]) -> None:
        """The first slots become these contexts, active, and the others idle: for calls whose contexts differ each time."""
        for slot, context in enumerate(contexts):
            self.set_pages(slot, context.pages)
        self.upload()
        idle = [0] * (self.rows - len(contexts))
        state = torch.tensor(
            [
                [context.length for context in contexts] + idle,
                [context.position for context in contexts] + idle,
                [1] * len(contexts) + idle,
            ]
        )
        if self.length.device.type == "cuda":
            state = state.pin_memory()
        length, position, active = state.to(self.length.device, non_blocking=True)
        self.length.copy_(length)
        self.position.copy_(position)
        self.active.copy_(active)

    def move(self, source: int, target: int) -> None:
        """Slot `target` becomes what slot `source` is."""
        self._host[target] = self._host[source]
        self._known[target] = self._known.get(source, [])
        for tensor in (self.table, self.length, self.position, self.active):
            tensor[target] = tensor[source]

    def set_pages(self, slot: int, pages: Sequence[int]) -> None:
        """The pages of one slot, from the next `upload` on. Raises EngineError if the table has no room for so many."""
        if len(pages) > self.table.shape[1]:
            raise EngineError(f"a context of {len(pages)} pages in slots of {self.table.shape[1]}")
        if self._known.get(slot) == pages:
            return
        self._known[slot] = list(pages)
        self._host[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self._stale = True

    def upload(self) -> None:
        """Bring the pages that were set to the device, behind the work that is queued there."""
        if self._stale:
            host = self._host.pin_memory() if self.table.device.type == "cuda" else self._host
            self.table.copy_(host, non_blocking=True)
            self._stale = False


class SlotsRun:
    """Implements `component.Run` for one call on slots: E rows for every slot. `active` bool [B]; see `call_slots`."""

    def __init__(
        self, name: str, slots: Slots, spec: OpSpec, takes: int, active: Tensor, cross: Slots | None = None
    ) -> None:
        self.rows = [takes] * slots.rows
        self.active = active
        self._name, self._slots, self._cross, self._takes = name, slots, cross, takes
        self._frozen, self._causal = spec.frozen, spec.attend == "causal"
        self._attend = attention_on(slots.length.device)
        self._written: set[int] = set()
        first = slots.position[:, None]
        seq = spec.positions == "seq" and takes > 1
        rows = first + slots.ahead(takes) if seq else first.expand(-1, takes)
        self.positions = rows.reshape(-1)

    @cached_property
    def last(self) -> Tensor:
        """Index of the last row of each slot, i64 [B]."""
        return torch.arange(1, self._slots.rows + 1, device=self.positions.device) * self._takes - 1

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.attend`."""
        if not self._frozen:
            self._note(layer)
        return self._mix(self._slots, layer, q, k, v, self._causal, self._frozen, scale)

    def attend_step(self, layer: int, qkv: Tensor, cos: Tensor, sin: Tensor, arrived: Tensor | None) -> Tensor | Shares:
        """`attend` of one row per slot from a product in parts that is not rotated: see `attend_step_triton.attend_step`."""
        from mstarc_runtime.engines import attend_step_triton

        if self._frozen or self._takes != 1:
            raise EngineError(f"`{self._name}` is not a step of one row that joins its context")
        self._note(layer)
        slots = self._slots
        return attend_step_triton.attend_step(
            slots.pool.data[layer],
            qkv,
            cos,
            sin,
            slots.table,
            slots.length,
            self.active,
            arrived,
            page_size=slots.pool.page_size,
            scale=qkv.shape[-1] ** -0.5,
        )

    def frozen(self) -> Slots:
        """The slots of an op that only reads all of its context, for a component that attends by itself. Raises EngineError."""
        if not self._frozen or self._causal:
            raise EngineError(f"`{self._name}` is not an op that sees all of a frozen context")
        return self._slots

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `Run.write`."""
        if self._frozen:
            raise EngineError(f"`{self._name}` is frozen but its component writes to its context")
        self._note(layer)
        slots = self._slots
        attend_torch.append_slots(
            slots.pool.data[layer],
            k,
            v,
            slots.table,
            slots.length,
            self.active,
            rows_per_slot=self._takes,
            page_size=slots.pool.page_size,
        )

    def cross(self, layer: int, q: Tensor, *, scale: float | None = None) -> Tensor:
        """See `Run.cross`."""
        if self._cross is None:
            raise EngineError(f"the component of `{self._name}` attends across, but the call names no source")
        return self._mix(self._cross, layer, q, None, None, False, True, scale)

    def check_complete(self) -> None:
        """After the component returned: every layer of a written context has got the rows. Raises EngineError."""
        layers = self._slots.pool.geometry.layers
        if not self._frozen and len(self._written) != layers:
            missing = sorted(set(range(layers)) - self._written)
            raise EngineError(f"the component of `{self._name}` did not write layers {missing}")

    def _mix(
        self,
        slots: Slots,
        layer: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        causal: bool,
        frozen: bool,
        scale: float | None,
    ) -> Tensor:
        return self._attend(
            slots.pool.data[layer],
            q,
            k,
            v,
            slots.table,
            slots.length,
            self.active,
            rows_per_slot=self._takes,
            page_size=slots.pool.page_size,
            causal=causal,
            frozen=frozen,
            scale=q.shape[-1] ** -0.5 if scale is None else scale,
        )

    def _note(self, layer: int) -> None:
        if layer in self._written:
            raise EngineError(f"the component of `{self._name}` writes layer {layer} twice")
        self._written.add(layer)


def call_slots(
    method: Callable[..., Any],
    spec: OpSpec,
    targets: Sequence[Slots],
    args: Sequence[Tensor | None],
    active: Tensor,
    *,
    takes: int,
    advance: int | None = None,
    cross: Slots | None = None,
) -> tuple[Tensor, ...]:
    """Run `method(run, *args)` on the slots and move them, all on the device. One column [B, ...] per result.

    Arguments and results are those of `TransformerEngine`, batched: `scalar` [B], `plain` [B, ...], `packed` [B · E, ...] in; `row`
    [B, ...] and `packed` [B, E, ...] out. Several `targets` are independent runs of the op; the value is that of the first. `active`
    bool [B]: the others compute along and change nothing. Raises EngineError if the component breaks a rule of the engine.
    """
    columns: tuple[Tensor, ...] = ()
    for number, slots in enumerate(targets):
        run = SlotsRun(spec.name, slots, spec, takes, active, cross)
        value = method(run, *args)
        run.check_complete()
        if number == 0:
            columns = _columns(spec, value, slots.rows)
        if not spec.frozen:
            slots.length.add_(active, alpha=takes)
            moved = (0 if spec.positions == "same" else takes) if advance is None else advance
            slots.position.add_(active, alpha=moved)
    return columns


def _columns(spec: OpSpec, value: Any, rows: int) -> tuple[Tensor, ...]:
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    if len(values) != len(spec.results):
        raise EngineError(f"the component of `{spec.name}` gives {len(values)} results, the op has {len(spec.results)}")
    columns: list[Tensor] = []
    for kind, result in zip(spec.results, values, strict=True):
        if len(result) % rows or (kind == "row" and len(result) != rows):
            raise EngineError(f"a result of `{spec.name}` is {list(result.shape)} for {rows} slots")
        columns.append(result.view(rows, -1, *result.shape[1:]) if kind == "packed" else result)
    return tuple(columns)
