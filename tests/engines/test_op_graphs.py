"""A call through a captured op equals the same call through the engine, whatever the batch; capture is direct execution here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, OutOfPages, PagedPool
from mstarc_runtime.engines.op_graphs import FixedOp, OpGraph
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine
from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Net, Probe

PROBE = Probe(Net(5))
READ = OpSpec("n.read", ("packed",), ("packed",))
FRAME = OpSpec("n.frame", ("plain", "scalar"), ("row",), attend="full", positions="same")
LOOK = OpSpec("n.look", ("plain", "scalar"), ("row",), attend="full", frozen=True)
ROWS = 3


def frame(run: Any, x: Tensor, t: Tensor) -> Tensor:
    """x [B, ROWS, WIDTH], t [B] -> [B, ROWS, WIDTH]."""
    shifted = (x + t[:, None, None]).reshape(-1, WIDTH)
    return PROBE.forward(run, shifted).view(x.shape)


class Counted:
    """Direct execution that counts what is captured and replayed."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def capture(self, work: Callable[[], Any]) -> Callable[[], Any]:
        self.captured += 1

        def replay() -> Any:
            self.replayed += 1
            return work()

        return replay


def side(lengths: list[int], pages: int = 60) -> tuple[TransformerEngine, list[Context]]:
    pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), pages, page_size=4)
    engine = TransformerEngine(pool)
    contexts = [Context(pool) for _ in lengths]
    for n, (context, length) in enumerate(zip(contexts, lengths, strict=True)):
        rows = torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(n))
        if length:
            engine.call(PROBE.forward, READ, [Call((rows,), (context,), length)])
    return engine, contexts


def graph_of(engine: TransformerEngine, spec: OpSpec, runner: Counted, pages: int = 12) -> OpGraph:
    inputs = ((torch.float32, (ROWS, WIDTH)), (torch.float32, ()))
    return OpGraph(frame, FixedOp(spec, inputs, ROWS, 1), engine.pool, pages, runner, buckets=(1, 2, 4))


@pytest.mark.parametrize("spec", [FRAME, LOOK], ids=["written", "frozen"])
def test_batches_of_every_size(spec: OpSpec) -> None:
    lengths = [0, 9, 4, 17, 2, 1]
    (plain, left), (captured, right) = side(lengths), side(lengths)
    runner = Counted()
    graph = graph_of(captured, spec, runner)
    assert runner.captured == 3
    draw = torch.Generator().manual_seed(9)
    for which in ([0], [1, 2, 3], [3, 0], [0, 1, 2, 3], [2], [5, 4, 3, 2, 1, 0]):
        xs, ts = torch.randn(6, ROWS, WIDTH, generator=draw), torch.rand(6, generator=draw)
        calls = [[Call((xs[i], ts[i]), (contexts[i],), ROWS, advance=1) for i in which] for contexts in (left, right)]
        (expected,) = plain.call(frame, spec, calls[0])
        (found,) = captured.call(frame, spec, calls[1], graph)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        assert [c.length for c in left] == [c.length for c in right]
        assert [c.position for c in left] == [c.position for c in right]
    assert runner.replayed == 5 + 2  # six calls are more than the largest bucket
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(
            b.pool.data[:, :, b.slots(0, b.length)], a.pool.data[:, :, a.slots(0, a.length)], rtol=1e-5, atol=1e-6
        )


def test_results_outlive_the_next_replay() -> None:
    engine, contexts = side([5, 6])
    graph = graph_of(engine, LOOK, Counted())
    calls = [Call((torch.ones(ROWS, WIDTH), 0.5), (context,), ROWS) for context in contexts]
    (first,) = engine.call(frame, LOOK, calls[:1], graph)
    kept = first.clone()
    engine.call(frame, LOOK, calls[1:], graph)
    assert torch.equal(first, kept)


def test_what_does_not_fit_runs_without_the_graph() -> None:
    """Several contexts in a call, more pages than the table."""
    engine, contexts = side([1] * 5 + [20])
    runner = Counted()
    graph = graph_of(engine, FRAME, runner, pages=3)
    x = torch.ones(ROWS, WIDTH)
    engine.call(frame, FRAME, [Call((x, 0.1), (contexts[0], contexts[1]), ROWS, advance=1)], graph)
    engine.call(frame, FRAME, [Call((x, 0.1), (contexts[5],), ROWS, advance=1)], graph)
    assert runner.replayed == 0
    engine.call(frame, FRAME, [Call((x, 0.1), (contexts[2],), ROWS, advance=1)], graph)
    assert runner.replayed == 1


def test_a_full_pool_changes_nothing() -> None:
    engine, contexts = side([4, 4], pages=2)
    graph = graph_of(engine, FRAME, Counted(), pages=2)
    before = engine.pool.data.clone()
    with pytest.raises(OutOfPages):
        engine.call(frame, FRAME, [Call((torch.ones(ROWS, WIDTH), 0.1), (contexts[0],), ROWS, advance=1)], graph)
    assert torch.equal(engine.pool.data, before)
    assert contexts[0].length == 4
