"""A full KV pool: who waits, and whose pages lie on the host meanwhile.

Requests are let in while what they may need at most fits into the pool and its pages on the host together (`conductor.room`), so a pool
may run out. Then the oldest requests go on, and the youngest wait: whoever lacks pages takes them from the youngest request that is
younger than itself, page by page, and the pages go to the host. A request some of whose pages were taken, or that found nobody to take
from, is in the `waiting` line of the pool. It makes no call on the pool, and nor does any younger one, until its turn comes: from the
oldest on, each takes its pages back (from still younger ones if need be) and goes on, its contexts holding what they held, perhaps on
other pages. Nothing of it is recomputed, so what it has streamed stays true. "Old" is the number of the request, the same on all ranks.

Calls are looked at where they begin: a call of a coroutine, an iteration of the host's loop, a run of a device loop. How many entries an
iteration of the host's loop adds is not known before, and within it nobody can be left out any more: pages for one entry are made
ready, and if that was not enough, the calls are made one request after the other, and each may take pages from any other, which has
them back before its own call.

Why it never locks up. Let the pool have D pages and H on the host, and W_r be what request r may need at most, W_r <= D and
sum(W) <= D + H. The oldest request waits for no younger one: all that is not its own may be taken, page by page. That needs a place
on the host, and there is one: with H + 1 places (`PagedPool` has a spare one), a pool without a free page and a host without a free
place would hold D + H + 1 pages, more than sum(W). So the oldest has its pages at once, on every rank, and goes on as if it were alone;
it ends, or its deadline ends it, and the next is the oldest. Younger requests come after finitely many. Only a request that
needs more than its plan said finds no room although it is the oldest; it fails, and no other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from mstarc_runtime.errors import OutOfPages

if TYPE_CHECKING:
    from mstarc_runtime.abi.linked import Linked
    from mstarc_runtime.cache.contexts import Context
    from mstarc_runtime.cache.pool import PagedPool
    from mstarc_runtime.worker.session import Session
    from mstarc_runtime.worker.walks import WalkRun

log = logging.getLogger("mstarc.worker")

Waker = Callable[[], None]
TELL_S = 60.0  # between two warnings that a pool is full


class Swap:
    """The waiting line of one pool. contexts: how many a request may have on it. `sessions`: those of the rank, by request; `fail`: ends
    one."""

    def __init__(self, cache: str, pool: PagedPool, contexts: int = 1) -> None:
        self.cache, self.pool, self.contexts = cache, pool, contexts
        self.sessions: Mapping[int, Session] = {}
        self.fail: Callable[[Session, BaseException], None] = lambda session, error: None
        self.waiting: dict[int, list[Waker]] = {}  # request -> what goes on when its turn has come
        self.out_bytes = self.in_bytes = 0  # moved since the start
        self._wants: dict[int, int] = {}  # request -> pages that it is to hold once its call has those it lacks
        self._guest: Session | None = None  # may call although it waits
        self._changes = 0  # of the line
        self._looked = (-1, -1)  # pages that had been given back, and changes of the line, when nobody could go on
        self._told = -TELL_S

    # ------------------------------------------------------------------------------------------------------------ callers

    def holds_up(self, session: Session) -> bool:
        """Whether the request must not begin a call now; then it is to `wait`. Asked while somebody is waiting."""
        return session.request >= min(self.waiting)

    def away(self, session: Session) -> bool:
        """Whether pages of the request may be on the host. Asked while somebody is waiting."""
        return session.request in self.waiting and session is not self._guest

    def wait(self, session: Session, wake: Waker) -> None:
        """Call `wake` when the request's turn has come."""
        self._line_up(session).append(wake)
        self._changes += 1

    @contextmanager
    def asking(self, session: Session, force: bool = False) -> Iterator[None]:
        """Inside, a context of the request that lacks pages takes them from younger ones; `force`: from any other.

        Raises OutOfPages if the request is away, or `force` cannot bring it back.
        """
        if self.waiting and self.away(session) and not (force and self._bring(session, force)):
            raise OutOfPages(self._lacks(session), self.pool)

        def ask(wanted: int) -> bool:
            if self._make_room(session, wanted, force):
                return True
            if not force:
                self._wants[session.request] = wanted + len(self._held(session))
            return False

        before = self.pool.ask, self._guest
        self.pool.ask, self._guest = ask, session
        try:
            yield
            if self._wants.pop(session.request, None) is not None:
                self._changes += 1
        finally:
            self.pool.ask, self._guest = before

    def turn(self) -> None:
        """Let go on, from the oldest, whoever finds room. Called when pages may have become free, and somebody is waiting."""
        if self._looked == (self.pool.given, self._changes):
            return  # what the younger requests hold and what is free is no more than it was
        promised = 0  # pages that those who go on are about to take
        while self.waiting:
            request = min(self.waiting)
            session = self.sessions.get(request)
            if session is None:
                self.forget(request)
            elif self._bring(session, spare=promised):
                wakers = self.waiting[request]
                promised += self._lacks(session)
                self.forget(request)
                for wake in wakers:
                    wake()
            elif promised:
                return
            elif any(other.request < request and self._held(other) for other in self.sessions.values()):
                self._looked = (self.pool.given, self._changes)
                return
            else:
                error = OutOfPages(self._lacks(session), self.pool)
                self.forget(request)
                self.fail(session, error)

    def prepare(self, sessions: Iterable[Session]) -> None:
        """Before an iteration that adds an entry to contexts of these requests: free the pages that it begins, for the oldest first."""
        due = 0
        for session in sorted(sessions, key=lambda session: session.request):
            due += sum(context.pool is self.pool and context.lacks_page() for context in session.contexts.values())
            if due > self.pool.free_pages and not self._make_room(session, due, force=False):
                return

    def forget(self, request: int) -> None:
        """The request waits no more, or is over."""
        self._changes += 1
        self.waiting.pop(request, None)
        self._wants.pop(request, None)

    def gauges(self) -> dict[str, float]:
        """Requests that wait, bytes on the host, and bytes moved since the start."""
        return {
            "swap_waiting": float(len(self.waiting)),
            "swap_bytes": float(self.pool.host.used * self.pool.page_bytes),
            "swap_out_bytes": float(self.out_bytes),
            "swap_in_bytes": float(self.in_bytes),
        }

    # -------------------------------------------------------------------------------------------------------------- pages

    def _held(self, session: Session) -> dict[int, list[tuple[Context, int]]]:
        """The request's pages of this pool, and where in its contexts each of them is: forks share pages."""
        found: dict[int, list[tuple[Context, int]]] = {}
        for context in session.contexts.values():
            if context.pool is self.pool:
                for index, page in enumerate(context.pages):
                    found.setdefault(page, []).append((context, index))
        return found

    def _lacks(self, session: Session) -> int:
        """Pages that the request's call needs beside those it holds."""
        wanted = self._wants.get(session.request)
        return 0 if wanted is None else max(0, wanted - len(self._held(session)))

    def _make_room(self, session: Session, wanted: int, force: bool) -> bool:
        """Free pages for a request until `wanted` are free: those of the youngest others first, of younger ones only without `force`."""
        for request in sorted(self.sessions, reverse=True):
            if self.pool.free_pages >= wanted or (request < session.request and not force):
                break
            if request != session.request and not self._take_from(self.sessions[request], wanted):
                break
        return self.pool.free_pages >= wanted

    def _take_from(self, victim: Session, wanted: int) -> bool:
        """Move pages of a request to the host until `wanted` are free, the last ones first. False once the host is full.

        A page that somebody else holds too stays.
        """
        moved = 0
        room = True
        for page, holders in reversed(self._held(victim).items()):
            if self.pool.free_pages >= wanted:
                break
            if page < self.pool.total_pages and self.pool.refs(page) == len(holders):
                number = self.pool.swap_out(page)
                if number is None:
                    room = False
                    break
                self._put(victim, holders, number)
                moved += 1
        if moved:
            self._line_up(victim)
            self.out_bytes += moved * self.pool.page_bytes
        return room

    def _bring(self, session: Session, force: bool = False, spare: int = 0) -> bool:
        """Move the request's pages back, and have free what its call lacks and `spare` more. False if there is no room."""
        lacks = self._lacks(session) + spare
        away = [(page, held) for page, held in self._held(session).items() if page >= self.pool.total_pages]
        if not force and len(away) + lacks > self.pool.free_pages + self._younger(session):
            return False
        while away:
            self._make_room(session, len(away) + lacks, force)
            if not self.pool.free_pages:
                return False
            while away and self.pool.free_pages:
                page, holders = away.pop(0)
                context, index = holders[0]
                before = context.pages[index - 1] + 1 if index else None
                self._put(session, holders, self.pool.swap_in(page, before))
                self.in_bytes += self.pool.page_bytes
        return self._make_room(session, lacks, force)

    def _younger(self, session: Session) -> int:
        """Pages of the pool that younger requests hold."""
        others = (other for other in self.sessions.values() if other.request > session.request)
        return sum(page < self.pool.total_pages for other in others for page in self._held(other))

    @staticmethod
    def _put(session: Session, holders: list[tuple[Context, int]], page: int) -> None:
        for context, index in holders:
            context.pages[index] = page
        session.moved += 1

    def _line_up(self, session: Session) -> list[Waker]:
        if session.request not in self.waiting:
            self._changes += 1
            log.info("request %d waits for pages of KV cache `%s`", session.request, self.cache)
            if time.monotonic() >= self._told + TELL_S:
                self._told = time.monotonic()
                log.warning(
                    "the KV cache `%s` is full: the youngest requests wait, their pages on the host", self.cache
                )
        return self.waiting.setdefault(session.request, [])


class Swaps:
    """The waiting lines of a rank, and which of them a walk may have to wait in."""

    def __init__(
        self,
        linked: Linked,
        swaps: Mapping[str, Swap],
        sessions: Mapping[int, Session],
        fail: Callable[[Session, BaseException], None],
    ) -> None:
        """swaps: by cache; `sessions` and `fail`: see `Swap`."""
        self._all = tuple(swaps.values())
        caches = {context.name: context.cache for context in linked.contexts}
        self._of_walk = {
            walk.name: tuple(
                {caches[name]: swaps[caches[name]] for name in walk.contexts if caches[name] in swaps}.values()
            )
            for walk in linked.walks
        }
        for swap in self._all:
            swap.sessions, swap.fail = sessions, fail

    def pages(self) -> dict[str, int]:
        """cache -> pages that may lie on the host."""
        return {swap.cache: swap.pool.swap for swap in self._all}

    def full(self) -> bool:
        """Whether requests wait for pages of a pool."""
        return any(swap.waiting for swap in self._all)

    def over(self, request: int) -> None:
        """The request is over, and all that it held was given back."""
        for swap in self._all:
            swap.forget(request)
        self.turn()

    def turn(self) -> None:
        """Let go on whoever finds pages now."""
        for swap in self._all:
            if swap.waiting:
                swap.turn()

    def of_walk(self, run: WalkRun) -> tuple[Swap, ...]:
        """The lines of the pools that the walk's contexts are on."""
        return self._of_walk.get(run.name, ())

    def held_up(self, run: WalkRun) -> Swap | None:
        """The line that keeps a walk from beginning a call on its contexts; None if it may begin it."""
        for swap in self.of_walk(run):
            if swap.waiting and swap.holds_up(run.session):
                return swap
        return None

    @contextmanager
    def asking(self, run: WalkRun) -> Iterator[None]:
        """Inside, contexts of the walk take pages from younger requests where a pool has too few. Raises OutOfPages."""
        with ExitStack() as stack:
            for swap in self.of_walk(run):
                stack.enter_context(swap.asking(run.session))
            yield

    def of(self, pool: PagedPool) -> Swap:
        """The line of a pool of this rank."""
        return next(swap for swap in self._all if swap.pool is pool)
