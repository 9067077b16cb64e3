"""What a region loop keeps on the device: one row per request in static tensors, so that its iterations can be captured.

The tensors are made while the body is first run, with no row active: that run tells which params, contexts, samplers and sites the
body uses. A row is then written when its request joins, and stays in place until it leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.engines.slots import Slots
from mstarc_runtime.package import load_conductor
from mstarc_runtime.sampling.device import SamplerPlan, SamplerRows, Site, uploaded
from mstarc_runtime.sampling.philox import site_hash
from mstarc_runtime.sampling.sampler import History

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.session import Session

RUNNING, STOPPED, SPENT, FAILED = range(4)  # values of `LoopState.ended`
_KINDS = {"int": torch.int64, "float": torch.float32, "bool": torch.bool}


class NotOnDevice(Exception):
    """Why a region cannot run in fixed shapes on the device; the host's loop runs it then."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A request that becomes row `slot`, `done` iterations into the loop, with its values of the body's arguments."""

    slot: int
    session: Session
    carry: Sequence[Tensor]
    fixed: Sequence[Tensor]
    done: int
    bound: int

    def context(self, name: str) -> Context:
        """The request's context of that name, which is on."""
        found: Context | None = self.session.context(name)
        assert found is not None, "LoopState.suits says so"
        return found


class LoopState:
    """Rows of one region loop. Every tensor has `rows` rows on dim 0; a row beyond the bucket in use is not active.

    active bool: the row runs; iter i64: iterations it has finished; until i64: it runs while iter is below; heads i64: it may do the
    head of an iteration below; ahead bool: it has done that of the iteration it is at; bound i64: the loop's bound; ended i8: how it
    left; seed i64. carry, fixed: the body's arguments; results: the carried values of rows that have left.
    """

    def __init__(self, rank: Rank, walk: str, carry: Sequence[Tensor], fixed: Sequence[Tensor], rows: int) -> None:
        """`carry` and `fixed`: values of one request, for their shapes."""
        self.rank, self.walk, self.rows = rank, walk, rows
        self.device = rank.arrays.asarray(0).device
        self.active, self.ahead = self._zeros(torch.bool), self._zeros(torch.bool)
        self.iter, self.bound, self.seed = (self._zeros(torch.int64) for _ in range(3))
        self.limits = torch.zeros(2, rows, dtype=torch.int64, device=self.device)  # written together before each run
        self.until, self.heads = self.limits
        self.ended = self._zeros(torch.int8)
        self.carry = [self._zeros(value.dtype, *value.shape) for value in carry]
        self.results = [self._zeros(value.dtype, *value.shape) for value in carry]
        self.fixed = [self._zeros(value.dtype, *value.shape) for value in fixed]
        self.params: dict[str, Tensor] = {}
        self.numbers: dict[str, Tensor] = {}
        self.asked: dict[tuple[str, str], Tensor] = {}  # ("wants" | "given", modality)
        self.contexts: dict[str, Slots] = {}
        self.samplers: dict[str, SamplerRows] = {}
        self.sites: dict[str, Site] = {}
        self._links = {link.name: link for link in rank.linked.samplers}

    def _zeros(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(self.rows, *shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------------------------------- made when the body first asks

    def param(self, name: str) -> Tensor:
        """A request parameter of every row [rows]."""
        if name not in self.params:
            kinds = {param.name: param.kind for param in load_conductor(self.rank.linked).PARAMS}
            if kinds.get(name) not in _KINDS:
                raise NotOnDevice(f"param `{name}` of kind {kinds.get(name)} has no tensor")
            self.params[name] = self._zeros(_KINDS[kinds[name]])
        return self.params[name]

    def number(self, name: str) -> Tensor:
        """A numeric parameter of every row, f64 [rows]."""
        return self.numbers.setdefault(name, self._zeros(torch.float64))

    def answer(self, question: str, modality: str) -> Tensor:
        """`wants` or `given` of every row, bool [rows]."""
        return self.asked.setdefault((question, modality), self._zeros(torch.bool))

    def context(self, name: str) -> Slots:
        """The rows' contexts of that name."""
        if name not in self.contexts:
            pool = self.rank.ops.pool_of(name)
            most = self.rank.context_max.get(name, 0) or pool.total_pages * pool.page_size
            self.contexts[name] = Slots(pool, self.rows, min(pool.pages_for(most), pool.total_pages))
        return self.contexts[name]

    def sampler(self, name: str, vocab: int) -> SamplerRows:
        """Settings and histories of a sampler in every row."""
        found = self.samplers.get(name)
        if found is None:
            try:
                plan = SamplerPlan.of(self._links[name].settings)
                found = self.samplers[name] = SamplerRows(plan, self.rows, vocab, self.device)
            except ValueError as error:
                raise NotOnDevice(str(error)) from error
        if found.vocab != vocab:
            raise NotOnDevice(f"sampler `{name}` draws from {found.vocab} and from {vocab} ids")
        return found

    def site(self, name: str) -> Site:
        """A drawing site of the loop's walk."""
        if name not in self.sites:
            self.sites[name] = Site(site_hash(f"{self.walk}/{name}"), self.rows, self.device)
        return self.sites[name]

    def over(self, name: str) -> str:
        """The context whose ids count for a sampler's penalty, or ""."""
        return self._links[name].over

    # ------------------------------------------------------------------------------------------------------------- rows

    def suits(self, session: Session) -> bool:
        """Whether the request can be a row: every context of the loop is on."""
        return all(session.context(name) is not None for name in self.contexts)

    def check(self, session: Session) -> None:
        """Raises BadRequest if a setting of the request is out of range."""
        for name in self.samplers:
            self.rank.ops.sampler_of(name, session)

    def put(self, entrants: Sequence[Entrant]) -> None:
        """Requests become rows, in a few launches for all of them, and nobody waits for the device."""
        slots = [entrant.slot for entrant in entrants]
        for name, rows in self.samplers.items():
            held = [self.rank.ops.sampler_of(name, entrant.session) for entrant in entrants]
            ids = [self._counted(name, e.session, history) for e, (_, history) in zip(entrants, held, strict=True)]
            rows.put(slots, [settings for settings, _ in held], [history.count for _, history in held], ids)
        columns = [(tensor, [of(entrant) for entrant in entrants]) for tensor, of in self._columns()]
        at = uploaded(np.asarray(slots, np.int64), self.device)
        for floats in (False, True):
            some = [(tensor, values) for tensor, values in columns if tensor.is_floating_point() == floats]
            if some:
                numbers = np.array([values for _, values in some], np.float64 if floats else np.int64)
                for (tensor, _), column in zip(some, uploaded(numbers, self.device), strict=True):
                    tensor.index_copy_(0, at, column.to(tensor.dtype))
        for tensors, given in ((self.carry, [e.carry for e in entrants]), (self.fixed, [e.fixed for e in entrants])):
            for tensor, each in zip(tensors, zip(*given, strict=True), strict=True):
                tensor.index_copy_(0, at, torch.stack(each).to(tensor.dtype))
        for name, contexts in self.contexts.items():
            for entrant in entrants:
                contexts.set_pages(entrant.slot, entrant.context(name).pages)  # uploaded when a run is launched

    def show_pages(self, slot: int, session: Session) -> None:
        """Pages of the request in a row have moved: where they are, for the next run."""
        for name, contexts in self.contexts.items():
            contexts.set_pages(slot, session.contexts[name].pages)

    def _counted(self, sampler: str, session: Session, history: History) -> list[Tensor]:
        """The ids that the penalty of a sampler counts in a request."""
        context: Context | None = session.context(self.over(sampler)) if self.over(sampler) else None
        return [history.ids] if context is None else [history.ids, context.entry_ids]

    def _columns(self) -> list[tuple[Tensor, Callable[[Entrant], Any]]]:
        """Tensors with one number per row, and the number of a request that joins."""
        found: list[tuple[Tensor, Callable[[Entrant], Any]]] = [
            (self.iter, lambda e: e.done),
            (self.until, lambda e: e.done),
            (self.heads, lambda e: e.done),
            (self.ahead, lambda e: False),
            (self.bound, lambda e: e.bound),
            (self.seed, lambda e: (e.session.seed + (1 << 63)) % (1 << 64) - (1 << 63)),
            (self.ended, lambda e: RUNNING),
            (self.active, lambda e: True),
        ]
        for name, site in self.sites.items():
            found.append((site.j, lambda e, name=name: e.session.draws.get(f"{self.walk}/{name}", 0)))  # type: ignore[misc]
        for name, values in (*self.params.items(), *self.numbers.items()):
            found.append((values, lambda e, name=name: getattr(e.session.params, name)))  # type: ignore[misc]
        for key, values in self.asked.items():
            found.append((values, lambda e, key=key: getattr(e.session.host, key[0])(key[1])))  # type: ignore[misc]
        for name, contexts in self.contexts.items():
            found.append((contexts.length, lambda e, name=name: e.context(name).length))  # type: ignore[misc]
            found.append((contexts.position, lambda e, name=name: e.context(name).position))  # type: ignore[misc]
            found.append((contexts.active, lambda e: True))
        return found

    def remove(self, slot: int) -> None:
        """The row of a request that is over: whatever it would still do is not done."""
        self.active[slot] = False

    def move(self, source: int, target: int) -> None:
        """Row `target` becomes what row `source` is, and that one is free."""
        for tensor in self.tensors():
            tensor[target] = tensor[source]
        for slots in self.contexts.values():
            slots.move(source, target)
        self.remove(source)

    def tensors(self) -> list[Tensor]:
        """Every tensor with a row per request."""
        found = [self.active, self.ahead, self.iter, self.until, self.heads, self.bound, self.seed, self.ended]
        found += [*self.carry, *self.fixed, *self.results, *self.params.values()]
        found += [*self.numbers.values(), *self.asked.values()]
        found += [site.j for site in self.sites.values()]
        return found + [tensor for rows in self.samplers.values() for tensor in rows.tensors()]
