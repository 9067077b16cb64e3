"""Products of many rows with a weight on Hopper, with what follows them in the same kernel, `product.cu`.

The library's products are as fast by themselves; these spare a pass over their results.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mstarc_runtime.models.cuda_program import Function, TensorMap, compiled, wgmma

PLAIN, BIAS, GELU, GATED, PARTS = range(5)  # KIND of the kernel: what becomes of the sums
ROWS_LEAST = 256  # with fewer rows half a cluster has nothing to do, and the library is faster
_ROWS, _STEP, _THREADS = 128, 64, 384  # of a block
_SHARED = 232448 - 1024  # bytes that a block may have, but for the barriers


class Tile(NamedTuple):
    """A block's columns, and its cluster: tiles of rows and tiles of columns."""

    columns: int
    down: int = 2
    across: int = 1


GATES = Tile(256)


class _Work(ctypes.Structure):
    """`Work` of the kernel."""

    _fields_ = [
        ("x", TensorMap), ("weight", TensorMap), ("out", ctypes.c_void_p), ("bias", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("rows", "outs", "ins", "parts")), ("padding", ctypes.c_byte * 32),
    ]  # fmt: skip


def runs_on(weight: Tensor) -> bool:
    """Whether these kernels are for the weight [outs, ins] and its device."""
    if weight.dtype != torch.bfloat16 or not weight.is_cuda or not weight.is_contiguous():
        return False
    return weight.shape[1] % 8 == 0 and torch.cuda.get_device_capability(weight.device) == (9, 0)


def gated_gelu(x: Tensor, weight: Tensor) -> Tensor:
    """gelu(x · gatesᵀ) · (x · upsᵀ) by the tanh formula, [rows, ins] -> [rows, n]; weight [2 · n, ins] is gates, then ups, 8 divides n."""
    return product(x, weight, GATED, GATES)


def product(x: Tensor, weight: Tensor, kind: int, tile: Tile, bias: Tensor | None = None, parts: int = 1) -> Tensor:
    """Rows [rows, ins] with a weight [outs, ins] of `runs_on`, as KIND says; outs is a multiple of 8. PARTS are f32 [parts, rows, outs]."""
    (rows, ins), outs = x.shape, len(weight)
    width = outs // 2 if kind == GATED else outs
    out = x.new_empty(parts, rows, width, dtype=torch.float32) if kind == PARTS else x.new_empty(rows, width)
    work = _Work(
        TensorMap.of(x, _ROWS // tile.across, _STEP), TensorMap.of(weight, tile.columns // tile.down, _STEP),
        out.data_ptr(), None if bias is None else bias.data_ptr(), rows, outs, ins, parts,
    )  # fmt: skip
    function, most = _function(x.device, kind, tile)
    clusters = -(-rows // (_ROWS * tile.down)) * -(-outs // (tile.columns * tile.across)) * parts
    function.launch_early(min(clusters, most) * tile.down * tile.across, _THREADS, work)
    return out


@cache
def _function(device: torch.device, kind: int, tile: Tile) -> tuple[Function, int]:
    """The kernel, and how many of its clusters the device runs at once."""
    stages = _SHARED // ((_ROWS + tile.columns) * _STEP * 2)
    constants = {
        "KIND": kind,
        "COLUMNS": tile.columns,
        "DOWN": tile.down,
        "ACROSS": tile.across,
        "STAGES": min(stages, 8),
    }
    shared = constants["STAGES"] * (_ROWS + tile.columns) * _STEP * 2 + 1024
    with torch.cuda.device(device):
        image = compiled(Path(__file__).with_name("product.cu"), constants, wgmma("multiply", tile.columns))
        function = Function(image, "product", shared)
        return function, function.clusters(tile.down * tile.across, _THREADS)
