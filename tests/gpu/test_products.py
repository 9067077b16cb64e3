"""Products of many rows on Hopper against torch in f32, at sizes that fill no tile, and at pi0.5's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.models import product_cuda as products
from mstarc_runtime.models.product_cuda import BIAS, GATED, GELU, Tile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="there is no Hopper GPU"
    ),
]
SIZES = [(1, 16, 128), (129, 48, 136), (300, 528, 200), (968, 4304, 1152)]  # rows, outputs, inputs

TILES = [
    (BIAS, Tile(64, 1, 2)), (BIAS, Tile(64, 2, 2)), (BIAS, Tile(160)), (BIAS, Tile(112, 1, 1, 2)), (GELU, Tile(208)),
    (GELU, Tile(128, 2, 1, 2)), (GATED, Tile(256)), (GATED, Tile(256, 1, 2)),
]  # fmt: skip


def draw(*sizes: int) -> Tensor:
    return torch.randn(*sizes, device="cuda").bfloat16()


def expected(x: Tensor, weight: Tensor, bias: Tensor, kind: int) -> Tensor:
    sums = x.float() @ weight.float().T
    if kind == GATED:
        gate, up = sums.chunk(2, -1)
        return F.gelu(gate, approximate="tanh") * up
    sums += bias.float()
    return F.gelu(sums, approximate="tanh") if kind == GELU else sums


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool((found.float() - wanted).norm() < 4e-3 * wanted.norm())


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("kind", "tile"), TILES)
def test_products(kind: int, tile: Tile, sizes: tuple[int, int, int]) -> None:
    """Twice, with other rows: nothing is left of a call."""
    rows, outs, ins = sizes
    if kind == GATED:
        outs *= 2
    weight, bias = draw(outs, ins), draw(outs)
    for x in (draw(rows, ins), draw(rows, ins)):
        assert close(products.product(x, weight, kind, tile, bias), expected(x, weight, bias, kind))


@pytest.mark.parametrize("rows", [3, 256, 512, 768, 896, 968])
@pytest.mark.parametrize("gelu", [False, True])
def test_layers_of_the_camera_tower(gelu: bool, rows: int) -> None:
    """By the kernel or the library, as the number of rows has it."""
    for outs, ins in ((3456, 1152), (1152, 1152), (4304, 1152), (1152, 4304)):
        x, weight, bias = draw(rows, ins), draw(outs, ins) / 16, draw(outs)
        assert close(products.linear(x, weight, bias, gelu), expected(x, weight, bias, GELU if gelu else BIAS))


@pytest.mark.parametrize("rows", [256, 512, 896, 968])
def test_gates_of_the_prefix(rows: int) -> None:
    x, weight = draw(rows, 2048), draw(4096, 2048) / 16
    assert close(products.gated_gelu(x, weight), expected(x, weight, weight, GATED))


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
