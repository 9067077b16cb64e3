"""The transformer engine: runs one op of a transformer node for a batch of requests over the paged KV cache.

How a worker uses it::

    pool   = PagedPool.from_bytes(Geometry(layers, heads, kv_heads, head_dim), 512 << 20)   # one per cache of the plan
    engine = TransformerEngine(pool)                                                        # one per cache
    main   = Context(pool)                                                                  # one per request and context name

    spec  = OpSpec("llm.step", params=("scalar",), attend="causal", positions="seq")        # once per op, from the plan
    calls = [Call(args=(token,), contexts=(main,), takes=1) for each request]               # once per call
    (logits,) = engine.call(component.step, spec, calls)                                    # logits: [B, vocab]

Arguments of a call are those of ONE request, as the op declares them: `scalar` is an i64 tensor [] or an int, `packed` a tensor
whose first dim is free, `plain` a tensor of fixed shape, `host` any Python value. The engine gives the component `scalar` as [B],
`packed` concatenated as [ΣT, ...], `plain` stacked as [B, ...], `host` as a list of B values; an absent (None) argument must be
absent in all calls and arrives as None. Call those that differ apart.

Results are one column per result of the op, in order: a tensor with the calls on dim 0 (`row` results), or a list of one tensor
per call (`packed` results: rows as many as the call has in its first packed argument, or `takes`). An op without results gives ().

What a call does to its contexts (language, sentences 9 and 10):

* `contexts` are the write contexts. Several are independent runs of the op; the value is that of the first. A context may be
  in one call of a batch only. Each grows by `takes` entries and its counter moves by the advance.
* A `frozen` op has exactly one context in `contexts`, which it reads and does not change; any number of calls may share it.
* `cross` is the context that `Run.cross` attends to; it is never changed.
* positions: `seq` gives p..p+takes-1 and advances `takes`; `same` gives p to all and advances 0; `at` gives p + `offsets`
  ([takes] or [3, takes]). `advance` of the call replaces the advance, and is mandatory for `at`.
* All of it happens after the component has returned. If anything raises, every context is as it was before the call, including
  the pages it holds; the caller may then run the calls one by one to find the one at fault.
* The ids of the call's token argument (its one integer `scalar` or `packed` argument with `takes` rows) are kept in the context,
  for `repetition_penalty over`.

`takes` must be at least 1: the language skips a call that takes nothing. Errors: `OutOfPages` (a RequestFailed) if the pool is
full; `EngineError` if the plan, the component or the caller breaks a rule above; what the component raises passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.engines.attention import Workspace
from mstarc_runtime.engines.paged_run import EngineError, Lane, PagedRun, upload

__all__ = ["Call", "Column", "EngineError", "OpSpec", "TransformerEngine"]

Column: TypeAlias = "Tensor | list[Tensor]"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """What is the same in every call of an op. `params` and `results` are kinds by port, see the module's docstring."""

    name: str
    params: tuple[Literal["scalar", "packed", "plain", "host"], ...]
    results: tuple[Literal["row", "packed"], ...] = ("row",)
    attend: Literal["causal", "full"] = "causal"
    positions: Literal["seq", "same", "at"] = "seq"
    frozen: bool = False
    cross: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One request's call. `offsets` (op `at` only): i64 [takes] or [3, takes], added to the context's counter."""

    args: tuple[Any, ...]
    contexts: tuple[Context, ...]
    takes: int
    cross: Context | None = None
    offsets: Tensor | None = None
    advance: int | None = None


class Graph(Protocol):
    """An op captured (`op_graphs`, `ragged_graphs`)."""

    def fits(self, calls: Sequence[Call]) -> bool:
        """Whether these calls can be replayed."""
        ...

    def run(self, calls: Sequence[Call]) -> tuple[Column, ...]:
        """One column per result, of the calls' contexts, which have room. The contexts do not count it yet."""
        ...


class TransformerEngine:
    """Runs ops of transformer nodes over one pool. See the module's docstring."""

    def __init__(self, pool: PagedPool, kernels: bool | None = None) -> None:
        """`kernels`: run on Triton kernels instead of torch's SDPA; None = on a GPU."""
        self.pool = pool
        self._space = Workspace()
        self._run_class = PagedRun
        if kernels or (kernels is None and pool.data.device.type == "cuda"):
            from mstarc_runtime.engines.ragged_run import RaggedRun

            self._run_class = RaggedRun

    @torch.inference_mode()
    def call(
        self, method: Callable[..., Any], spec: OpSpec, calls: Sequence[Call], graph: Graph | None = None
    ) -> tuple[Column, ...]:
        """Run `method(run, *args)` for all calls at once and then move their contexts. One column per result.

        `graph`: the method captured; it is replayed instead if the calls fit it.
        """
        if not calls:
            return ()
        runs = [(call, context) for call in calls for context in call.contexts]
        self._check(spec, calls)
        held = [len(context.pages) for _, context in runs]
        try:
            if not spec.frozen:
                for call, context in runs:
                    context.reserve(call.takes)
            columns = graph.run(calls) if graph is not None and graph.fits(calls) else self._run(method, spec, calls)
            ids = [None if spec.frozen else _token_ids(spec, call) for call, _ in runs]
        except BaseException:
            if not spec.frozen:
                for (_, context), pages in zip(runs, held, strict=True):
                    context.release_reserved(keep=pages)
                    context.clean_tail()
            raise
        if not spec.frozen:
            for (call, context), written in zip(runs, ids, strict=True):
                context.extend(call.takes, _advance(spec, call), written)
        return columns

    def _run(self, method: Callable[..., Any], spec: OpSpec, calls: Sequence[Call]) -> tuple[Column, ...]:
        """The method on the packed batch of all runs."""
        runs = [(call, context) for call in calls for context in call.contexts]
        lanes = [Lane(context, call.takes, call.cross) for call, context in runs]
        positions = self._positions(spec, runs)
        run = self._run_class(spec.name, self.pool, lanes, positions, spec.attend, spec.frozen, self._space)
        args = self._pack(spec, [call for call, _ in runs])
        return self._columns(spec, calls, run, method(run, *args))

    # ------------------------------------------------------------------------------------------------------------ arguments

    def _check(self, spec: OpSpec, calls: Sequence[Call]) -> None:
        """The rules that the plan and the worker must keep."""
        written: set[int] = set()
        for call in calls:
            if len(call.args) != len(spec.params):
                raise EngineError(f"`{spec.name}` takes {len(spec.params)} arguments, got {len(call.args)}")
            if call.takes < 1:
                raise EngineError(f"`{spec.name}` is called with {call.takes} entries; such a call is skipped")
            if not call.contexts or (spec.frozen and len(call.contexts) != 1):
                raise EngineError(f"`{spec.name}` is called with {len(call.contexts)} contexts")
            if spec.cross and call.cross is None:
                raise EngineError(f"`{spec.name}` attends across, but the call names no source")
            if spec.positions == "at" and (call.offsets is None or (call.advance is None and not spec.frozen)):
                raise EngineError(f"`{spec.name}` has positions `at`: the call must give offsets and an advance")
            for context in call.contexts:
                if context.pool is not self.pool:
                    raise EngineError(f"`{spec.name}` is called with a context of another cache")
                self.pool.check_held(context.pages)
                if id(context) in written and not spec.frozen:
                    raise EngineError(f"`{spec.name}` writes one context twice in a batch")
                written.add(id(context))

    def _positions(self, spec: OpSpec, runs: Sequence[tuple[Call, Context]]) -> Tensor:
        """Positions of the packed rows, i64 [ΣT] or [3, ΣT]."""
        device = self.pool.data.device
        if spec.positions != "at":
            takes = np.array([call.takes for call, _ in runs])
            firsts = np.array([context.position for _, context in runs])
            rows = np.repeat(firsts, takes)
            if spec.positions == "seq":
                rows += np.arange(len(rows)) - np.repeat(np.cumsum(takes) - takes, takes)
            return upload(rows, device)
        placed: list[Tensor] = []
        for call, context in runs:
            assert call.offsets is not None
            if call.offsets.shape[-1] != call.takes:
                raise EngineError(f"`{spec.name}`: {call.takes} entries but positions {list(call.offsets.shape)}")
            placed.append(call.offsets.to(device) + context.position)
        return torch.cat(placed, dim=-1)

    def _pack(self, spec: OpSpec, calls: Sequence[Call]) -> list[Any]:
        """The component's arguments, by kind (see the module's docstring)."""
        device = self.pool.data.device
        packed: list[Any] = []
        for index, kind in enumerate(spec.params):
            values = [call.args[index] for call in calls]
            absent = sum(value is None for value in values)
            if absent and absent < len(values):
                raise EngineError(
                    f"`{spec.name}`: argument {index} is absent in {absent} of {len(values)} calls of a batch"
                )
            if absent:
                packed.append(None)
            elif kind == "host":
                packed.append(values)
            elif kind == "scalar":
                rows = [torch.as_tensor(value, device=device).reshape(()) for value in values]
                packed.append(torch.stack(rows))
            else:
                tensors = [torch.as_tensor(value, device=device) for value in values]
                packed.append(torch.cat(tensors) if kind == "packed" else torch.stack(tensors))
        return packed

    # -------------------------------------------------------------------------------------------------------------- results

    def _columns(self, spec: OpSpec, calls: Sequence[Call], run: PagedRun, value: Any) -> tuple[Column, ...]:
        """The results of each call's first context, one column per result."""
        run.check_complete()
        values = value if isinstance(value, tuple) else () if value is None else (value,)
        if len(values) != len(spec.results):
            raise EngineError(
                f"the component of `{spec.name}` gives {len(values)} results, the op has {len(spec.results)}"
            )
        columns: list[Column] = []
        for kind, result in zip(spec.results, values, strict=True):
            sizes = [_packed_rows(spec, call) if kind == "packed" else 1 for call in calls for _ in call.contexts]
            if result.shape[:1] != (sum(sizes),):
                raise EngineError(
                    f"a result of `{spec.name}` is {list(result.shape)}, expected {sum(sizes)} rows on dim 0"
                )
            firsts = _firsts([len(call.contexts) for call in calls])
            if kind == "packed":
                pieces = result.split(sizes)
                columns.append([pieces[first] for first in firsts])
            else:
                columns.append(
                    result if len(firsts) == len(sizes) else result[torch.tensor(firsts, device=result.device)]
                )
        return tuple(columns)


def _firsts(counts: list[int]) -> list[int]:
    """Where each group starts when groups of these sizes are laid end to end."""
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + count)
    return firsts


def _advance(spec: OpSpec, call: Call) -> int:
    if call.advance is not None:
        return call.advance
    return 0 if spec.positions == "same" else call.takes


def _packed_rows(spec: OpSpec, call: Call) -> int:
    """Rows of a `packed` result: those of the first packed argument, or `takes`."""
    for kind, value in zip(spec.params, call.args, strict=True):
        if kind == "packed" and value is not None:
            return len(value)
    return call.takes


def _token_ids(spec: OpSpec, call: Call) -> Tensor | None:
    """The ids behind the entries: the one integer argument with a row per entry. None = there is no such argument."""
    found: list[Tensor] = []
    for kind, value in zip(spec.params, call.args, strict=True):
        if value is None or kind not in ("scalar", "packed"):
            continue
        rows = torch.as_tensor(value).reshape(-1) if kind == "scalar" else torch.as_tensor(value)
        if rows.dim() == 1 and len(rows) == call.takes and rows.dtype in (torch.int64, torch.int32):
            found.append(rows)
    return found[0] if len(found) == 1 else None
