"""Prompts through a captured op equal the same calls through the engine, whatever the batch; capture is direct execution here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, OutOfPages, PagedPool
from mstarc_runtime.engines.paged_run import EngineError
from mstarc_runtime.engines.ragged_graphs import RaggedGraph, RaggedOp
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Net, Probe
from tests.engines.test_op_graphs import Counted

PROBE = Probe(Net(8))
IDS = RaggedOp(OpSpec("n.read", ("packed",), ("row",)), ((torch.int64, ()),), 0)
ROWS = RaggedOp(
    OpSpec("n.rows", ("packed", "scalar"), ("packed", "row"), attend="full", positions="same"),
    ((torch.float32, (WIDTH,)), (torch.float32, ())),
    0,
)
LOOK = RaggedOp(OpSpec("n.look", ("packed",), ("packed",), frozen=True), ((torch.float32, (WIDTH,)),), 0)
LISTEN = RaggedOp(OpSpec("n.listen", ("packed",), ()), ((torch.float32, (WIDTH,)),), 0)


def rows_and_last(run: Any, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    hidden = PROBE.forward(run, x)
    return hidden, hidden[run.last] + t[:, None]


METHODS: list[tuple[RaggedOp, Callable[..., Any]]] = [
    (IDS, PROBE.tail),
    (ROWS, rows_and_last),
    (LOOK, PROBE.forward),
    (LISTEN, PROBE.listen),
]


class Side:
    """An engine with contexts that hold something, and a graph or none."""

    def __init__(self, op: RaggedOp, method: Callable[..., Any], captured: bool, pages: int = 80) -> None:
        pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), pages, page_size=4, poison=True)
        self.op, self.method, self.runner = op, method, Counted()
        self.graph = RaggedGraph(method, op, pool, 12, self.runner, (4, 16, 24), 3) if captured else None
        self.engine = TransformerEngine(pool)
        self.contexts = [Context(pool) for _ in range(6)]
        for n, context in enumerate(self.contexts[1:]):
            rows = torch.randn(3 * n + 1, WIDTH, generator=torch.Generator().manual_seed(n))
            self.engine.call(
                PROBE.forward, OpSpec("n.fill", ("packed",), ("packed",)), [Call((rows,), (context,), len(rows))]
            )

    def call(self, args: list[tuple[Tensor, ...]], which: list[int]) -> list[Tensor]:
        calls = [Call(some, (self.contexts[i],), len(some[0])) for some, i in zip(args, which, strict=True)]
        columns = self.engine.call(self.method, self.op.spec, calls, self.graph)
        return [piece for column in columns for piece in column]

    def entries(self) -> list[Tensor]:
        return [c.pool.data[:, :, c.slots(0, c.length)] for c in self.contexts]


def arguments(op: RaggedOp, takes: int, draw: torch.Generator) -> tuple[Tensor, ...]:
    made: list[Tensor] = []
    for kind, (dtype, dims) in zip(op.spec.params, op.inputs, strict=True):
        shape = (takes, *dims) if kind == "packed" else dims
        made.append(
            torch.randint(0, 50, shape, generator=draw) if dtype == torch.int64 else torch.randn(shape, generator=draw)
        )
    return tuple(made)


@pytest.mark.parametrize(("op", "method"), METHODS, ids=[op.spec.name for op, _ in METHODS])
def test_batches_of_every_size(op: RaggedOp, method: Callable[..., Any]) -> None:
    plain, captured = Side(op, method, False), Side(op, method, True)
    draw = torch.Generator().manual_seed(4)
    batches = [
        ([5], [0]),
        ([1, 3], [2, 0]),
        ([16], [1]),
        ([7, 9, 8], [3, 4, 5]),
        ([2, 2, 2, 2], [5, 4, 1, 0]),
        ([20, 20], [0, 3]),
    ]
    for takes, which in batches:
        args = [arguments(op, count, draw) for count in takes]
        expected, found = plain.call(args, which), captured.call(args, which)
        assert len(expected) == len(found)
        for wanted, value in zip(expected, found, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)
        assert [(c.length, c.position) for c in plain.contexts] == [(c.length, c.position) for c in captured.contexts]
        assert [c.ids.tolist() for c in plain.contexts] == [c.ids.tolist() for c in captured.contexts]
        for wanted, value in zip(plain.entries(), captured.entries(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)
    assert captured.runner.captured == 3
    assert captured.runner.replayed == 1 + 1 + 1 + 1 + 2 + 2  # four requests, and forty rows, are two replays


def test_what_a_replay_gave_outlives_the_next() -> None:
    side = Side(IDS, PROBE.tail, True)
    (first,) = side.call([(torch.arange(5),)], [0])
    kept = first.clone()
    side.call([(torch.arange(9, 14),)], [1])
    assert torch.equal(first, kept)


def test_padding_writes_to_nobody_s_pages() -> None:
    """Every free page is NaN and stays so; contexts that take no part are as they were."""
    side = Side(IDS, PROBE.tail, True)
    before = side.entries()
    side.call([(torch.arange(3),)], [0])
    for wanted, value in zip(before[1:], side.entries()[1:], strict=True):
        assert torch.equal(value, wanted)
    held = {page for context in side.contexts for page in context.pages}
    pool = side.engine.pool
    written = {
        page for page in range(pool.total_pages) if not pool.page(page).isnan().all() and bool(pool.page(page).any())
    }
    assert written <= held


def test_calls_that_do_not_fit_run_without_the_graph() -> None:
    side = Side(IDS, PROBE.tail, True)
    plain = Side(IDS, PROBE.tail, False)
    long = torch.arange(30)
    torch.testing.assert_close(side.call([(long,)], [0])[0], plain.call([(long,)], [0])[0], rtol=1e-5, atol=1e-6)
    both = [Call((torch.arange(3),), (side.contexts[1], side.contexts[2]), 3)]
    side.engine.call(side.method, IDS.spec, both, side.graph)
    side.call([(torch.arange(40, 48),)], [5])
    side.call([(torch.arange(24),)], [5])
    side.call([(torch.arange(24),)], [5])  # beyond the twelve pages of the table
    assert side.runner.replayed == 2


def test_a_full_pool_changes_nothing() -> None:
    side = Side(IDS, PROBE.tail, True, pages=12)
    before, free = side.entries(), side.engine.pool.free_pages
    with pytest.raises(OutOfPages):
        side.call([(torch.arange(20),)], [0])
    assert side.engine.pool.free_pages == free
    for wanted, value in zip(before, side.entries(), strict=True):
        assert torch.equal(value, wanted)


def test_a_component_that_asks_for_rows_is_not_captured() -> None:
    def asks(run: Any, ids: Tensor) -> Tensor:
        return PROBE.tail(run, ids) * len(run.rows)

    with pytest.raises(EngineError, match="asks how many rows"):
        Side(IDS, asks, True)
