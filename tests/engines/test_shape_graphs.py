"""A stateless op with captured shapes gives what its method gives, whatever the shapes; capture is direct execution here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mstarc_runtime.abi.linked import NodeLink, OpLink, PortLink
from mstarc_runtime.engines.shape_graphs import Form, ShapeGraphs
from mstarc_runtime.worker.bound_ops import BoundOp
from mstarc_runtime.worker.results import ResultCheck
from mstarc_runtime.worker.stateless import shape_graphs, usual_forms
from tests.engines.test_op_graphs import Counted

CPU = torch.device("cpu")
F32 = torch.float32


class Scales:
    """x [N, 3], w [3] -> rows [N, 3] and their sum [N], written into memory of its own as a graph does."""

    def __init__(self) -> None:
        self._out: dict[int, Tensor] = {}

    def usual_shapes(self, op: str) -> list[tuple[tuple[int, ...], ...]]:
        return [((n, 3), (3,)) for n in (1, 2)] if op == "scale" else []

    def scale(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        out = self._out.setdefault(len(x), torch.empty(x.shape))
        torch.mul(x, w, out=out)
        return out, out.sum(1)

    def peek(self, x: Tensor) -> Tensor:
        return x[: int(x[0, 0])]

    def count(self, x: Tensor) -> int:
        return len(x)


def form(*dims: tuple[int, ...]) -> Form:
    return tuple((F32, each) for each in dims)


def test_shapes_that_were_captured_are_replayed() -> None:
    plain, runner = Scales(), Counted()
    graphs = ShapeGraphs(Scales().scale, [form((1, 3), (3,)), form((2, 3), (3,))], CPU, runner)
    assert runner.captured == 2
    draw = torch.Generator().manual_seed(1)
    for rows, replays in ((1, 1), (2, 2), (3, 2), (2, 3)):
        x, w = torch.randn(rows, 3, generator=draw), torch.randn(3, generator=draw)
        kept = x.clone()
        for found, wanted in zip(graphs(x, w), plain.scale(x, w), strict=True):
            assert torch.equal(found, wanted)
        assert torch.equal(x, kept)
        assert runner.replayed == replays


@pytest.mark.parametrize(
    "args", [(torch.ones(1, 3, dtype=torch.float64), torch.ones(3)), (torch.ones(1, 3), None), (torch.ones(3, 3),)]
)
def test_other_dtypes_and_absent_arguments_run_the_method(args: Any) -> None:
    runner = Counted()
    graphs = ShapeGraphs(lambda x, w=None: x + 1, [form((1, 3), (3,))], CPU, runner)
    assert torch.equal(graphs(*args), args[0] + 1)
    assert runner.replayed == 0


def test_results_outlive_the_next_replay() -> None:
    graphs = ShapeGraphs(Scales().scale, [form((1, 3), (3,))], CPU, Counted())
    first, _ = graphs(torch.ones(1, 3), torch.ones(3))
    graphs(torch.zeros(1, 3), torch.ones(3))
    assert torch.equal(first, torch.ones(1, 3))


def bound(name: str, dims: list[list[int | None]], component: Any = None, **more: Any) -> BoundOp:
    ports = [PortLink(name=f"p{k}", dtype="f32", dims=each) for k, each in enumerate(dims)]
    link = OpLink(
        name=name, params=["plain"] * len(ports), results=1, inputs=ports, optional=[False] * len(ports), **more
    )
    node = NodeLink(name="n", kind="stateless", component="c", ops=[link])
    return BoundOp(f"n.{name}", node, link, getattr(component or Scales(), name), ResultCheck(f"n.{name}", "c", link))


def test_which_forms_are_usual() -> None:
    assert usual_forms(bound("scale", [[None, 3], [3]])) == [form((1, 3), (3,)), form((2, 3), (3,))]
    assert usual_forms(bound("scale", [[None, 3], [3]], random=True)) == []
    assert usual_forms(bound("scale", [[None, 3], [3]], batch="stack")) == []
    assert usual_forms(bound("count", [[2, 3]])) == []  # the component says so

    class Plain:
        def half(self, x: Tensor) -> Tensor:
            return x / 2

    assert usual_forms(bound("half", [[2, 3]], Plain())) == [form((2, 3))]  # the spec fixes every dim
    assert usual_forms(bound("half", [[2, None]], Plain())) == []


def test_what_gives_no_tensors_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class Counts:
        def count(self, x: Tensor) -> int:
            return len(x)

        def half(self, x: Tensor) -> Tensor:
            return x / 2

    ops = [bound("count", [[2, 3]], Counts()), bound("half", [[2, 3]], Counts())]
    found = shape_graphs(ops, CPU, Counted(), lambda done, total, what: None)
    assert list(found) == ["n.half"]
    assert "`n.count` is not captured: " in caplog.text
