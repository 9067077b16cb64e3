"""Hash ops whose contexts are real ones over a real pool, small and poisoned: what is read from a page that is not there is nonsense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mstarc.interp.machine import OpRun
from mstarc.ir.core import Program
from mstarc.ir.declarations import OpDecl
from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.errors import OutOfPages
from mstarc_runtime.program import ABSENT
from mstarc_runtime.worker.kv import count_rows
from mstarc_runtime.worker.swap import Swap
from tests.codegen.hash_ops import HashOps

PAGE = 2  # entries; an entry is one integer


def pages_for(peaks: dict[str, int]) -> int:
    """Pages that contexts of these lengths take."""
    return sum(-(-length // PAGE) for length in peaks.values())


class PagedHashOps(HashOps):
    """`pages`: of the pool, and beside it on the host."""

    def __init__(self, program: Program, linked: Linked, pages: int, swap: int) -> None:
        super().__init__(program, linked)
        geometry = Geometry(1, 1, 1, 1)
        self.pool = PagedPool(geometry, pages, page_size=PAGE, dtype=torch.int64, poison=True, swap=swap)
        self.swap = Swap("kv", self.pool)
        self._in_region = False

    def new_context(self, name: str) -> Any:
        return Context(self.pool)

    @property
    def swaps(self) -> dict[str, Any]:
        return {"kv": self.swap}

    def swaps_of(self, op: str) -> tuple[Any, ...]:
        return (self.swap,) if self._links[op][0] == "transformer" else ()

    def call_rows(self, op: str, calls: Sequence[tuple[Any, Any]], force: bool = False) -> list[Any]:
        outcomes: list[Any] = []
        self._in_region = force
        for session, wait in calls:
            try:
                outcomes += super().call_rows(op, [(session, wait)])
            except OutOfPages as error:
                outcomes.append(error)
        self._in_region = False
        return outcomes

    def call_batch(self, *args: Any) -> Any:
        self._in_region = True
        try:
            return super().call_batch(*args)
        finally:
            self._in_region = False

    def _one(self, op: str, walk: str, session: Any, args: Sequence[Any], writes: Any, reads: Any, only: Any) -> Any:
        kind, link = self._links[op]
        if kind != "transformer":
            return super()._one(op, walk, session, args, writes, reads, only)
        with self.swap.asking(session, force=self._in_region):
            if not link.frozen:
                takes = count_rows(link, [None if arg is ABSENT else arg for arg in args], session)
                self._reserve([session.context(name) for name in writes], takes)
            return super()._one(op, walk, session, args, writes, reads, only)

    @staticmethod
    def _reserve(contexts: Sequence[Context], takes: int) -> None:
        """Room in all of them, or in none."""
        held = [len(context.pages) for context in contexts]
        try:
            for context in contexts:
                context.reserve(takes)
        except OutOfPages:
            for context, pages in zip(contexts, held, strict=True):
                context.release_reserved(keep=pages)
            raise

    def _on(self, node: str, decl: OpDecl, context: Any, values: Any, shapes: Any, takes: int) -> Any:
        step = 0 if decl.attrs.positions == "same" else 1
        positions = [context.position + step * i for i in range(takes)]
        self.pool.check_held(context.pages)
        store = self.pool.data[0, 0, context.slots(0, context.length), 0].tolist()
        run = OpRun(node, decl, values, shapes, store, context.length, takes, positions)
        results = self.machine.invoke(run)
        if not decl.attrs.frozen:
            new = torch.tensor(store[context.length :])
            self.pool.data[0, 0, context.slots(context.length, context.length + takes), 0] = new
            context.extend(takes, step * takes)
        return results

    def gauges(self) -> dict[str, float]:
        return {"pages": float(self.pool.total_pages - self.pool.free_pages), **self.swap.gauges()}
