"""Who may run: reserves the pages a request can need at most, and keeps a short line for those that do not fit now.

What the requests that run may need at most fits into each pool and its pages on the host together, and what one of them may need into
the pool. So the pool itself may run out; a rank then lets the youngest requests wait with their pages on the host, and always finds a
place for them there (`worker.swap`). The line is first in, first out; beyond it the answer is 429.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from mstarc_runtime.abi.linked import Linked
from mstarc_runtime.abi.messages import Ready
from mstarc_runtime.errors import BadRequest, Busy, Unavailable

if TYPE_CHECKING:
    from mstarc_runtime.conductor.admission import Needs
    from mstarc_runtime.conductor.requests import RequestRun

Pages: TypeAlias = dict[tuple[int, str], int]  # (rank, cache) -> pages

MAX_RUNNING = 64
MAX_WAITING = 64
LINE_S = 120.0  # the longest wait in line


class Room:
    """`ready` is the engine's table of ranks that are up; `open` says whether requests may start now."""

    def __init__(self, linked: Linked, ready: Mapping[int, Ready], open_now: Callable[[], bool]) -> None:
        self._ready = ready
        self._open = open_now
        self._homes = _context_homes(linked)
        self._held: dict[int, Pages] = {}  # request -> what it may need until every rank has let go of it
        self._used: Pages = {}
        self._line: deque[tuple[RequestRun, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    @property
    def pages(self) -> int:
        """Pages reserved, over all pools."""
        return sum(self._used.values())

    def pages_of(self, needs: Needs) -> Pages:
        """Pages a request may hold at most. Raises BadRequest if no pool is ever large enough, Unavailable if a rank is down."""
        pages: Pages = {}
        for context, entries in needs.peak.items():
            cache, ranks = self._homes[context]
            for rank in ranks:
                if rank not in self._ready:  # how large its pools are is known once it is up again
                    raise Unavailable(f"not up: rank {rank}")
                pages[rank, cache] = pages.get((rank, cache), 0) + math.ceil(entries / self._pool(rank, cache)[1])
        for (rank, cache), count in pages.items():
            total = self._pool(rank, cache)[0]
            if count > total:
                raise BadRequest(f"the request needs {count} pages of cache `{cache}`; the pool has {total}", "request")
        return pages

    async def enter(self, run: RequestRun) -> None:
        """Reserve the request's pages, waiting in line if need be. Raises Busy, or Unavailable after `close`."""
        if not self._line and self._fits(run):
            self._reserve(run)
            return
        if len(self._line) >= MAX_WAITING:
            raise Busy(f"{len(self._held)} requests run and {len(self._line)} wait", retry_after=2.0)
        place = (run, asyncio.get_running_loop().create_future())
        self._line.append(place)
        try:
            await asyncio.wait_for(place[1], LINE_S)
        except TimeoutError:
            raise Busy(f"no room within {LINE_S:g} s", retry_after=10.0) from None
        except asyncio.CancelledError:
            self.leave(run)  # room may have been found in the moment in which the caller left
            raise
        finally:
            if place in self._line:
                self._line.remove(place)
                self.advance()

    def leave(self, run: RequestRun) -> None:
        """Give back what the request reserved, if anything, and let others in."""
        pages = self._held.pop(run.number, None)
        if pages is not None:
            for key, count in pages.items():
                self._used[key] -= count
            self.advance()

    def advance(self) -> None:
        """Let in, from the head of the line, whoever fits now."""
        while self._line and self._open():
            run, future = self._line[0]
            if not future.done() and not self._fits(run):
                return
            self._line.popleft()
            if not future.done():
                self._reserve(run)
                future.set_result(None)

    def close(self) -> None:
        """Turn the whole line away: the server is shutting down."""
        for _, future in self._line:
            if not future.done():
                future.set_exception(Unavailable("the server is shutting down"))

    def _pool(self, rank: int, cache: str) -> tuple[int, int]:
        """(pages, entries per page) of a rank's pool; (0, 1) while the rank is down."""
        return self._ready[rank].pools.get(cache, (0, 1)) if rank in self._ready else (0, 1)

    def _swap(self, rank: int, cache: str) -> int:
        """Pages that a rank may have on the host beside its pool."""
        return self._ready[rank].swap.get(cache, 0) if rank in self._ready else 0

    def _fits(self, run: RequestRun) -> bool:
        return len(self._held) < MAX_RUNNING and all(
            self._used.get((rank, cache), 0) + count <= self._pool(rank, cache)[0] + self._swap(rank, cache)
            for (rank, cache), count in run.pages.items()
        )

    def _reserve(self, run: RequestRun) -> None:
        self._held[run.number] = run.pages
        for key, count in run.pages.items():
            self._used[key] = self._used.get(key, 0) + count


def _context_homes(linked: Linked) -> dict[str, tuple[str, tuple[int, ...]]]:
    """context -> (cache, ranks whose walks touch it)."""
    return {
        context.name: (
            context.cache,
            tuple(sorted({walk.rank for walk in linked.walks if context.name in walk.contexts})),
        )
        for context in linked.contexts
    }
