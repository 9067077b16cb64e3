"""A pool of KV pages for one cache geometry: geometry and capacity in, page numbers and one big tensor out.

A page holds `page_size` entries of every layer; an entry is one key and one value row per KV head. Pages are counted references:
`alloc` gives a page with one reference, `share` adds one, `free` takes one away and the last one returns the page. Alloc and free
cost O(1) each. On a CPU a page is zeroed when it is handed out, so nothing that an earlier owner left (NaN included) reaches the next
one; the kernels of a GPU never load what a mask hides, and a page is handed out without work on the device.

A pool may have pages on the host beside its own: `swap_out` moves a page there, `swap_in` back. Such a page keeps its references under
another number, from `total_pages` on; contexts may fork, share and free it, and only attention must not be asked about it.

Neighbouring pages of a context let attention read them in place instead of gathering, so the pool tries to keep runs together:
`alloc` takes a page that the caller prefers if it is free, and a fresh run starts far from other runs (bit-reversed order).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mstarc_runtime.cache.host_pages import HostPages
from mstarc_runtime.errors import LoadError
from mstarc_runtime.errors import OutOfPages as OutOfPages

PAGE_SIZE = 16
PAGE_SIZE_GPU = 64  # a block of the attention kernel


class PoolError(RuntimeError):
    """A page was freed twice or used after it was freed: an internal error."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """`kv(layers, heads, kv_heads, head_dim)` of the language. `heads` are the query heads."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        if min(self.layers, self.heads, self.kv_heads, self.head_dim) < 1 or self.heads % self.kv_heads:
            raise LoadError(f"cache geometry {self}: counts must be positive and heads a multiple of kv_heads")

    def entry_bytes(self, dtype: torch.dtype = torch.float32) -> int:
        """Bytes of one entry: key and value of every layer and KV head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


def nobody(wanted: int) -> bool:
    """`PagedPool.ask` where no request can make room for another."""
    return False


def scattered(count: int) -> list[int]:
    """0..count-1 in bit-reversed order: any first k of them lie far apart.

    >>> scattered(6)
    [0, 4, 2, 1, 5, 3]
    """
    bits = max(1, (count - 1).bit_length())
    order = (int(format(number, f"0{bits}b")[::-1], 2) for number in range(1 << bits))
    return [number for number in order if number < count]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the host from calloc, so that memory is taken page by page as it is used, and start-up does not fill gigabytes."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


class PagedPool:
    """Pages of one geometry on one device.

    `data` is [layers, 2 · kv_heads, pages · page_size, head_dim]: keys in the first kv_heads, values in the others. A *slot* is an
    index of dim 2: page · page_size + offset. `poison` fills pages with NaN (-1 if they hold integers) when they are freed, which
    makes a read after free loud. `swap`: how many pages may lie on the host. `ask`: called by a context that lacks pages with how many
    it wants; True once so many are free.
    """

    def __init__(
        self,
        geometry: Geometry,
        pages: int,
        *,
        page_size: int = PAGE_SIZE,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        poison: bool = False,
        swap: int = 0,
    ) -> None:
        if pages < 1 or page_size < 1:
            raise LoadError(f"a KV pool needs at least one page of one entry, got {pages} pages of {page_size}")
        self.geometry = geometry
        self.page_size = page_size
        self.poison = poison
        shape = (geometry.layers, 2 * geometry.kv_heads, pages * page_size, geometry.head_dim)
        self.data: Tensor = _zeros(shape, dtype, torch.device(device))
        self.zeroes = self.data.device.type == "cpu"  # whether readers rely on zeros beyond a context's entries
        self.ask: Callable[[int], bool] = nobody
        self.swap = swap
        self.given = 0  # how often a page has become free
        spare = 1 if swap else 0  # with it, two pages can change places when all others are taken
        self.total_pages = pages
        self.host = HostPages(swap + spare, tuple(self.page(0).shape), dtype, pinned=not self.zeroes)
        self._refs = [0] * (pages + swap + spare)
        self._free = scattered(pages)[::-1]  # a stack
        self._place = [0] * pages  # where a free page is in the stack
        for place, page in enumerate(self._free):
            self._place[page] = place

    @classmethod
    def from_bytes(
        cls,
        geometry: Geometry,
        size: int,
        *,
        page_size: int = PAGE_SIZE,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        poison: bool = False,
        swap_bytes: int = 0,
    ) -> PagedPool:
        """A pool of as many pages as fit in `size` bytes, and on the host in `swap_bytes`. Raises LoadError if that is none."""
        page_bytes = page_size * geometry.entry_bytes(dtype)
        if size < page_bytes:
            raise LoadError(f"{size} bytes hold no KV page: one page of {page_size} entries takes {page_bytes} bytes")
        pages, swap = size // page_bytes, swap_bytes // page_bytes
        return cls(geometry, pages, page_size=page_size, dtype=dtype, device=device, poison=poison, swap=swap)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.page_size * self.geometry.entry_bytes(self.data.dtype)

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_for(self, entries: int) -> int:
        """Pages that hold so many entries."""
        return math.ceil(entries / self.page_size)

    def refs(self, page: int) -> int:
        """References to a page; 0 = free."""
        return self._refs[page]

    def alloc(self, prefer: int | None = None) -> int:
        """A page with one reference: `prefer` if it is free, else any. Raises OutOfPages."""
        page = self._take(prefer)
        self._refs[page] = 1
        if self.zeroes:
            self.page(page).zero_()
        return page

    def _take(self, prefer: int | None) -> int:
        if not self._free:
            raise OutOfPages(1, self)
        if prefer is not None and 0 <= prefer < self.total_pages and self._refs[prefer] == 0:
            page = prefer
            last = self._free.pop()
            if last != page:  # the top of the stack fills the hole
                self._free[self._place[page]] = last
                self._place[last] = self._place[page]
            return page
        return self._free.pop()

    def share(self, page: int) -> None:
        """Add a reference. Raises PoolError if the page is free."""
        if self._refs[page] < 1:
            raise PoolError(f"page {page} is shared but nobody holds it")
        self._refs[page] += 1

    def free(self, page: int) -> None:
        """Take one reference away; the last one returns the page. Raises PoolError if the page is free."""
        if self._refs[page] < 1:
            raise PoolError(f"page {page} is freed but nobody holds it")
        self._refs[page] -= 1
        if self._refs[page] == 0:
            self._give(page)

    def _give(self, page: int) -> None:
        self.given += 1
        if self.poison:
            self.page(page).fill_(float("nan") if self.data.is_floating_point() else -1)
        if page >= self.total_pages:
            self.host.give(page - self.total_pages)
            return
        self._place[page] = len(self._free)
        self._free.append(page)

    def swap_out(self, page: int) -> int | None:
        """Move a page to the host; its number there, None if the host has no room. The device copies when its queue comes to it."""
        number = self.host.take()
        if number is None:
            return None
        self._move(page, self.total_pages + number)
        return self.total_pages + number

    def swap_in(self, page: int, prefer: int | None = None) -> int:
        """Move a page of the host back; its number now, `prefer` if that one is free. Raises OutOfPages."""
        number = self._take(prefer)
        self._move(page, number)
        return number

    @torch.inference_mode()
    def _move(self, page: int, target: int) -> None:
        self.page(target).copy_(self.page(page), non_blocking=True)
        self._refs[target], self._refs[page] = self._refs[page], 0
        self._give(page)

    def page(self, page: int) -> Tensor:
        """The entries of a page, a view [layers, 2 · kv_heads, page_size, head_dim]."""
        if page >= self.total_pages:
            return self.host.page(page - self.total_pages)
        return self.data[:, :, page * self.page_size : (page + 1) * self.page_size]

    def check_held(self, pages: list[int]) -> None:
        """Raise PoolError if one of the pages is free (use after free) or on the host."""
        if self.host.used and max(pages, default=0) >= self.total_pages:
            raise PoolError(
                f"pages {[page for page in pages if page >= self.total_pages]} are used while they are on the host"
            )
        if 0 in map(self._refs.__getitem__, pages):
            freed = [page for page in pages if self._refs[page] == 0]
            raise PoolError(f"pages {freed} are used after they were freed")
