"""Products of many rows on Hopper against torch in f32, at sizes that fill no tile, and at pi0.5's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.models import product_cuda as products
from mstarc_runtime.models.product_cuda import BIAS, GATED, GELU, PARTS, PLAIN, Tile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="there is no Hopper GPU"
    ),
]
SIZES = [(1, 8, 8), (129, 24, 72), (300, 520, 200), (968, 4304, 1152)]  # rows, outputs, inputs


def draw(*sizes: int) -> Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def expected(x: Tensor, weight: Tensor, bias: Tensor, kind: int) -> Tensor:
    sums = x.float() @ weight.float().T
    if kind in (BIAS, GELU):
        sums = sums + bias.float()
    if kind == GELU:
        return F.gelu(sums, approximate="tanh")
    if kind == GATED:
        gate, up = sums.chunk(2, -1)
        return F.gelu(gate, approximate="tanh") * up
    return sums


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found.float() - wanted).norm() < 4e-3 * wanted.norm())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("kind", "tile"),
    [(PLAIN, Tile(160)), (BIAS, Tile(64, 2, 2)), (BIAS, Tile(160)), (GELU, Tile(208)), (GATED, Tile(256)), (PARTS, Tile(128, 1, 2))],
)  # fmt: skip
def test_products(kind: int, tile: Tile, sizes: tuple[int, int, int]) -> None:
    """Twice, with other rows: nothing is left of a call."""
    rows, outs, ins = sizes
    if kind == GATED:
        outs *= 2
    weight, bias = draw(outs, ins), draw(outs)
    for x in (draw(rows, ins), draw(rows, ins)):
        found = products.product(x, weight, kind, tile, bias, parts=2 if kind == PARTS and ins > 64 else 1)
        assert close(found.sum(0) if kind == PARTS else found, expected(x, weight, bias, kind))


def test_more_tiles_than_multiprocessors() -> None:
    x, weight = draw(968, 256), draw(32768, 256)
    first = products.gated_gelu(x, weight)
    assert close(first, expected(x, weight, weight, GATED))
    for _ in range(20):
        assert torch.equal(products.gated_gelu(x, weight), first)


def test_in_a_graph() -> None:
    """A chain in which each kernel starts before the one before has ended."""
    x = draw(512, 512)
    weights = [draw(1024, 512) / 16 for _ in range(6)]

    def chain() -> Tensor:
        found = x
        for weight in weights:
            found = products.gated_gelu(found, weight)
        return found

    wanted = chain().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = chain()
    for _ in range(20):
        found.zero_()
        graph.replay()
        assert torch.equal(found, wanted)
