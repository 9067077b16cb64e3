"""Rotary positions over (frame, row, column): positions in, tables of cosines and signed sines out, and their application.

Each axis owns a third of the head, 2·((head_dim // 3) // 2) dims wide; the dims that remain are not rotated. Neighbouring dims
form a pair, but the frequencies lie tiled, f0 … fk f0 … fk, so that the two members of a pair turn by different angles. The
published weights were trained that way. Source: the public V-JEPA 2 implementation.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

BASE = 10000.0
Rotation = tuple[Tensor, Tensor]  # cosines and signed sines, f32 [..., rows, 1, 1, head_dim]


@lru_cache
def frequencies(head_dim: int, device: torch.device) -> Tensor:
    """Angles per position of the dims of one axis, f32 [2 · ((head_dim // 3) // 2)]."""
    third = 2 * ((head_dim // 3) // 2)
    steps = torch.arange(third // 2, dtype=torch.float32, device=device)
    return (1.0 / BASE ** (steps / (third / 2.0))).repeat(2)


def rotation(frame: Tensor, row: Tensor, column: Tensor, head_dim: int) -> Rotation:
    """Tables for positions [..., rows] of the three axes (broadcast against each other). A position of 0 does not rotate."""
    frequency = frequencies(head_dim, frame.device)
    third = len(frequency)
    shape = (frame + row + column).shape
    angle = torch.cat([axis.expand(shape)[..., None].float() * frequency for axis in (frame, row, column)], dim=-1)
    angle = torch.nn.functional.pad(angle, (0, head_dim - 3 * third))[..., None, None, :]
    sign = torch.arange(head_dim, device=frame.device) % 2 * 2 - 1  # made on the device: a graph may be capturing
    return angle.cos(), angle.sin() * sign


def token_positions(ids: Tensor, grid: int) -> tuple[Tensor, Tensor, Tensor]:
    """Frame, row and column of token ids: tokens are numbered frame by frame, row by row."""
    within = ids % grid**2
    return ids // grid**2, within // grid, within % grid


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Rotate [..., rows, parts, heads, head_dim] by tables of `rotation`; computed in f32."""
    cos, sin = turn
    if x.is_cuda:
        from mstarc_runtime.models import fused_triton  # triton is there where CUDA is

        heads, dim = x.shape[-3] * x.shape[-2], x.shape[-1]
        rows = x.flatten(-3, -2).reshape(-1, heads, dim)
        return fused_triton.rotate_pairs(rows, cos.reshape(-1, dim), sin.reshape(-1, dim)).view(x.shape)
    swapped = x.reshape(*x.shape[:-1], -1, 2).flip(-1).reshape(x.shape)
    return (x * cos + swapped * sin).to(x.dtype)
