"""Philox4x32-10 on tensors, for draws inside a captured loop: the numbers are those of `philox`, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four counter words and two key words, i64 [...] with values below 2**32 -> four random words of the same kind.

    A product of two words may exceed 2**63; i64 wraps around, and the shifts below mask what the sign brings in.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((second >> 32) & _MASK) ^ c1 ^ k0, ((first >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = second & _MASK, first & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniforms(seed: Tensor, site: int, j: Tensor, moves: Tensor | None = None) -> Tensor:
    """As `philox.uniforms`: one number f64 [B] in [0, 1) per row. seed i64 [B] (its 64 bits), site: `site_hash`, j i64 [B].

    moves bool [B]: where j is one more afterwards.
    """
    if j.is_cuda:
        from mstarc_runtime.sampling import philox_triton  # triton is there where CUDA is

        return philox_triton.uniforms(seed, site, j, moves)
    zero = torch.zeros_like(j)
    counter = (zero, j & _MASK, zero + (site & _MASK), zero + (site >> 32))
    words = philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    if moves is not None:
        j.add_(moves)
    return ((words[0] >> 5).double() * 67108864.0 + (words[1] >> 6).double()) / 9007199254740992.0


def normals(shape: Sequence[int], seed: Tensor, site: int, j: Tensor, skip: int = 0) -> Tensor:
    """As `philox.normals`: standard normals f32 [B, *shape], one draw per row (arguments as of `uniforms`)."""
    if j.is_cuda:
        from mstarc_runtime.sampling import philox_triton  # triton is there where CUDA is

        return philox_triton.normals(shape, seed, site, j, skip)
    count = math.prod(shape)
    block = torch.arange(skip, skip - (-count // 4), device=j.device)
    zero = torch.zeros(len(j), len(block), dtype=torch.int64, device=j.device)
    counter = (zero + block, zero + (j & _MASK)[:, None], zero + (site & _MASK), zero + (site >> 32))
    keys = (zero + (seed & _MASK)[:, None], zero + ((seed >> 32) & _MASK)[:, None])
    words = torch.stack(philox4x32(counter, keys), -1).view(len(j), len(block), 2, 2).double()
    radius = (-2.0 * ((words[..., 0] + 1.0) / 4294967296.0).log()).sqrt()
    angle = words[..., 1] * (2.0 * math.pi / 4294967296.0)
    pairs = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    return pairs.view(len(j), 4 * len(block))[:, :count].float().view(len(j), *shape)
