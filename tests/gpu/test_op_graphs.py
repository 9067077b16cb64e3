"""Captured ops against the same ops launched kernel by kernel, on a device: a frozen one and one that writes, in batches of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Net, Probe
from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.op_graphs import Capture, FixedOp, OpGraph  # noqa: E402
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine  # noqa: E402
from mstarc_runtime.worker.device_runner import GraphRunner  # noqa: E402
from tests.runtime.device_harness import DirectRunner  # noqa: E402

pytestmark = pytest.mark.gpu
ROWS = 3
SPECS = [
    OpSpec("n.frame", ("plain", "scalar"), attend="full", positions="same"),
    OpSpec("n.look", ("plain", "scalar"), attend="causal", frozen=True),
]


def probe() -> Probe:
    net = Net(6)
    for name, value in vars(net).items():
        setattr(net, name, value.to(DEVICE))
    return Probe(net)


PROBE = probe()


def frame(run: Any, x: Tensor, t: Tensor) -> Tensor:
    return PROBE.forward(run, (x + t[:, None, None]).reshape(-1, WIDTH)).view(x.shape)


@pytest.mark.parametrize("spec", SPECS, ids=["written", "frozen"])
def test_replays_equal_launches(spec: OpSpec) -> None:
    runner: Capture = GraphRunner(torch.device(DEVICE)) if DEVICE == "cuda" else DirectRunner()
    sides: list[tuple[TransformerEngine, list[Context], OpGraph | None]] = []
    for captured in (False, True):
        pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), 80, page_size=4, device=DEVICE)
        engine = TransformerEngine(pool)
        contexts = [Context(pool) for _ in range(6)]
        for n, context in enumerate(contexts[1:]):
            rows = torch.randn(3 * n + 1, WIDTH, generator=torch.Generator().manual_seed(n)).to(DEVICE)
            call: Callable[..., Any] = engine.call
            call(PROBE.forward, OpSpec("n.read", ("packed",), ("packed",)), [Call((rows,), (context,), len(rows))])
        op = FixedOp(spec, ((torch.float32, (ROWS, WIDTH)), (torch.float32, ())), ROWS, 1)
        sides.append((engine, contexts, OpGraph(frame, op, pool, 12, runner, buckets=(1, 2, 4)) if captured else None))
    draw = torch.Generator().manual_seed(1)
    for which in ([0], [5, 1, 2], [0, 1, 2, 3], [5, 4, 3, 2, 1, 0], [4, 2]):
        xs, ts = torch.randn(6, ROWS, WIDTH, generator=draw).to(DEVICE), torch.rand(6, generator=draw).to(DEVICE)
        columns = [
            engine.call(frame, spec, [Call((xs[i], ts[i]), (contexts[i],), ROWS, advance=1) for i in which], graph)[0]
            for engine, contexts, graph in sides
        ]
        torch.testing.assert_close(columns[1], columns[0], rtol=1e-4, atol=1e-5)
        lengths = [[(context.length, context.position) for context in contexts] for _, contexts, _ in sides]
        assert lengths[0] == lengths[1]
    for plain, captured_context in zip(sides[0][1], sides[1][1], strict=True):
        torch.testing.assert_close(entries(captured_context), entries(plain), rtol=1e-4, atol=1e-5)


def entries(context: Context) -> Tensor:
    return context.pool.data[:, :, context.slots(0, context.length)]
