"""The engine on kernels against the engine on SDPA: the same calls on the same contexts give the same values and entries."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Net, Probe
from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.paged_run import EngineError  # noqa: E402
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine  # noqa: E402

pytestmark = pytest.mark.gpu
NET = Net(3)
READ = OpSpec("n.read", ("packed",), ("packed",))
STEP = OpSpec("n.step", ("packed",), ("packed",), attend="full", positions="same")
FROZEN = OpSpec("n.look", ("packed",), ("packed",), attend="full", frozen=True)
LISTEN = OpSpec("n.listen", ("packed",), ())
CROSS = OpSpec("n.across", ("packed",), ("packed",), cross=True)


def on(device: str) -> Probe:
    net = copy.copy(NET)
    for name, value in vars(NET).items():
        setattr(net, name, value.to(device))
    return Probe(net)


class Side:
    """An engine with three contexts and a source. Freed and unused slots are poisoned."""

    def __init__(self, device: str, kernels: bool) -> None:
        pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), 60, page_size=4, device=device, poison=True)
        if kernels:
            pool.zeroes = False
            pool.data.fill_(float("nan"))
        self.engine = TransformerEngine(pool, kernels=kernels)
        self.contexts = [Context(pool) for _ in range(4)]
        self.probe, self.device = on(device), device

    def call(self, method: str, spec: OpSpec, rows: list[Tensor], which: list[int], both: bool = False) -> list[Tensor]:
        calls = [
            Call(
                (x.to(self.device),),
                (self.contexts[i], self.contexts[2]) if both else (self.contexts[i],),
                len(x),
                cross=self.contexts[3] if spec.cross else None,
            )
            for x, i in zip(rows, which, strict=True)
        ]
        columns = self.engine.call(getattr(self.probe, method), spec, calls)
        return [piece.cpu() for column in columns for piece in column]

    def entries(self) -> list[Tensor]:
        return [c.pool.data[:, :, c.slots(0, c.length)].cpu() for c in self.contexts]


def test_calls_of_every_kind() -> None:
    draw = torch.Generator().manual_seed(0)
    sides = [Side("cpu", False), Side(DEVICE, True)]
    script = [
        ("listen", LISTEN, [7], [3], False),
        ("forward", READ, [5, 1, 9], [0, 1, 2], False),
        ("forward", FROZEN, [3, 2, 6], [0, 0, 1], False),
        ("across", CROSS, [1, 4], [1, 2], False),
        ("forward", STEP, [3, 3], [2, 0], False),
        ("forward", READ, [2], [0], True),
        ("forward", READ, [1, 1, 1], [0, 1, 2], False),
    ]
    for method, spec, counts, which, both in script:
        rows = [torch.randn(count, WIDTH, generator=draw) for count in counts]
        expected, found = (side.call(method, spec, rows, which, both) for side in sides)
        for wanted, value in zip(expected, found, strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
    for wanted, value in zip(sides[0].entries(), sides[1].entries(), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-4, atol=1e-5)
    assert [c.position for c in sides[0].contexts] == [c.position for c in sides[1].contexts]


def test_a_failed_call_changes_nothing() -> None:
    side = Side(DEVICE, True)
    side.call("forward", READ, [torch.ones(6, WIDTH)], [0])
    before, free = side.entries(), side.engine.pool.free_pages

    def broken(run: object, x: Tensor) -> Tensor:
        side.probe.forward(run, x)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        side.engine.call(broken, READ, [Call((torch.ones(9, WIDTH, device=DEVICE),), (side.contexts[0],), 9)])
    assert side.engine.pool.free_pages == free
    for wanted, value in zip(before, side.entries(), strict=True):
        assert torch.equal(wanted, value)


def test_rules_hold_on_kernels_too() -> None:
    side = Side(DEVICE, True)
    with pytest.raises(EngineError, match="frozen but its component writes"):
        side.call("listen", FROZEN, [torch.ones(2, WIDTH)], [0])
