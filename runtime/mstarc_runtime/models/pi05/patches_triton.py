"""The first rows of the camera tower as one kernel: patches of pixels by their weights, with biases and positions.

In f32, as openpi has them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, INNER = 64, 64, 32  # of a program's tile, and of a step
PRECISION = "tf32x3"  # as exact as f32, on tensor cores


@triton.jit
def _patches(
    images, weight, bias, position, out, rows,
    SIZE: tl.constexpr, PATCH: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    grid: tl.constexpr = SIZE // PATCH
    inside: tl.constexpr = 3 * PATCH * PATCH
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    token = row % (grid * grid)
    corner = row // (grid * grid) * (3 * SIZE * SIZE) + token // grid * (PATCH * SIZE) + token % grid * PATCH
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, inside, INNER):
        pixel = first + tl.arange(0, INNER)  # of a patch: colour, line, dot
        place = pixel // (PATCH * PATCH) * (SIZE * SIZE) + pixel // PATCH % PATCH * SIZE + pixel % PATCH
        there = (pixel < inside)[None, :]
        some = tl.load(images + corner[:, None] + place[None, :], mask=there & (row < rows)[:, None], other=0.0)
        a = tl.load(
            weight + column[:, None] * inside + pixel[None, :], mask=there & (column < WIDTH)[:, None], other=0.0
        )
        total = tl.dot(some, tl.trans(a), total, input_precision=PRECISION)
    kept = column < WIDTH
    total += tl.load(bias + column, mask=kept, other=0.0)[None, :]
    kept = kept[None, :] & (row < rows)[:, None]
    total += tl.load(position + token[:, None] * WIDTH + column[None, :], mask=kept, other=0.0)
    tl.store(out + row[:, None] * WIDTH + column[None, :], total.to(out.dtype.element_ty), mask=kept)


def patches(images: Tensor, weight: Tensor, bias: Tensor, position: Tensor, dtype: torch.dtype) -> Tensor:
    """Pixels [C, 3, size, size], all f32 -> tokens [C · tokens, width]. weight [width, 3, patch, patch], position [tokens, width]."""
    width, _, patch, _ = weight.shape
    rows = len(images) * len(position)
    out = torch.empty(rows, width, dtype=dtype, device=images.device)
    _patches[(triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))](
        images.float().contiguous(), weight, bias, position, out, rows,
        SIZE=images.shape[-1], PATCH=patch, WIDTH=width,
        ROWS=ROWS, COLUMNS=COLUMNS, INNER=INNER, PRECISION=PRECISION,
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return out
