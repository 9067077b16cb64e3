"""Keyed random numbers in one kernel: those of `philox`, normals up to the last bit of a logarithm or a cosine in f64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mstarc_runtime.engines.early_triton import early, in_turn

BLOCK = 256  # counters of a program; each gives four numbers


@triton.jit
def _normals(out, seeds, draws, site_low, site_high, skip, count, BLOCK: tl.constexpr):
    """Row program_id(1) of out [B, count]: the counters from `skip` on of its key (seed, site, draw)."""
    row = tl.program_id(1)
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros([BLOCK], tl.uint32)
    c0 = (block + skip).to(tl.uint32)
    c1 = zero + tl.load(draws + row).to(tl.uint32)
    c2 = zero + site_low.to(tl.uint32)
    c3 = zero + site_high.to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(tl.load(seeds + row), c0, c1, c2, c3)
    turn = tl.full([BLOCK], 1.4629180792671596e-09, tl.float64)  # 2 pi / 2**32
    first = tl.sqrt(-2.0 * tl.log((w0.to(tl.float64) + 1.0) / 4294967296.0))
    second = tl.sqrt(-2.0 * tl.log((w2.to(tl.float64) + 1.0) / 4294967296.0))
    at = row.to(tl.int64) * count + block * 4
    left = count - block * 4
    tl.store(out + at, (first * tl.cos(w1.to(tl.float64) * turn)).to(tl.float32), mask=left > 0)
    tl.store(out + at + 1, (first * tl.sin(w1.to(tl.float64) * turn)).to(tl.float32), mask=left > 1)
    tl.store(out + at + 2, (second * tl.cos(w3.to(tl.float64) * turn)).to(tl.float32), mask=left > 2)
    tl.store(out + at + 3, (second * tl.sin(w3.to(tl.float64) * turn)).to(tl.float32), mask=left > 3)


@triton.jit
def _uniforms(
    out, seeds, draws, moves, site_low, site_high, count, BLOCK: tl.constexpr, MOVES: tl.constexpr, EARLY: tl.constexpr
):
    """One number of 53 bits in [0, 1) per key; if MOVES, draws are counted on where `moves` is set."""
    in_turn(EARLY)
    at = tl.arange(0, BLOCK)
    inside = at < count
    zero = tl.zeros([BLOCK], tl.uint32)
    drawn = tl.load(draws + at, mask=inside, other=0)
    if MOVES:
        tl.store(draws + at, drawn + (tl.load(moves + at, mask=inside, other=0) != 0).to(tl.int64), mask=inside)
    c1 = drawn.to(tl.uint32)
    seed = tl.load(seeds + at, mask=inside, other=0)
    w0, w1, _, _ = tl.philox(seed, zero, c1, zero + site_low.to(tl.uint32), zero + site_high.to(tl.uint32))
    high, low = (w0 >> 5).to(tl.float64), (w1 >> 6).to(tl.float64)
    tl.store(out + at, (high * 67108864.0 + low) / 9007199254740992.0, mask=inside)


def uniforms(seed: Tensor, site: int, j: Tensor, moves: Tensor | None = None) -> Tensor:
    """See `philox_torch.uniforms`."""
    out = torch.empty(len(j), dtype=torch.float64, device=j.device)
    block = max(16, triton.next_power_of_2(len(j)))
    counted = moves is not None
    sites = site & 0xFFFFFFFF, site >> 32
    _uniforms[(1,)](
        out, seed, j, moves if counted else j, *sites, len(j), BLOCK=block, MOVES=counted, **early(j.device)
    )
    return out


def normals(shape: Sequence[int], seed: Tensor, site: int, j: Tensor, skip: int = 0) -> Tensor:
    """See `philox_torch.normals`."""
    count = math.prod(shape)
    out = torch.empty(len(j), *shape, device=j.device)
    if out.numel():
        grid = (triton.cdiv(count, 4 * BLOCK), len(j))
        _normals[grid](out, seed, j, site & 0xFFFFFFFF, site >> 32, skip, count, BLOCK=BLOCK)
    return out
