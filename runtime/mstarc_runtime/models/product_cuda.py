"""Products of many rows with a weight on Hopper, with what follows them in the same kernel, `product.cu`.

The library's large products are as fast by themselves: these spare a pass over their results. Where a product keeps the multiprocessors
busy only once, tiles are as wide as that needs, and a product fetches weights while the kernel before it ends.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.models.cuda_program import Function, TensorMap, compiled, wgmma

BIAS, GELU, GATED = range(3)  # KIND of the kernel: what becomes of the sums
ROWS_LEAST = 256  # with fewer rows half a cluster has nothing to do, and the library is faster
_ROWS, _STEP, _THREADS = 128, 64, 384  # of a block
_SHARED = 232448 - 1024  # bytes that a block may have, but for the barriers
_PROCESSORS = 132  # of an H200
_MANY_INPUTS = 2048  # from here on it pays to share them among two blocks


class Tile(NamedTuple):
    """Columns of a block's tile, and its cluster: tiles of rows, tiles of columns, and blocks that share the inputs of a tile."""

    columns: int
    down: int = 2
    across: int = 1
    halves: int = 1


class _Work(ctypes.Structure):
    """`Work` of the kernel."""

    _fields_ = [
        ("x", TensorMap), ("weight", TensorMap), ("out", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "outs", "ins")), ("padding", ctypes.c_byte * 36),
    ]  # fmt: skip


def runs_on(weight: Tensor) -> bool:
    """Whether these kernels are for the weight [outs, ins] and its device."""
    if weight.dtype != torch.bfloat16 or not weight.is_cuda or not weight.is_contiguous():
        return False
    (outs, ins), capability = weight.shape, torch.cuda.get_device_capability(weight.device)
    return outs % 16 == 0 and ins % 8 == 0 and ins >= 2 * _STEP and capability == (9, 0)


def gated_gelu(x: Tensor, weight: Tensor) -> Tensor:
    """gelu(x · gatesᵀ) · (x · upsᵀ) by the tanh formula, [rows, ins] -> [rows, n]; weight [2 · n, ins] is gates, then ups, 8 divides n."""
    pairs = -(-len(x) // _ROWS) % 2 == 0
    return product(x, weight, GATED, Tile(256, 2, 1) if pairs else Tile(256, 1, 2))


def linear(x: Tensor, weight: Tensor, bias: Tensor, gelu: bool = False) -> Tensor:
    """x · weightᵀ + bias, and GELU by the tanh formula if `gelu`: by the kernel where that is faster than the library."""
    tile = tile_of(len(x), *weight.shape) if runs_on(weight) else None
    if tile is not None:
        return product(x, weight, GELU if gelu else BIAS, tile, bias)
    return torch._addmm_activation(bias, x, weight.T, use_gelu=True) if gelu else F.linear(x, weight, bias)


def tile_of(rows: int, outs: int, ins: int) -> Tile | None:
    """The tile with which a product keeps the multiprocessors busy, each of them once; None if there is too much work or too little."""
    down = -(-rows // _ROWS)
    if not 3 <= down <= _PROCESSORS:
        return None
    columns = -(-outs // (16 * (_PROCESSORS // down))) * 16
    tile = Tile(columns)
    if columns < 96:  # too little is done with what is fetched
        tile = Tile(128, 2, 1, 2) if ins >= _MANY_INPUTS else Tile(64, 1, 2)
    blocks = -(-down // tile.down) * tile.down * -(-outs // (tile.columns * tile.across)) * tile.across * tile.halves
    return tile if columns <= 256 and 3 * _PROCESSORS // 4 <= blocks <= _PROCESSORS else None


def product(x: Tensor, weight: Tensor, kind: int, tile: Tile, bias: Tensor | None = None) -> Tensor:
    """Rows [rows, ins] with a weight [outs, ins] of `runs_on` -> [rows, outs], of GATED [rows, outs / 2]; outs is a multiple of 8."""
    (rows, ins), outs = x.shape, len(weight)
    out = x.new_empty(rows, outs // 2 if kind == GATED else outs)
    work = _Work(
        TensorMap.of(x, _ROWS // tile.across, _STEP),
        TensorMap.of(weight, tile.columns // (2 if kind == GATED else tile.down), _STEP),
        out.data_ptr(), None if bias is None else bias.data_ptr(), rows, outs, ins,
    )  # fmt: skip
    function, most = _function(x.device, kind, tile)
    clusters = -(-rows // (_ROWS * tile.down)) * -(-outs // (tile.columns * tile.across))
    if tile.halves == 1:
        clusters = min(clusters, most)  # which take tiles in turn
    function.launch_early(clusters * tile.down * tile.across * tile.halves, _THREADS, work)
    return out


@cache
def _function(device: torch.device, kind: int, tile: Tile) -> tuple[Function, int]:
    """The kernel, and how many of its clusters the device runs at once."""
    stages = min(8, _SHARED // ((_ROWS + tile.columns) * _STEP * 2))
    constants = {
        "KIND": kind, "COLUMNS": tile.columns, "DOWN": tile.down, "ACROSS": tile.across, "HALVES": tile.halves, "STAGES": stages,
    }  # fmt: skip
    shared = stages * (_ROWS + tile.columns) * _STEP * 2 + 1024
    with torch.cuda.device(device):
        image = compiled(Path(__file__).with_name("product.cu"), constants, wgmma("multiply", tile.columns))
        function = Function(image, "product", shared)
        return function, function.clusters(tile.down * tile.across * tile.halves, _THREADS)
