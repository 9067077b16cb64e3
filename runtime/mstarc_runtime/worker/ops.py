"""The ops of a rank's nodes: batches calls for the engines, isolates failures, and owns pools and samplers.

A failure inside a batched call is retried request by request, so that it hits only the request that causes it.

Values of a rank are arrays of one library: torch if it holds a torch component. A numpy component in such a rank takes and gives numpy
all the same: what it is handed is made numpy, what it gives is made torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mstarc_runtime.abi.linked import Linked, WalkLink
from mstarc_runtime.arrays import Arrays, NumpyArrays, TorchArrays
from mstarc_runtime.errors import LoadError, OutOfPages, RequestFailed
from mstarc_runtime.loading import Progress, load_components
from mstarc_runtime.program import ABSENT
from mstarc_runtime.sampling.philox import DrawKey, normals
from mstarc_runtime.worker.bound_ops import BoundOp, bound_ops, library_of, nodes_of_rank
from mstarc_runtime.worker.handed import Handed
from mstarc_runtime.worker.op_rows import per_row, picked, rows_of, same_call, shape_of
from mstarc_runtime.worker.waits import CallWait

if TYPE_CHECKING:
    from mstarc_runtime.engines.op_graphs import Capture
    from mstarc_runtime.engines.stack_graphs import StackGraph
    from mstarc_runtime.worker.device_runner import Runner
    from mstarc_runtime.worker.draws import Draws
    from mstarc_runtime.worker.kv import TransformerOps
    from mstarc_runtime.worker.session import Session
    from mstarc_runtime.worker.swap import Swap

Needed = TypeVar("Needed")


@dataclass(frozen=True, slots=True)
class Place:
    """The contexts of one row of a call. call: rows for which it is equal (and not None) are one call but for their contexts."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]
    call: Hashable = None


class OpTable:
    """All ops of one rank. Built once per process, before `Ready`."""

    def __init__(self, linked: Linked, rank: int, progress: Progress | None = None) -> None:
        self.linked = linked
        device = next(link.device for link in linked.ranks if link.rank == rank)
        nodes = nodes_of_rank(linked, rank)
        libraries = {node.name: library_of(node) for node in nodes}
        numpy_only = all(library == "numpy" for library in libraries.values())
        self._numpy = NumpyArrays()
        self.arrays: Arrays = self._numpy if numpy_only else TorchArrays(device)
        if isinstance(self.arrays, TorchArrays):
            self.arrays.allow_tf32(any(node.precision == "tf32" for node in nodes))
        report = progress or (lambda done, total, what: None)
        components = load_components(linked, nodes, device, report)
        bound = [op for node in nodes for op in bound_ops(node, components[node.name], libraries[node.name])]
        self._ops = {op.name: op for op in bound}
        self._transformers: TransformerOps | None = None
        self._draws: Draws | None = None
        self._captured: Mapping[str, Callable[..., Any]] = {}  # of stateless ops, methods with graphs
        self._beside: dict[str, Mapping[str, Callable[..., Any]]] = {}  # the same of walks in the queue beside
        self._stacks: dict[str, Mapping[str, list[StackGraph]]] = {}  # the same of ops with `batch stack`, by walk
        if not numpy_only:
            from mstarc_runtime.worker.draws import Draws
            from mstarc_runtime.worker.kv import TransformerOps

            self._transformers = TransformerOps(linked, nodes, device)
            if device.startswith("cuda"):
                import torch

                from mstarc_runtime.worker.device_runner import GraphRunner
                from mstarc_runtime.worker.stateless import shape_graphs

                runner = GraphRunner(torch.device(device))
                self._transformers.capture(self._ops.values(), runner, report)
                self._captured = shape_graphs(self._ops.values(), torch.device(device), runner, report)
            self._draws = Draws(linked, self.arrays)

    def capture_beside(self, walk: WalkLink, runner: Runner, progress: Progress) -> None:
        """Capture the stateless ops of a walk in the queue beside, once more: a graph must not run twice at the same time."""
        from mstarc_runtime.worker.stateless import shape_graphs

        self._beside[walk.name] = shape_graphs(self._ops_of(walk), self.arrays.device, runner, progress)
        self.capture_stacks([walk], runner, progress)

    def capture_stacks(self, walks: Sequence[WalkLink], runner: Capture, progress: Progress) -> None:
        """Capture the ops with `batch stack` of walks whose calls go to one queue: of those that share an op, one that draws is captured
        for each, as its site is the walk's."""
        from mstarc_runtime.worker.stateless import stack_graphs

        shared: dict[str, list[StackGraph]] = {}
        for walk in walks:
            ops = self._ops_of(walk)
            fresh = [bound for bound in ops if bound.name not in shared]
            found = stack_graphs(fresh, walk.name, self.most_rows, self.arrays.device, runner, progress)
            shared |= {name: graphs for name, graphs in found.items() if not self._draws_itself(name)}
            self._stacks[walk.name] = {bound.name: shared[bound.name] for bound in ops if bound.name in shared} | found

    def _ops_of(self, walk: WalkLink) -> list[BoundOp]:
        return [bound for bound in self._ops.values() if bound.node.name in walk.nodes]

    # ------------------------------------------------------------------------------------------------------------- limits

    def most_rows(self, op: str) -> int:
        """How many requests one call may batch."""
        bound = self._ops[op]
        if bound.node.kind == "transformer":
            return bound.link.batch_max or 64
        return (bound.link.batch_max or 64) if bound.link.batch else 1

    def fits(self, first: CallWait, other: CallWait) -> bool:
        """Whether two waiting calls of an op may share a batch."""
        return (
            first.only == other.only
            and (first.walk == other.walk or not self._draws_itself(first.op))
            and (
                self._is_transformer(first.op)  # each row has contexts and lengths of its own
                or all(shape_of(a) == shape_of(b) for a, b in zip(first.args, other.args, strict=True))
            )
        )

    def _draws_itself(self, op: str) -> bool:
        return self._ops[op].link.random or bool(self._ops[op].link.samples)

    def _is_transformer(self, op: str) -> bool:
        return self._ops[op].node.kind == "transformer"

    # -------------------------------------------------------------------------------------------------------------- calls

    def call_rows(self, op: str, calls: Sequence[tuple[Session, CallWait]], force: bool = False) -> list[Any]:
        """One outcome per call: the op's result (a tuple if it has several), or the exception it raised. After OutOfPages the call is to
        be made again when the request's turn has come; with `force` any other request makes room for it: see `swap`.

        The calls are of one walk, as far as an op draws: `fits` sees to it.
        """
        bound, first = self._ops[op], calls[0][1]
        sessions = [session for session, _ in calls]
        rows = [tuple(self._to_array(bound, k, value) for k, value in enumerate(wait.args)) for _, wait in calls]
        try:
            places = [Place(wait.writes, wait.reads, same_call(session, wait)) for session, wait in calls]
            return self._run(bound, first.walk, sessions, rows, places, first.only)
        except Exception as error:
            if len(calls) == 1 and not isinstance(error, OutOfPages):
                return [error]
        outcomes: list[Any] = []
        for (session, wait), row, place in zip(calls, rows, places, strict=True):
            try:
                outcomes.append(self._alone(bound, first.walk, session, row, place, wait.only, force))
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def call_batch(
        self,
        op: str,
        walk: str,
        sessions: Sequence[Session],
        columns: tuple[Any, ...],
        writes: tuple[str, ...],
        reads: tuple[str, ...],
        only: tuple[int, ...] | None,
        errors: list[tuple[int, BaseException]],
    ) -> Any:
        """A call from a region: columns are batched. A row that fails gets zeros and an entry in `errors`.

        If a pool is full, the rows are called one by one, and others make room for each.
        """
        bound, place = self._ops[op], Place(writes, reads)
        columns = tuple(None if column is ABSENT else column for column in columns)
        if bound.arrays == "numpy":
            columns = tuple(None if column is None else self.arrays.to_host(column) for column in columns)
        rows: list[tuple[Any, ...]] = []
        try:
            if bound.link.batch == "stack" and bound.node.kind == "stateless":
                handed = self._handed(bound, walk, sessions)
                with handed.undone_on_failure():  # batched already: nothing to take apart and put together
                    results = self._stacked(bound, handed, len(sessions), columns)
                return results if only is None or bound.link.results <= 1 else picked(tuple(results), only)
            rows = rows_of(columns, len(sessions))
            return self._stack(self._run(bound, walk, sessions, rows, [place] * len(rows), only))
        except Exception as error:
            if len(sessions) == 1 and not isinstance(error, OutOfPages):
                errors.append((0, error))
                return None
        outcomes: list[Any] = []
        for i, (session, row) in enumerate(zip(sessions, rows or rows_of(columns, len(sessions)), strict=True)):
            try:
                outcomes.append(self._alone(bound, walk, session, row, place, only, force=True))
            except Exception as error:
                errors.append((i, error))
                outcomes.append(None)
        good = next((outcome for outcome in outcomes if outcome is not None), None)
        return (
            None
            if good is None
            else self._stack([self._zeros(good) if outcome is None else outcome for outcome in outcomes])
        )

    def _alone(
        self,
        bound: BoundOp,
        walk: str,
        session: Session,
        row: tuple[Any, ...],
        place: Place,
        only: tuple[int, ...] | None,
        force: bool,
    ) -> Any:
        """One call, for which others make room if a pool is full (`Swap.asking`). Raises what it raises, OutOfPages too."""
        with ExitStack() as stack:
            for swap in self.swaps_of(bound.name):
                stack.enter_context(swap.asking(session, force))
            return self._run(bound, walk, [session], [row], [place], only)[0]

    def _run(
        self,
        bound: BoundOp,
        walk: str,
        sessions: Sequence[Session],
        rows: Sequence[tuple[Any, ...]],
        places: Sequence[Place],
        only: tuple[int, ...] | None,
    ) -> list[Any]:
        outcomes: list[Any]
        handed = self._handed(bound, walk, sessions)
        with handed.undone_on_failure():
            if bound.node.kind == "transformer":
                outcomes = self._need(self._transformers).call(bound, sessions, rows, places, handed)
            elif bound.link.batch == "stack":
                columns = [self._column(bound, [row[k] for row in rows]) for k in range(len(rows[0]))]
                graphs = self._stacks.get(walk, {}).get(bound.name, ())
                graph = next((graph for graph in graphs if graph.fits(columns)), None)
                if graph is not None:
                    results = graph.run(columns, handed.keys(range(len(rows))))
                else:
                    results = self._stacked(bound, handed, len(rows), columns)
                outcomes = per_row(bound.link, results, len(rows))
            else:
                method = self._beside.get(walk, self._captured).get(bound.name, bound.method)
                outcomes = [method(*handed.row(i), *row) for i, row in enumerate(rows)]
                for outcome in outcomes:
                    bound.check.outcome(outcome)
                outcomes = [self._taken(outcome) for outcome in outcomes]
        if only is None or bound.link.results <= 1:
            return outcomes
        return [picked(outcome, only) for outcome in outcomes]

    def _stacked(self, bound: BoundOp, handed: Handed, rows: int, columns: Sequence[Any]) -> Any:
        """One call of an op with `batch stack` for so many rows: columns [B, ...] in, columns out."""
        results = bound.method(*handed.rows(range(rows)), *columns)
        bound.check.columns(results)
        return self._taken(results)

    def _library(self, bound: BoundOp) -> Arrays:
        """The library of the arrays that an op's component takes."""
        return self._numpy if bound.arrays == "numpy" else self.arrays

    def _handed(self, bound: BoundOp, walk: str, sessions: Sequence[Session]) -> Handed:
        return Handed(self._library(bound), self._draws, bound, walk, sessions)

    def _taken(self, results: Any) -> Any:
        """What a component gave as the rank has it: arrays of numpy become those of the rank's library."""
        if isinstance(results, tuple):
            return tuple(self._taken(result) for result in results)
        return self.arrays.asarray(results) if isinstance(results, np.ndarray | np.generic) else results

    def _column(self, bound: BoundOp, values: list[Any]) -> Any:
        """Arguments of several requests on a new dim 0; None where the argument is absent in all of them, as `fits` sees to."""
        return None if all(value is None for value in values) else self._library(bound).stack(values)

    def _stack(self, outcomes: list[Any]) -> Any:
        """Per-row results as batched columns."""
        if outcomes[0] is None:
            return None
        if isinstance(outcomes[0], tuple):
            return tuple(self.arrays.stack([outcome[k] for outcome in outcomes]) for k in range(len(outcomes[0])))
        return self.arrays.stack(outcomes)

    def _zeros(self, outcome: Any) -> Any:
        if isinstance(outcome, tuple):
            return tuple(self.arrays.zeros_like(value) for value in outcome)
        return self.arrays.zeros_like(outcome)

    def _to_array(self, bound: BoundOp, k: int, value: Any) -> Any:
        if value is ABSENT or value is None:
            return None
        if bound.link.params[k] == "host":
            return value
        return self.arrays.to_host(value) if bound.arrays == "numpy" else self.arrays.asarray(value)

    # --------------------------------------------------------------------------------------- contexts, sampling and noise

    def new_context(self, name: str) -> Any:
        return self._need(self._transformers).new_context(name)

    def sample(
        self,
        sampler: str,
        logits: Any,
        sites: Sequence[tuple[Session, str]],
        errors: list[tuple[int, BaseException]] | None = None,
    ) -> Any:
        """One id per row; a row without usable logits goes to `errors`, or raises if there is none."""
        return self._need(self._draws).sample(sampler, logits, sites, errors)

    def sampler_of(self, sampler: str, session: Session) -> tuple[Any, Any]:
        """The settings and the history of a sampler in a request."""
        return self._need(self._draws).held(sampler, session)

    def has(self, op: str) -> bool:
        """Whether `node.op` is an op of this rank."""
        return op in self._ops

    def bound(self, op: str) -> BoundOp:
        """The op `node.op`."""
        return self._ops[op]

    @property
    def transformers(self) -> TransformerOps:
        """The transformer ops of this rank."""
        return self._need(self._transformers)

    def pool_of(self, context: str) -> Any:
        """The pool of a context."""
        return self.transformers.pool_of(context)

    @property
    def swaps(self) -> Mapping[str, Swap]:
        """The waiting lines of this rank's pools, by cache."""
        return {} if self._transformers is None else self._transformers.swaps

    def swaps_of(self, op: str) -> tuple[Swap, ...]:
        """Those of the pools that an op may use."""
        return self.transformers.swaps_of(self._ops[op]) if self._is_transformer(op) else ()

    def noise(self, dtype: str, dims: tuple[int, ...], sites: Sequence[tuple[Session, str]]) -> Any:
        """Standard normals [B, *dims], drawn in f32; keys are (seed, walk/site, j), so that no batch or rank changes them.

        Raises RequestFailed for a dim below 0.
        """
        if any(dim < 0 for dim in dims):
            walk, _, name = sites[0][1].partition("/")
            raise RequestFailed(
                f"walk `{walk}`: noise `{name}` is to be {dtype}{list(dims)}, and a length is 0 or more"
            )
        keys = [DrawKey(session.seed, site, session.next_draw(site)) for session, site in sites]
        return self.arrays.cast(self.arrays.stack([normals(dims, key) for key in keys]), dtype)

    def _need(self, part: Needed | None) -> Needed:
        if part is None:
            raise LoadError("a worker of numpy components has no transformers and samplers")
        return part

    def pools(self) -> dict[str, tuple[int, int]]:
        """cache -> (pages, entries per page)."""
        return self._transformers.pools() if self._transformers is not None else {}

    def gauges(self) -> dict[str, float]:
        return self._transformers.gauges() if self._transformers is not None else {}
