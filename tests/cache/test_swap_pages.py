"""Pages on the host: the same references under other numbers, in any history of forks, writes and drops; and who gives pages to whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstarc_runtime.cache import host_pages
from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.host_pages import HostPages
from mstarc_runtime.cache.pool import Geometry, OutOfPages, PagedPool, PoolError
from mstarc_runtime.worker.swap import Swap

SMALL = Geometry(2, 2, 1, 2)


def written(pool: PagedPool, values: list[int], context: Context | None = None) -> Context:
    """A context, a new one if none is given, after entries with these numbers were written to it."""
    context = context or Context(pool)
    context.reserve(len(values))
    slots = context.slots(context.length, context.length + len(values))
    pool.data[:, :, slots] = torch.tensor(values, dtype=torch.float32)[:, None]
    context.extend(len(values), len(values), torch.tensor(values))
    return context


def entries(context: Context) -> list[float]:
    """What a context holds, wherever its pages are."""
    pages = [context.pool.page(page)[1, 1, :, 0] for page in context.pages]
    found: list[float] = torch.cat([torch.empty(0), *pages])[: context.length].tolist()
    return found


def move(contexts: list[Context], page: int, target: int | None) -> None:
    assert target is not None
    for context in contexts:
        context.pages = [target if held == page else held for held in context.pages]


def test_a_page_keeps_its_references_on_the_host() -> None:
    pool = PagedPool(SMALL, 2, page_size=4, poison=True, swap=1)
    context = written(pool, [1, 2, 3])
    fork = context.fork()
    page = context.pages[0]
    move([context, fork], page, pool.swap_out(page))
    assert context.pages == fork.pages == [2] and pool.refs(2) == 2
    assert pool.free_pages == 2 and pool.refs(page) == 0 and pool.page(page).isnan().all()
    with pytest.raises(PoolError, match=r"pages \[2\] are used while they are on the host"):
        pool.check_held(context.pages)
    written(pool, [4], fork)  # the fork leaves the shared page: a copy on the device
    assert fork.pages[0] < 2 and pool.refs(2) == 1 and entries(fork) == [1, 2, 3, 4]
    move([context], 2, pool.swap_in(2))
    pool.check_held(context.pages)
    assert entries(context) == [1, 2, 3] and pool.host.used == 0
    context.drop()
    fork.drop()
    assert pool.free_pages == 2


def test_the_host_has_room_for_so_many_and_a_spare_one() -> None:
    pool = PagedPool(SMALL, 5, page_size=4, swap=2)
    context = written(pool, list(range(20)))
    moved = [pool.swap_out(page) for page in context.pages]
    assert moved == [5, 6, 7, None, None] and pool.host.used == 3
    assert PagedPool(SMALL, 1, page_size=4).swap_out(0) is None


def test_memory_of_the_host_is_taken_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pages, "BLOCK_BYTES", 2 * 4 * 4)
    room = HostPages(5, (4,), torch.float32, pinned=False)
    taken = [room.take() for _ in range(6)]
    assert taken == [0, 1, 2, 3, 4, None] and room.used == 5
    for number in range(5):
        room.page(number).fill_(number)
    assert [room.page(number)[0].item() for number in range(5)] == [0, 1, 2, 3, 4]
    room.give(3)
    assert room.take() == 3


def test_a_host_without_memory_has_room_for_what_it_gave() -> None:
    room = HostPages(5, (1 << 60,), torch.float32, pinned=False)
    assert room.take() is None and room.count == 0


# ------------------------------------------------------------------------------------------------------ who gives to whom


class Requests:
    """Requests with one context each over one pool, and the line that they wait in."""

    def __init__(self, pages: int, swap: int, *lengths: int) -> None:
        self.pool = PagedPool(SMALL, pages, page_size=4, poison=True, swap=swap)
        self.swap = Swap("kv", self.pool)
        self.sessions: dict[int, Any] = {
            number: SimpleNamespace(request=number, moved=0, contexts={"main": Context(self.pool)})
            for number in range(len(lengths))
        }
        self.swap.sessions = self.sessions
        self.failed: list[int] = []
        self.swap.fail = lambda session, error: self.failed.append(session.request)
        for number, length in enumerate(lengths):
            written(self.pool, [number] * length, self.main(number))

    def main(self, number: int) -> Context:
        found: Context = self.sessions[number].contexts["main"]
        return found

    def where(self, number: int) -> str:
        """d or h for each page."""
        return "".join("dh"[page >= self.pool.total_pages] for page in self.main(number).pages)

    def grow(self, number: int, entries: int, force: bool = False) -> None:
        with self.swap.asking(self.sessions[number], force):
            written(self.pool, [number] * entries, self.main(number))

    def end(self, number: int) -> None:
        self.main(number).drop()
        del self.sessions[number]
        self.swap.forget(number)
        self.swap.turn()


def test_the_youngest_gives_first_and_only_what_is_lacking() -> None:
    all_of = Requests(6, 6, 8, 8, 8)
    all_of.grow(0, 1)
    assert [all_of.where(n) for n in range(3)] == ["ddd", "dd", "dh"] and list(all_of.swap.waiting) == [2]
    all_of.grow(0, 7)
    assert [all_of.where(n) for n in range(3)] == ["dddd", "dd", "hh"]
    all_of.grow(0, 1)
    assert [all_of.where(n) for n in range(3)] == ["ddddd", "dh", "hh"] and sorted(all_of.swap.waiting) == [1, 2]
    assert all(entries(all_of.main(n)) == [n] * all_of.main(n).length for n in range(3))


def test_a_younger_one_takes_nothing_from_an_older_one_and_waits() -> None:
    all_of = Requests(4, 4, 8, 8)
    with pytest.raises(OutOfPages, match="1 pages wanted, 0 of 4 are free"):
        all_of.grow(1, 1)
    woken: list[str] = []
    all_of.swap.wait(all_of.sessions[1], lambda: woken.append("one"))
    all_of.swap.turn()
    assert woken == [] and all_of.where(0) == "dd"
    all_of.end(0)
    assert woken == ["one"] and not all_of.swap.waiting
    all_of.grow(1, 1)


def test_within_an_iteration_pages_come_from_anybody() -> None:
    all_of = Requests(4, 4, 8, 8)
    all_of.grow(1, 1, force=True)
    assert (all_of.where(0), all_of.where(1)) == ("dh", "ddd")
    all_of.swap.turn()  # the older one has its pages back at once
    assert (all_of.where(0), all_of.where(1)) == ("dd", "ddh") and list(all_of.swap.waiting) == [1]
    assert entries(all_of.main(0)) == [0] * 8 and entries(all_of.main(1)) == [1] * 9


def test_pages_for_the_next_entry_are_made_ready_for_the_oldest_first() -> None:
    all_of = Requests(6, 6, 8, 7, 7)
    all_of.swap.prepare(all_of.sessions.values())  # the next entry of the first begins a page
    assert all_of.pool.free_pages == 1 and [all_of.where(n) for n in range(3)] == ["dd", "dd", "dh"]
    all_of.grow(1, 1)
    all_of.swap.prepare([all_of.sessions[0], all_of.sessions[1]])
    assert all_of.pool.free_pages == 2 and [all_of.where(n) for n in range(3)] == ["dd", "dd", "hh"]
    all_of.swap.prepare([all_of.sessions[1], all_of.sessions[0]])
    assert all_of.pool.free_pages == 2


def test_nobody_passes_those_who_wait_and_they_go_on_in_their_order() -> None:
    all_of = Requests(6, 12, 8, 8, 8, 0)
    all_of.grow(0, 9)  # five pages: takes from 2, then from 1
    assert [all_of.where(n) for n in range(3)] == ["ddddd", "dh", "hh"]
    assert [all_of.swap.holds_up(all_of.sessions[n]) for n in range(4)] == [False, True, True, True]
    woken: list[int] = []
    for number in (2, 3, 1):
        all_of.swap.wait(all_of.sessions[number], lambda number=number: woken.append(number))  # type: ignore[misc]
    all_of.swap.turn()
    assert woken == []
    all_of.end(0)
    assert woken == [1, 2, 3] and [all_of.where(n) for n in (1, 2)] == ["dd", "dd"]


def test_what_somebody_else_holds_too_stays() -> None:
    all_of = Requests(4, 4, 8, 8)
    kept = all_of.main(1).fork()  # of no request
    with pytest.raises(OutOfPages):
        all_of.grow(0, 1)
    assert all_of.where(1) == "dd"
    kept.drop()
    all_of.grow(0, 1)
    assert all_of.where(1) == "dh"


def test_pages_change_places_when_the_host_is_full() -> None:
    """Two pools of four with four on the host: what they need at most is eight in all, and the spare page lets one after the other in."""
    all_of = Requests(4, 4, 16)
    all_of.sessions[1] = SimpleNamespace(request=1, moved=0, contexts={"main": Context(all_of.pool)})
    all_of.grow(1, 16, force=True)
    assert (all_of.where(0), all_of.where(1)) == ("hhhh", "dddd") and all_of.pool.host.used == 4
    all_of.swap.turn()
    assert (all_of.where(0), all_of.where(1)) == ("dddd", "hhhh")
    assert entries(all_of.main(0)) == [0] * 16 and entries(all_of.main(1)) == [1] * 16


def test_the_oldest_that_needs_more_than_there_is_fails_alone() -> None:
    all_of = Requests(4, 8, 8, 8)
    with pytest.raises(OutOfPages):
        all_of.grow(0, 12)
    all_of.swap.wait(all_of.sessions[0], lambda: None)
    all_of.swap.turn()
    assert all_of.failed == [0]
    all_of.end(0)
    assert all_of.failed == [0] and all_of.where(1) == "dd" and entries(all_of.main(1)) == [1] * 8


HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["grow", "grow", "force", "fork", "drop", "end", "turn"]), st.integers(0, 3), st.integers(1, 9)
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(HISTORY)
def test_no_leak_and_no_alias_in_any_history(actions: list[tuple[str, int, int]]) -> None:
    """Four requests of at most five pages, forks among them: with as many pages in all, each ends up with what it wrote."""
    all_of = Requests(5, 15, 0, 0, 0, 0)
    wrote: dict[tuple[int, str], list[int]] = {(n, "main"): [] for n in range(4)}
    number = 100
    for action, who, count in actions:
        session = all_of.sessions.get(who)
        if session is None:
            continue
        contexts = session.contexts
        if action in ("grow", "force"):
            name = "main" if count % 2 else sorted(contexts)[-1]
            most = 12 if name == "main" else 8  # with forks 3 + 2 pages
            count = min(count, most - contexts[name].length)
            waits = bool(all_of.swap.waiting) and all_of.swap.holds_up(session)
            if count < 1 or (waits and action == "grow"):
                continue
            values = list(range(number, number + count))
            try:
                with all_of.swap.asking(session, action == "force"):
                    written(all_of.pool, values, contexts[name])
            except OutOfPages:
                assert action == "grow"
                all_of.swap.wait(session, lambda: None)
                continue
            wrote[who, name] += values
            number += count
        elif action == "fork" and contexts["main"].length <= 8:
            if "fork" in contexts:
                contexts["fork"].drop()
            contexts["fork"], wrote[who, "fork"] = contexts["main"].fork(), list(wrote[who, "main"])
        elif action == "drop":
            contexts["main"].drop()
            wrote[who, "main"] = []
        elif action == "end":
            for context in contexts.values():
                context.drop()
            del all_of.sessions[who]
            all_of.swap.forget(who)
        all_of.swap.turn()
        oldest = min(all_of.sessions, default=None)
        for other in all_of.sessions.values():
            for name, context in other.contexts.items():
                assert entries(context) == wrote[other.request, name]
                assert context.ids.tolist() == wrote[other.request, name]
                if other.request == oldest:
                    all_of.pool.check_held(context.pages)
    assert all_of.failed == []
    for session in all_of.sessions.values():
        for context in session.contexts.values():
            context.drop()
    assert all_of.pool.free_pages == 5 and all_of.pool.host.used == 0
