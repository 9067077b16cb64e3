"""Captured prompts against the same calls launched kernel by kernel, on a device: batches of any size, all kinds of arguments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH
from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.op_graphs import Capture  # noqa: E402
from mstarc_runtime.engines.ragged_graphs import RaggedGraph, RaggedOp  # noqa: E402
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine  # noqa: E402
from mstarc_runtime.worker.device_runner import GraphRunner  # noqa: E402
from tests.engines.test_ragged_graphs import IDS, LISTEN, LOOK, ROWS, arguments  # noqa: E402
from tests.gpu.test_op_graphs import PROBE  # noqa: E402
from tests.runtime.device_harness import DirectRunner  # noqa: E402

pytestmark = pytest.mark.gpu
FILL = OpSpec("n.fill", ("packed",), ("packed",))


def rows_and_last(run: object, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    hidden = PROBE.forward(run, x)
    return hidden, hidden[run.last] + t[:, None]  # type: ignore[attr-defined]


METHODS = [(IDS, PROBE.tail), (ROWS, rows_and_last), (LOOK, PROBE.forward), (LISTEN, PROBE.listen)]


class Side:
    """An engine on kernels with six contexts, and a graph or none. What was not written is NaN."""

    def __init__(self, op: RaggedOp, method: object, captured: bool) -> None:
        pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), 80, page_size=4, device=DEVICE, poison=True)
        pool.zeroes = False
        pool.data.fill_(float("nan"))
        runner: Capture = GraphRunner(torch.device(DEVICE)) if DEVICE == "cuda" else DirectRunner()
        self.op, self.method = op, method
        self.engine = TransformerEngine(pool, kernels=True)
        self.contexts = [Context(pool) for _ in range(6)]
        for n, context in enumerate(self.contexts[1:]):
            rows = torch.randn(3 * n + 1, WIDTH, generator=torch.Generator().manual_seed(n)).to(DEVICE)
            self.engine.call(PROBE.forward, FILL, [Call((rows,), (context,), len(rows))])
        self.graph = RaggedGraph(method, op, pool, 12, runner, (4, 16, 24), 3) if captured else None  # type: ignore[arg-type]

    def call(self, args: list[tuple[Tensor, ...]], which: list[int]) -> list[Tensor]:
        calls = [
            Call(tuple(value.to(DEVICE) for value in some), (self.contexts[i],), len(some[0]))
            for some, i in zip(args, which, strict=True)
        ]
        columns = self.engine.call(self.method, self.op.spec, calls, self.graph)  # type: ignore[arg-type]
        return [piece for column in columns for piece in column]


@pytest.mark.parametrize(("op", "method"), METHODS, ids=[op.spec.name for op, _ in METHODS])
def test_replays_equal_launches(op: RaggedOp, method: object) -> None:
    plain, captured = Side(op, method, False), Side(op, method, True)
    draw = torch.Generator().manual_seed(4)
    for takes, which in (
        [[5], [0]],
        [[1, 3], [2, 0]],
        [[16], [1]],
        [[7, 9, 8], [3, 4, 5]],
        [[2, 2, 2, 2], [5, 4, 1, 0]],
        [[20, 20], [0, 3]],
    ):
        args = [arguments(op, count, draw) for count in takes]
        expected, found = plain.call(args, which), captured.call(args, which)
        assert len(expected) == len(found)
        for wanted, value in zip(expected, found, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
        for left, right in zip(plain.contexts, captured.contexts, strict=True):
            assert (left.length, left.position, left.ids.tolist()) == (right.length, right.position, right.ids.tolist())
            torch.testing.assert_close(entries(right), entries(left), rtol=1e-4, atol=1e-5)


def entries(context: Context) -> Tensor:
    return context.pool.data[:, :, context.slots(0, context.length)]
