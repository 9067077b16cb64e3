"""Ops of a rank as integer hashes: the interpreter's `HashMachine` behind the runtime's op table, with numpy arrays between them.

A tensor that the machine keeps as a `Box` travels as an array of its shape that is filled with the box's key, so batches can be
stacked, selected and sent, and any row that goes astray changes an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mstarc.interp import HashMachine
from mstarc.interp.hash_machine import Box, Row
from mstarc.interp.machine import DrawKey, OpRun, SamplerState
from mstarc.ir.core import Program
from mstarc.ir.declarations import OpDecl
from mstarc.ir.types import Lit, Tensor, Type
from mstarc_runtime.abi.formula import evaluate
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.arrays import NumpyArrays
from mstarc_runtime.program import ABSENT
from mstarc_runtime.worker.kv import count_rows

POISON = -1  # what a freed entry holds


class HashContext:
    """Entries of one context of one request."""

    def __init__(self, name: str, peaks: dict[str, int], store: list[int] | None = None, position: int = 0) -> None:
        self.name, self.peaks, self.store, self.position = name, peaks, list(store or ()), position

    @property
    def length(self) -> int:
        return len(self.store)

    def fork(self) -> HashContext:
        return HashContext(self.name, self.peaks, self.store, self.position)

    def drop(self) -> None:
        """Become empty; whoever still holds the old entries reads nonsense."""
        for i in range(len(self.store)):
            self.store[i] = POISON
        self.store = []


def to_machine(value: Any, kind: Type) -> Any:
    """An array as the machine holds it."""
    if value is None or value is ABSENT:
        return None
    array = np.asarray(value)
    if isinstance(kind, Tensor) and kind.dtype.startswith(("f", "bf")):
        return Box(int(array.flat[0]), tuple(array.shape))
    return array.item() if array.ndim == 0 else Row(array.tolist())


def to_array(value: Any) -> Any:
    """A value of the machine as an array."""
    return np.full(value.shape, value.key, dtype=np.int64) if isinstance(value, Box) else np.asarray(value)


class HashOps:
    """Stands in for `OpTable`. `peaks`: the longest that each context became, over all requests; `batches`: rows of each region call."""

    def __init__(self, program: Program, linked: Linked) -> None:
        self.linked = linked
        self.machine = HashMachine(program)
        self.arrays = NumpyArrays()
        self.peaks: dict[str, int] = {}
        self.batches: list[int] = []
        self._decls = {f"{n.name}.{o.name}": o for n in program.nodes for o in n.ops}
        self._states = {n.name: n.states for n in linked.nodes}
        self._links = {f"{n.name}.{o.name}": (n.kind, o) for n in linked.nodes for o in n.ops}

    def attach(self, rank: Any) -> None:
        self.rank = rank

    def most_rows(self, op: str) -> int:
        return 3

    def fits(self, first: Any, other: Any) -> bool:
        return first.only == other.only and first.writes == other.writes and first.reads == other.reads

    def call_rows(self, op: str, calls: Sequence[tuple[Any, Any]], force: bool = False) -> list[Any]:
        return [
            self._one(op, wait.walk, session, wait.args, wait.writes, wait.reads, wait.only) for session, wait in calls
        ]

    def call_batch(
        self, op: str, walk: str, sessions: Any, columns: Any, writes: Any, reads: Any, only: Any, errors: list[Any]
    ) -> Any:
        self.batches.append(len(sessions))
        columns = [None if column is ABSENT else column for column in columns]
        for column in (column for column in columns if column is not None):
            assert len(column) == len(sessions), f"{op}: a column of {len(column)} rows for {len(sessions)} requests"
        rows = [[None if column is None else column[i] for column in columns] for i in range(len(sessions))]
        found = [self._one(op, walk, s, row, writes, reads, only) for s, row in zip(sessions, rows, strict=True)]
        if found[0] is None or not isinstance(found[0], tuple):
            return None if found[0] is None else np.stack(found)
        return tuple(np.stack([row[k] for row in found]) for k in range(len(found[0])))

    def _one(self, op: str, walk: str, session: Any, args: Sequence[Any], writes: Any, reads: Any, only: Any) -> Any:
        decl, (kind, link) = self._decls[op], self._links[op]
        values = tuple(to_machine(arg, port.type) for arg, port in zip(args, decl.params, strict=True))
        node, shapes = op.split(".")[0], tuple(_shape(port.type) for port in decl.results)
        if kind != "transformer":
            results: Any = self._stateless(op, walk, session, decl, values, shapes)
        else:
            takes = count_rows(link, list(args), session)
            names = reads[:1] if link.frozen else writes
            runs = [self._on(node, decl, session.context(name), values, shapes, takes) for name in names]
            results = runs[0]
        arrays = tuple(to_array(result) for result in results)
        if only is not None:
            arrays = tuple(arrays[k] for k in only)
            return arrays[0] if len(arrays) == 1 else arrays
        return arrays[0] if len(arrays) == 1 else arrays or None

    def _stateless(self, op: str, walk: str, session: Any, decl: OpDecl, values: Any, shapes: Any) -> Any:
        """A call with what the op is handed: a key, a draw and cells."""
        node, sampler = op.split(".")[0], decl.attrs.samples
        key = None
        if decl.attrs.random:
            key = DrawKey(session.seed, walk, op, session.next_draw(f"{walk}/{op}"))

        def draw(logits: Any) -> int:
            return self._draw(sampler, logits, session, f"{walk}/{sampler}")

        if node not in session.cells:
            states = self._states[node]
            session.cells[node] = {s.name: evaluate(s.init, session.params, session.host) for s in states}
        run = OpRun(node, decl, values, shapes, key=key, draw=draw if sampler else None, cells=session.cells[node])
        return self.machine.invoke(run)

    def _on(self, node: str, decl: OpDecl, context: HashContext, values: Any, shapes: Any, takes: int) -> Any:
        step = 0 if decl.attrs.positions == "same" else 1
        positions = [context.position + step * i for i in range(takes)]
        run = OpRun(node, decl, values, shapes, context.store, context.length, takes, positions)
        results = self.machine.invoke(run)
        if not decl.attrs.frozen:
            context.position += step * takes
        self.peaks[context.name] = max(self.peaks.get(context.name, 0), context.length)
        return results

    def new_context(self, name: str) -> HashContext:
        return HashContext(name, self.peaks)

    def sample(self, sampler: str, logits: Any, sites: Sequence[tuple[Any, str]], errors: Any = None) -> Any:
        tokens = []
        for row, (session, site) in zip(logits, sites, strict=True):
            tokens.append(self._draw(sampler, Box(int(row[0]), tuple(row.shape)), session, site))
        return np.asarray(tokens)

    def _draw(self, sampler: str, logits: Any, session: Any, site: str) -> int:
        walk, _, name = site.partition("/")
        key = DrawKey(session.seed, walk, name, session.next_draw(site))
        return self.machine.sample(logits, SamplerState(sampler, {"temperature": 0.8}, (), ()), key)

    @property
    def swaps(self) -> dict[str, Any]:
        return {}

    def swaps_of(self, op: str) -> tuple[Any, ...]:
        return ()

    def pools(self) -> dict[str, tuple[int, int]]:
        return {cache.name: (10**6, 16) for cache in self.linked.caches}

    def gauges(self) -> dict[str, float]:
        return {}


def _shape(kind: Type) -> tuple[int | None, ...]:
    dims = kind.dims if isinstance(kind, Tensor) else ()
    return tuple(int(dim.value) if isinstance(dim, Lit) else None for dim in dims)
