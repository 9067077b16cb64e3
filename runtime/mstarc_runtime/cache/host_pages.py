"""Room on the host for pages of a pool that is full."""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

log = logging.getLogger("mstarc.cache")

BLOCK_BYTES = 64 << 20  # taken from the system at once


class HostPages:
    """At most `count` pages of one shape, one after the other in blocks that are made when they are first needed and then kept.

    `pinned`: memory that a GPU copies from and to by itself, while the host goes on.
    """

    def __init__(self, count: int, shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> None:
        self.count = count
        self._shape, self._dtype, self._pinned = shape, dtype, pinned
        self._each = max(1, BLOCK_BYTES // (math.prod(shape) * dtype.itemsize))  # pages of a block
        self._blocks: list[Tensor] = []
        self._made = 0
        self._free: list[int] = []

    @property
    def used(self) -> int:
        """Pages that are taken."""
        return self._made - len(self._free)

    def take(self) -> int | None:
        """A page, by its number from 0; None if all are taken, or the system gives no more memory."""
        if not self._free and self._made < self.count:
            self._grow()
        return self._free.pop() if self._free else None

    def give(self, number: int) -> None:
        """Take a page back."""
        self._free.append(number)

    def page(self, number: int) -> Tensor:
        """The entries of a page, as `PagedPool.page` has them."""
        return self._blocks[number // self._each][number % self._each]

    def _grow(self) -> None:
        pages = min(self._each, self.count - self._made)
        try:
            with torch.inference_mode(False):  # made in the middle of a call, and written outside of it too
                self._blocks.append(torch.empty(pages, *self._shape, dtype=self._dtype, pin_memory=self._pinned))
        except RuntimeError as error:
            log.error("the host has no memory for KV pages beyond %d: %s", self._made, error)
            self.count = self._made
            return
        self._free.extend(range(self._made + pages - 1, self._made - 1, -1))
        self._made += pages
