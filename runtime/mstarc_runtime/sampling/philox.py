"""Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

A draw is a pure function of its key, so batch, rank, placement and discarded iterations cannot change it (language, sentence 11).
The Philox key is the request's seed; the counter is (block, j, hash of the site). Integer arithmetic only, hence the same on every
device; normals go through f64 and are rounded to f32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Words: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"  # values below 2**32
Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_MASK, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
_ROUNDS = 10


@dataclass(frozen=True, slots=True)
class DrawKey:
    """Names one execution of a drawing site: the request's seed, `walk/site`, and how many went before it."""

    seed: int
    site: str
    j: int


def philox4x32(counter: Words, key: Words) -> Words:
    """Counter [..., 4] and key [..., 2] -> four random 32-bit words [..., 4]. The leading dims broadcast."""
    c0, c1, c2, c3 = (counter[..., n] for n in range(4))
    k0, k1 = key[..., 0], key[..., 1]
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (second >> _HALF) ^ c1 ^ k0, second & _MASK, (first >> _HALF) ^ c3 ^ k1, first & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return np.stack([c0, c1, c2, c3], axis=-1)


@lru_cache(maxsize=4096)
def site_hash(site: str) -> int:
    """64 bits that stand for `walk/site`: BLAKE2b of the name, read little endian."""
    return int.from_bytes(hashlib.blake2b(site.encode(), digest_size=8).digest(), "little")


def uniforms(keys: Sequence[DrawKey]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """One number in [0, 1) per key, with 53 random bits."""
    words = philox4x32(*_inputs(keys, np.zeros(len(keys), dtype=np.uint64)))
    high, low = words[:, 0] >> np.uint64(5), words[:, 1] >> np.uint64(6)
    return (high * 67108864.0 + low) / 9007199254740992.0


def normals(shape: Sequence[int], key: DrawKey, skip: int = 0) -> Floats:
    """Standard normals by Box and Muller (1958), after `skip` blocks of four."""
    count = math.prod(shape)
    blocks = -(-count // 4)
    start = np.arange(skip, skip + blocks, dtype=np.uint64)
    counter, keys = _inputs([key], np.zeros(1, dtype=np.uint64))
    counters = np.repeat(counter, blocks, axis=0)
    counters[:, 0] = start
    words = philox4x32(counters, keys).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((words[:, 0] + 1.0) / 4294967296.0))
    angle = words[:, 1] * (2.0 * math.pi / 4294967296.0)
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return pairs.reshape(-1)[:count].astype(np.float32).reshape(tuple(shape))


class KeyedGenerator:
    """The generator that an op with the attribute `random` is handed: each call goes on where the last one ended."""

    def __init__(self, key: DrawKey) -> None:
        self.key = key
        self._blocks = 0

    def normal(self, *shape: int) -> Floats:
        """Standard normals, f32."""
        made = normals(shape, self.key, self._blocks)
        self._blocks += -(-made.size // 4)
        return made


def _inputs(keys: Sequence[DrawKey], blocks: Words) -> tuple[Words, Words]:
    counters, seeds = [], []
    for key, block in zip(keys, blocks, strict=True):
        site, seed = site_hash(key.site), key.seed % (1 << 64)
        counters.append((int(block), key.j % (1 << 32), site & 0xFFFFFFFF, site >> 32))
        seeds.append((seed & 0xFFFFFFFF, seed >> 32))
    return np.array(counters, dtype=np.uint64).reshape(-1, 4), np.array(seeds, dtype=np.uint64).reshape(-1, 2)
