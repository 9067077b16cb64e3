"""A product of few rows in Triton, for comparison with cuBLAS: weights [out, in] are read once, in parts along `in` (split-K)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

CONFIGS = [  # outputs and inputs of a block, parts, warps, stages
    (32, 256, 1, 4, 4),
    (64, 128, 1, 4, 5),
    (64, 128, 4, 4, 5),
]


@triton.jit
def _skinny(
    x, weight, out, rows, outs, ins, ROWS: tl.constexpr, OUT: tl.constexpr, IN: tl.constexpr, PARTS: tl.constexpr
):
    row, col, at = tl.arange(0, ROWS), tl.program_id(0) * OUT + tl.arange(0, OUT), tl.arange(0, IN)
    part = tl.program_id(1)
    each = tl.cdiv(tl.cdiv(ins, PARTS), IN) * IN
    total = tl.zeros([ROWS, OUT], tl.float32)
    for start in range(part * each, tl.minimum(part * each + each, ins), IN):
        k = start + at
        w = tl.load(
            weight + col.to(tl.int64)[:, None] * ins + k[None, :],
            mask=(col < outs)[:, None] & (k < ins)[None, :],
            other=0.0,
            eviction_policy="evict_first",
        )
        a = tl.load(x + row[:, None] * ins + k[None, :], mask=(row < rows)[:, None] & (k < ins)[None, :], other=0.0)
        total += tl.dot(a, tl.trans(w))
    place = out + part * rows * outs + row[:, None] * outs + col[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (col < outs)[None, :])


def skinny(x: Tensor, weight: Tensor, config: tuple[int, int, int, int, int]) -> Tensor:
    """x [rows, in] · weight [out, in]^T -> [rows, out]; parts are summed by torch."""
    out_block, in_block, parts, warps, stages = config
    rows, outs = len(x), len(weight)
    dtype = x.dtype if parts == 1 else torch.float32
    out = torch.empty(parts, rows, outs, dtype=dtype, device=x.device)
    pad = max(16, triton.next_power_of_2(rows))
    _skinny[(triton.cdiv(outs, out_block), parts)](
        x, weight, out, rows, outs, x.shape[1], ROWS=pad, OUT=out_block, IN=in_block, PARTS=parts,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out[0] if parts == 1 else out.sum(0)
