"""Transformer ops of a rank: pools, contexts and engines by cache, and the calls that the worker hands to them."""

from __future__ import annotations

import logging
import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mstarc_runtime.abi.formula import Formula, evaluate, formula_text
from mstarc_runtime.abi.linked import CacheLink, Linked, NodeLink, OpLink
from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import PAGE_SIZE, PAGE_SIZE_GPU, Geometry, PagedPool
from mstarc_runtime.engines.op_graphs import Capture, FixedOp, OpGraph
from mstarc_runtime.engines.ragged_graphs import RaggedGraph, RaggedOp
from mstarc_runtime.engines.transformer import Call, Graph, OpSpec, TransformerEngine
from mstarc_runtime.errors import OutOfPages, RequestFailed, describe
from mstarc_runtime.program import ABSENT
from mstarc_runtime.worker.handed import handed_count
from mstarc_runtime.worker.swap import Swap

if TYPE_CHECKING:
    from mstarc_runtime.loading import Progress
    from mstarc_runtime.worker.bound_ops import BoundOp
    from mstarc_runtime.worker.handed import Handed
    from mstarc_runtime.worker.ops import Place
    from mstarc_runtime.worker.session import Session

log = logging.getLogger("mstarc.worker")

DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
POOL_BYTES = 2 << 30  # the most one pool takes on a host
POOL_SHARE = 0.25  # of the memory that is free at start-up, for all pools of a rank together
# of the host's memory that is free at start-up, for pages of full pools; no pool takes more than its size
SWAP_SHARE = 0.25
POOL_SHARE_GPU = 0.8  # of what the weights left on a GPU, for all pools of its ranks together; the rest is for activations and graphs


@dataclass(slots=True)
class _Batch:
    """One call of an op for several rows, before it is run.

    outcomes: by row, so far; calls: the rows that are run; twins: rows with the row whose outcome is theirs, too; forks: contexts of
    sessions that become copies of others after the call.
    """

    outcomes: list[Any]
    calls: list[tuple[int, Call]] = field(default_factory=list)
    twins: list[tuple[int, int]] = field(default_factory=list)
    forks: list[tuple[Session, str, str]] = field(default_factory=list)


def free_bytes() -> int:
    """Memory that is free on this host now."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class TransformerOps:
    """Engines of one rank, one per cache that its nodes use."""

    def __init__(self, linked: Linked, nodes: Sequence[NodeLink], device: str = "cpu") -> None:
        """Made after the rank's weights were loaded: the pools take their share of the memory that is left."""
        used = [cache for cache in linked.caches if any(node.cache == cache.name for node in nodes)]
        ranks = _sharing(linked, device)
        self._pools = {cache.name: _pool(cache, torch.device(device), len(used), ranks) for cache in used}
        self._engines = {name: TransformerEngine(pool) for name, pool in self._pools.items()}
        self._cache_of = {context.name: context.cache for context in linked.contexts}
        self._contexts_of = {
            cache.name: tuple(context.name for context in linked.contexts if context.cache == cache.name)
            for cache in used
        }
        self.swaps = {name: Swap(name, pool, len(self._contexts_of[name])) for name, pool in self._pools.items()}
        self._context_max = {context.name: context.max for context in linked.contexts}
        self._specs: dict[str, OpSpec] = {}
        self._graphs: dict[str, Graph] = {}

    def capture(self, ops: Iterable[BoundOp], runner: Capture, progress: Progress) -> None:
        """Capture the ops whose shapes are fixed, and those that take any number of rows and nothing else that differs.

        One that cannot be captured is run kernel by kernel, and the log says why.
        """
        for bound in ops:
            try:
                graph = self._captured(bound, runner, progress)
                if graph is not None:
                    self._graphs[bound.name] = graph
            except Exception as error:
                log.warning("`%s` is not captured: %s", bound.name, describe(error))

    def _captured(self, bound: BoundOp, runner: Capture, progress: Progress) -> Graph | None:
        """The op as a graph, if it can have one."""
        if not _has_fixed_rules(bound):
            return None

        def method(run: Any, *args: Any) -> Any:
            return bound.check.packed(bound.method(run, *args))

        def report(done: int, total: int) -> None:
            progress(done, total, f"capturing {bound.name}")

        pool, pages = self._pools[bound.node.cache], self._most_pages(bound.node.cache)
        fixed = self._fixed(bound)
        if fixed is not None:
            return OpGraph(method, fixed, pool, pages, runner, progress=report)
        ragged = self._ragged(bound)
        return None if ragged is None else RaggedGraph(method, ragged, pool, pages, runner, progress=report)

    def _fixed(self, bound: BoundOp) -> FixedOp | None:
        """The op as a graph of fixed shapes must know it, if all its shapes are."""
        link = bound.link
        shapes = [tuple(dim for dim in port.dims if dim is not None) for port in link.inputs]
        if any(len(dims) != len(port.dims) for dims, port in zip(shapes, link.inputs, strict=True)):
            return None
        if not isinstance(link.takes, str) or link.takes.startswith("rows:") or isinstance(link.advance, dict):
            return None
        takes = int(link.takes.removeprefix("const:")) if link.takes else 1
        inputs = tuple((DTYPES[port.dtype], dims) for port, dims in zip(link.inputs, shapes, strict=True))
        return FixedOp(self.spec(bound), inputs, takes, link.advance)

    def _ragged(self, bound: BoundOp) -> RaggedOp | None:
        """The op as a graph for any number of rows must know it, if its arguments have a row per entry or a fixed shape."""
        link = bound.link
        dims = [tuple(port.dims[kind == "packed" :]) for kind, port in zip(link.params, link.inputs, strict=True)]
        if not isinstance(link.takes, str) or link.takes.startswith("const:") or any(None in each for each in dims):
            return None
        counts = int(link.takes.removeprefix("rows:")) if link.takes else link.params.index("packed")
        inputs = tuple((DTYPES[port.dtype], each) for port, each in zip(link.inputs, dims, strict=True))
        return RaggedOp(self.spec(bound), inputs, counts)  # type: ignore[arg-type]

    def _most_pages(self, cache: str) -> int:
        """The most pages that a context of a cache can have."""
        pool = self._pools[cache]
        bounds = [self._context_max[name] for name in self._contexts_of[cache]]
        return min(pool.total_pages, pool.pages_for(max(bounds)) if all(bounds) else pool.total_pages)

    def new_context(self, name: str) -> Context:
        """An empty context of that name's cache."""
        return Context(self._pools[self._cache_of[name]])

    def swaps_of(self, bound: BoundOp) -> tuple[Swap, ...]:
        """The waiting lines of the pools that a call of the op may read or write."""
        return tuple(self.swaps.values()) if bound.link.cross else (self.swaps[bound.node.cache],)

    def pool_of(self, context: str) -> PagedPool:
        """The pool of a context."""
        return self._pools[self._cache_of[context]]

    def contexts_of(self, cache: str) -> tuple[str, ...]:
        """The contexts over a cache: what an op without `writes` writes."""
        return self._contexts_of[cache]

    def call(
        self,
        bound: BoundOp,
        sessions: Sequence[Session],
        rows: Sequence[tuple[Any, ...]],
        places: Sequence[Place],
        handed: Handed,
    ) -> list[Any]:
        """One result per request; ABSENT where its context is switched off, None where the call takes nothing. Raises OutOfPages.

        Contexts with one history are run once: of two rows that are one call but for such contexts, the second takes the result of the
        first; a call that writes two writes one, and the other becomes its fork.
        """
        for swap in self.swaps_of(bound):
            if swap.waiting and any(swap.away(session) for session in sessions):
                raise OutOfPages(0, swap.pool)
        batch = self._sorted(bound, sessions, rows, places)
        if not batch.calls:
            return batch.outcomes
        extra = handed.rows([i for i, call in batch.calls for _ in call.contexts])
        columns = self._engines[bound.node.cache].call(
            lambda run, *args: bound.check.packed(bound.method(run, *extra, *args)),
            self.spec(bound),
            [call for _, call in batch.calls],
            self._graphs.get(bound.name),
        )
        for k, (i, _) in enumerate(batch.calls):
            values = tuple(column[k] for column in columns)
            batch.outcomes[i] = values[0] if len(values) == 1 else values or None
        for i, first in batch.twins:
            batch.outcomes[i] = batch.outcomes[first]
        for session, target, source in batch.forks:
            session.fork(target, source)
        return batch.outcomes

    def _sorted(
        self,
        bound: BoundOp,
        sessions: Sequence[Session],
        rows: Sequence[tuple[Any, ...]],
        places: Sequence[Place],
    ) -> _Batch:
        """Which rows are run, and which take what another gives."""
        link = bound.link
        pure = not handed_count(bound.node, link)  # else what a run draws or keeps is its own
        batch = _Batch([ABSENT] * len(rows))
        same: dict[Hashable, int] = {}  # call and history -> the row that runs
        for i, (session, row, place) in enumerate(zip(sessions, rows, places, strict=True)):
            takes = count_rows(link, row, session)
            if takes == 0:
                batch.outcomes[i] = None
                continue
            writes = place.writes or (() if link.frozen else self._contexts_of[bound.node.cache])
            found = self._contexts(link, session, writes, place.reads, takes, pure)
            if found is None:
                continue
            contexts, source, copies = found
            if link.frozen and pure and place.call is not None:
                first = same.setdefault((place.call, contexts[0].history), i)
                if first != i:
                    batch.twins.append((i, first))
                    continue
            advance = _host_number(link.advance, session, row)
            batch.calls.append((i, Call(row, contexts, takes, source, _offsets(link, session, row), advance)))
            batch.forks += [(session, target, of) for target, of in copies]
        return batch

    def _contexts(
        self, link: OpLink, session: Session, writes: tuple[str, ...], reads: tuple[str, ...], takes: int, pure: bool
    ) -> tuple[tuple[Context, ...], Context | None, list[tuple[str, str]]] | None:
        """(contexts, cross source, (target, source) of forks after the call) of one call; None if what it needs is switched off."""
        source = session.context(reads[0]) if reads else None
        if reads and source is None:
            return None
        if link.frozen:
            return ((source,), None, []) if source is not None else None
        targets: list[Context] = []
        forks: list[tuple[str, str]] = []
        first: dict[object, str] = {}  # history -> the context that is written
        for name in writes:
            context = session.context(name)
            if context is None:
                continue
            session.check_room(name, context.length, takes)
            if pure and context.history in first:
                forks.append((name, first[context.history]))
            else:
                first[context.history] = name
                targets.append(context)
        return (tuple(targets), source if link.cross else None, forks) if targets else None

    def spec(self, bound: BoundOp) -> OpSpec:
        """What the engine must know of an op."""
        spec = self._specs.get(bound.name)
        if spec is None:
            link = bound.link
            spec = self._specs[bound.name] = OpSpec(
                bound.name,
                params=tuple(link.params),  # type: ignore[arg-type]
                results=tuple(link.result_kinds or ["row"] * link.results),  # type: ignore[arg-type]
                attend=link.attend or "causal",  # type: ignore[arg-type]
                positions=link.positions or "seq",  # type: ignore[arg-type]
                frozen=link.frozen,
                cross=link.cross,
            )
        return spec

    def pools(self) -> dict[str, tuple[int, int]]:
        """cache -> (pages, entries per page)."""
        return {name: (pool.total_pages, pool.page_size) for name, pool in self._pools.items()}

    def gauges(self) -> dict[str, float]:
        """Pages in use, per cache and in all; who waits for pages, and what lies on the host, in all."""
        used = {f"pages_{name}": float(pool.total_pages - pool.free_pages) for name, pool in self._pools.items()}
        swapped = {"swap_waiting": 0.0, "swap_bytes": 0.0, "swap_out_bytes": 0.0, "swap_in_bytes": 0.0}
        for swap in self.swaps.values():
            for name, value in swap.gauges().items():
                swapped[name] += value
        return {**used, "pages": sum(used.values()), **swapped}


def _has_fixed_rules(bound: BoundOp) -> bool:
    """Whether an op can be a graph as far as it does not depend on shapes: nothing is handed to it, every argument is there."""
    link = bound.link
    if bound.node.kind != "transformer" or not link.inputs or any(link.optional):
        return False
    return not (link.cross or link.positions == "at" or handed_count(bound.node, link))


def count_rows(link: OpLink, row: Sequence[Any], session: Session) -> int:
    """How many entries a call adds, by the op's `takes` (see `OpLink`). Raises RequestFailed if they are less than none."""
    if not isinstance(link.takes, str):
        count = int(evaluate(link.takes, session.params, session.host, row))
        if count < 0:
            raise RequestFailed(
                f"`takes` of op `{link.name}`: `{formula_text(link.takes)}` is {count}, and a length is 0 or more"
            )
        return count
    if not link.takes:
        for kind, value in zip(link.params, row, strict=True):
            if kind == "scalar":
                return 1
            if kind == "packed":
                return len(value)
        raise ValueError(f"op `{link.name}` has no token argument to count")
    kind, _, rest = link.takes.partition(":")
    return int(rest) if kind == "const" else len(row[int(rest)])


def _offsets(link: OpLink, session: Session, row: Sequence[Any]) -> torch.Tensor | None:
    """What `positions at` adds to the counter: i64 [takes] or [3, takes]; None for another rule."""
    if link.positions != "at":
        return None
    return torch.as_tensor(np.asarray(evaluate(link.at, session.params, session.host, row)), dtype=torch.int64)


def _host_number(formula: int | Formula, session: Session, row: Sequence[Any]) -> int | None:
    return None if formula is None else int(evaluate(formula, session.params, session.host, row))


def _sharing(linked: Linked, device: str) -> int:
    """How many ranks keep their pools on a device."""
    return max(1, sum(link.device == device for link in linked.ranks))


def _pool(cache: CacheLink, device: torch.device, pools: int, ranks: int) -> PagedPool:
    """A cache's pool: in f32 on a host; in bf16 on a GPU, which its share of the free memory fills.

    As many pages again may lie on the host, as far as their share of its memory goes.
    """
    geometry = Geometry(cache.layers, cache.heads, cache.kv_heads, cache.head_dim)
    free, cuda = free_bytes(), device.type == "cuda"
    dtype, page_size = (torch.bfloat16, PAGE_SIZE_GPU) if cuda else (torch.float32, PAGE_SIZE)
    page = page_size * geometry.entry_bytes(dtype)
    if cache.pages:
        size = cache.pages * page
    elif cuda:
        size = int(torch.cuda.mem_get_info(device)[0] * POOL_SHARE_GPU / pools / ranks)
    else:
        size = min(POOL_BYTES, int(free * POOL_SHARE / pools))
    swap = min(size, int(free * SWAP_SHARE / pools / ranks)) if cache.swap is None else cache.swap * page
    return PagedPool.from_bytes(geometry, size, page_size=page_size, dtype=dtype, device=device, swap_bytes=swap)
