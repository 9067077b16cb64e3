"""The products of a decode step as one launches them. Their kernels are `step_triton`'s, or on Hopper `step_gluon`'s.

    parts_product   scaled rows -> f32 in parts that are to be summed (queries, keys and values; the head, in one part)
    gated_product   scaled rows -> silu(gate) · up
    add_product     rows -> added to the residual stream: its scaled rows, their squares

*Scaled rows* are x · weight of the next norm. The norm's other factor, 1 / sqrt(mean(x²) + eps), is one number a row: the product that
reads them applies it to its sums. *Squares* f32 [rows, tiles] are sums of x² by tile of outputs. A program takes a tile of outputs and
a part of the inputs; the last to be done with a tile joins its parts, in their order, so that no result depends on the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from mstarc_runtime.engines.attend_step_triton import Shares

OUT, IN = 64, 128  # outputs of a tile, inputs of a block
MAX_ROWS = 32  # with 64, every program's own copy of the rows makes the step slower than cuBLAS's
MAX_HEADS = 8  # of a program that joins their shares: it has all of them in registers at once


@dataclass(frozen=True, slots=True)
class Stream:
    """B rows between products: residual f32 [B, hidden], `scaled` [B, hidden] in the weights' dtype, squares f32 [B, tiles]."""

    residual: Tensor
    scaled: Tensor
    squares: Tensor


@dataclass(frozen=True, slots=True)
class Products:
    """The kernels of the three products, and what `options` they ask for beyond their arguments, by kernel, weight [outs, ins] and rows."""

    parts_kernel: Any
    gated_kernel: Any
    add_kernel: Any
    options: Callable[[Any, Tensor, int], dict[str, Any]]
    shares_kernel: Any = None  # `add_product` of shares of attention

    def parts_product(self, stream: Stream, weight: Tensor, eps: float, parts: int) -> Tensor:
        """RMS norm of the stream · weight [outs, ins]^T -> f32 [parts, B, outs], to be summed over dim 0."""
        rows, outs = len(stream.scaled), len(weight)
        out = f32(weight, parts, rows, outs)
        self.parts_kernel[(outs // OUT * parts,)](
            stream.scaled, weight, stream.squares, out, rows, eps,
            PARTS=parts, **_tiles(stream), **_sizes(weight), **self.options(self.parts_kernel, weight, rows),
        )  # fmt: skip
        return out

    def gated_product(self, stream: Stream, weight: Tensor, eps: float) -> Tensor:
        """silu(gate) · up [B, outs / 2] of the RMS norm of the stream; weight [outs, ins] has the rows of all gates first."""
        rows, outs = len(stream.scaled), len(weight)
        out = weight.new_empty(rows, outs // 2)
        self.gated_kernel[(outs // OUT,)](
            stream.scaled, weight, stream.squares, out, rows, eps,
            **_tiles(stream), **_sizes(weight), **self.options(self.gated_kernel, weight, rows),
        )  # fmt: skip
        return out

    def takes_shares(self, rows: int, heads: int, head_dim: int, parts: int) -> bool:
        """Whether `add_product`, in so many parts, can join the shares of attention itself; then they are read sooner."""
        fits = rows == 1 and head_dim == IN and heads <= MAX_HEADS * parts
        return self.shares_kernel is not None and fits

    def add_product(
        self, stream: Stream, x: Tensor | Shares, weight: Tensor, norm: Tensor, arrived: Tensor, parts: int
    ) -> Stream:
        """The stream with x [B, ins] · weight [outs, ins]^T added in place; `norm` is the weight of the norm that follows.

        x may be the shares of a single row's heads, see `takes_shares`. arrived: zeros i32, one or more for each tile, left as zeros.
        """
        rows, outs, tiles = len(stream.residual), len(weight), len(weight) // OUT
        after = Stream(stream.residual, weight.new_empty(rows, outs), f32(weight, rows, tiles))
        into = (stream.residual, norm, after.scaled, after.squares, f32(weight, parts, rows, outs), arrived)
        kernel = self.add_kernel if isinstance(x, Tensor) else self.shares_kernel
        launched = {"PARTS": parts, **_sizes(weight), **self.options(kernel, weight, rows)}
        if isinstance(x, Tensor):
            kernel[(tiles * parts,)](x, weight, *into, rows, **launched)
        else:
            splits = x.tops.shape[-1]
            kernel[(tiles * parts,)](x.mixed, x.tops, x.totals, weight, *into, SPLITS=splits, **launched)
        return after


def f32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _sizes(weight: Tensor) -> dict[str, int]:
    outs, ins = weight.shape
    return {"OUTS": outs, "INS": ins}


def _tiles(stream: Stream) -> dict[str, int]:
    tiles = stream.squares.shape[1]
    return {"TILES": tiles, "TILES_PAD": max(32, triton.next_power_of_2(tiles))}
