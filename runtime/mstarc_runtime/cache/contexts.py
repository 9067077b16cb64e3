"""Contexts: what one request remembers in one cache. A page table, a length, a position counter and the ids behind the entries.

Pages are shared copy-on-write: a fork shares every page that holds entries, and the partly filled last page is copied when either
side writes to it first. The position counter is not the length: ops may give several entries one position.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mstarc_runtime.cache.pool import OutOfPages, PagedPool

EMPTY: Final = object()  # the history of an empty context
NO_ID = -1  # an entry that stands for no token id (an embedding, a timestep)


class Context:
    """A sequence of KV entries over a pool. A new one is empty: length 0, position 0, legal to read and to fork.

    `pages` may reach beyond the entries: those are reserved, held by this context alone. Some may lie on the host (`PagedPool.swap_out`);
    then everything but attention works on the context.

    Two contexts of one request with one `history` hold equal entries at equal positions: the same calls wrote both. EMPTY is that of all
    empty ones; every write makes a new one, which only contexts that the same call wrote may share.
    """

    __slots__ = ("_ids", "history", "length", "pages", "pool", "position")

    def __init__(self, pool: PagedPool) -> None:
        self.pool = pool
        self.pages: list[int] = []
        self.length = 0
        self.position = 0
        self.history: object = EMPTY
        self._ids: Tensor = torch.empty(0, dtype=torch.int64, device=pool.data.device)

    # ------------------------------------------------------------------------------------------------------------- writing

    def reserve(self, entries: int) -> None:
        """Make room for so many more entries that this context alone holds. Raises OutOfPages and then changes nothing."""
        pool = self.pool
        copies = self._shares_last_page() and entries > 0
        wanted = max(0, pool.pages_for(self.length + entries) - len(self.pages)) + copies
        if wanted > pool.free_pages and not pool.ask(wanted):
            raise OutOfPages(wanted, pool)
        if copies:
            self._copy_last_page()
        while len(self.pages) * pool.page_size < self.length + entries:
            self.pages.append(pool.alloc(prefer=self.pages[-1] + 1 if self.pages else None))

    def lacks_page(self) -> bool:
        """Whether the next entry needs a page that this context does not hold yet."""
        return self.length == len(self.pages) * self.pool.page_size or self._shares_last_page()

    def extend(self, entries: int, advance: int, ids: Tensor | None = None) -> None:
        """Count so many entries that were written to reserved slots, move the counter, and keep their ids (i64 [entries]).

        Its history is now its own: who knows better says so after it.
        """
        end = self.length + entries
        if end > len(self.pages) * self.pool.page_size:
            raise ValueError(f"{entries} entries do not fit: {self.length} are used, {len(self.pages)} pages are held")
        if end > len(self._ids):
            grown = self._ids.new_empty(max(end, 2 * len(self._ids), 64))
            grown[: self.length] = self._ids[: self.length]
            self._ids = grown
        self._ids[self.length : end] = NO_ID if ids is None else ids
        self.length = end
        self.position += advance
        self.history = object()

    def release_reserved(self, keep: int | None = None) -> None:
        """Give back reserved pages, down to `keep` pages or those that hold entries, whichever is more."""
        used = max(self.pool.pages_for(self.length), keep or 0)
        while len(self.pages) > used:
            self.pool.free(self.pages.pop())

    def clean_tail(self) -> None:
        """Zero what a failed write left behind the last entry of this context's own pages, so that it cannot turn a mask to NaN."""
        size = self.pool.page_size
        if not self.pool.zeroes:
            return
        for index in range(self.length // size, len(self.pages)):
            page = self.pages[index]
            if self.pool.refs(page) == 1:
                self.pool.page(page)[:, :, max(0, self.length - index * size) :].zero_()

    # ------------------------------------------------------------------------------------------------------ forks and drops

    def fork(self) -> Context:
        """A context with the same entries, counter and ids; neither sees what the other writes afterwards."""
        copy = Context(self.pool)
        copy.pages = self.pages[: self.pool.pages_for(self.length)]
        for page in copy.pages:
            self.pool.share(page)
        copy.length, copy.position, copy.history = self.length, self.position, self.history
        copy._ids = self._ids[: self.length].clone()
        return copy

    def drop(self) -> None:
        """Become empty and give every page back. Dropping an empty context does nothing."""
        pages, self.pages = self.pages, []
        for page in reversed(pages):  # so that the first page of the run is the next to be handed out
            self.pool.free(page)
        self.length = self.position = 0
        self.history = EMPTY

    # ------------------------------------------------------------------------------------------------------------- reading

    @property
    def ids(self) -> Tensor:
        """Token ids that the context holds, in order, i64 [n]; entries without an id are left out."""
        kept = self._ids[: self.length]
        return kept[kept >= 0]

    @property
    def entry_ids(self) -> Tensor:
        """Token ids by entry, i64 [length]; NO_ID where an entry has none."""
        return self._ids[: self.length]

    def run_start(self, entries: int) -> int | None:
        """The first slot if the first `entries` entries lie in one run of neighbouring pages, else None."""
        count = self.pool.pages_for(entries)
        first = self.pages[0] if count else 0
        if self.pages[:count] == list(range(first, first + count)):
            return first * self.pool.page_size
        return None

    def slots(self, start: int, end: int) -> list[int]:
        """Slots of entries start..end-1."""
        size, pages = self.pool.page_size, self.pages
        return [pages[entry // size] * size + entry % size for entry in range(start, end)]

    def _shares_last_page(self) -> bool:
        size = self.pool.page_size
        return self.length % size != 0 and self.pool.refs(self.pages[self.length // size]) > 1

    def _copy_last_page(self) -> None:
        pool, index = self.pool, self.length // self.pool.page_size
        shared = self.pages[index]
        page = pool.alloc(prefer=self.pages[index - 1] + 1 if index else None)
        used = self.length % pool.page_size
        pool.page(page)[:, :, :used] = pool.page(shared)[:, :, :used]
        pool.free(shared)
        self.pages[index] = page
