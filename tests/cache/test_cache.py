"""Pages and contexts: capacity, reference counts, copy-on-write, rollback, and a model-based search for leaks."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, OutOfPages, PagedPool, PoolError, scattered
from mstarc_runtime.errors import LoadError

SMALL = Geometry(2, 2, 1, 2)


def test_capacity_from_bytes() -> None:
    geometry = Geometry(3, 4, 2, 8)
    assert geometry.entry_bytes() == 3 * 2 * 2 * 8 * 4
    pool = PagedPool.from_bytes(geometry, 7 * 16 * geometry.entry_bytes() + 5)
    assert (pool.total_pages, pool.free_pages, pool.page_size) == (7, 7, 16)
    assert pool.data.numel() * 4 == 7 * 16 * geometry.entry_bytes()
    with pytest.raises(LoadError, match="hold no KV page"):
        PagedPool.from_bytes(geometry, 16 * geometry.entry_bytes() - 1)
    with pytest.raises(LoadError, match="multiple of kv_heads"):
        Geometry(1, 3, 2, 4)


def test_pages_are_counted_references() -> None:
    pool = PagedPool(SMALL, 3, poison=True)
    page = pool.alloc()
    pool.page(page).fill_(7)
    pool.share(page)
    pool.free(page)
    assert pool.refs(page) == 1 and pool.page(page).eq(7).all()
    pool.free(page)
    assert pool.free_pages == 3 and pool.page(page).isnan().all()
    with pytest.raises(PoolError, match="freed but nobody holds it"):
        pool.free(page)
    with pytest.raises(PoolError, match="shared but nobody holds it"):
        pool.share(page)
    with pytest.raises(PoolError, match="used after"):
        pool.check_held([page])
    assert pool.page(pool.alloc(prefer=page)).eq(0).all()  # handed out clean


def test_alloc_takes_the_preferred_page_and_each_page_once() -> None:
    pool = PagedPool(SMALL, 6)
    assert pool.alloc(prefer=3) == 3
    taken = {pool.alloc(prefer=3) for _ in range(5)}
    assert taken == {0, 1, 2, 4, 5}
    with pytest.raises(OutOfPages, match="0 of 6 are free"):
        pool.alloc()


@pytest.mark.parametrize("count", [1, 2, 5, 8, 13])
def test_scattered_is_a_permutation(count: int) -> None:
    assert sorted(scattered(count)) == list(range(count))


def test_contexts_that_grow_in_turn_stay_in_runs() -> None:
    pool = PagedPool(SMALL, 64, page_size=4)
    contexts = [Context(pool) for _ in range(4)]
    for _ in range(40):
        for context in contexts:
            context.reserve(1)
            context.extend(1, 1)
    assert all(context.run_start(40) is not None for context in contexts)


def test_an_empty_context_is_legal() -> None:
    pool = PagedPool(SMALL, 2)
    context = Context(pool)
    fork = context.fork()
    fork.drop()
    assert (context.length, context.position, context.ids.tolist(), context.run_start(0)) == (0, 0, [], 0)
    assert pool.free_pages == 2


def test_the_last_page_is_copied_on_the_first_write_of_either_side() -> None:
    pool = PagedPool(SMALL, 8, page_size=4)
    source = Context(pool)
    source.reserve(6)
    source.extend(6, 6)
    fork = source.fork()
    assert fork.pages == source.pages and pool.free_pages == 6
    source.reserve(1)
    assert fork.pages[0] == source.pages[0] and fork.pages[1] != source.pages[1] and pool.free_pages == 5
    before = list(fork.pages)
    fork.reserve(1)  # alone on its page now: no second copy
    assert fork.pages == before and pool.free_pages == 5
    source.drop()
    fork.drop()
    assert pool.free_pages == 8


def test_reserve_is_all_or_nothing() -> None:
    pool = PagedPool(SMALL, 3, page_size=4)
    context = Context(pool)
    context.reserve(5)
    context.extend(5, 5)
    fork = context.fork()
    with pytest.raises(OutOfPages, match="2 pages wanted, 1 of 3"):
        fork.reserve(4)  # one to copy the last page, one to grow
    assert fork.pages == context.pages and pool.free_pages == 1
    with pytest.raises(ValueError, match="do not fit"):
        context.extend(4, 4)
    assert context.length == 5


def test_what_a_failed_write_left_behind_is_cleaned() -> None:
    pool = PagedPool(SMALL, 4, page_size=4)
    context = Context(pool)
    context.reserve(11)
    context.extend(5, 3, torch.arange(5))
    for page in context.pages:
        pool.page(page).fill_(float("nan"))
    context.release_reserved()
    assert (context.length, context.position, len(context.pages), pool.free_pages) == (5, 3, 2, 2)
    context.clean_tail()
    first, second = (pool.page(page) for page in context.pages)
    assert second[:, :, 1:].eq(0).all() and first.isnan().all() and second[:, :, :1].isnan().all()


def test_ids_leave_out_entries_without_one() -> None:
    pool = PagedPool(SMALL, 40)
    context = Context(pool)
    context.reserve(300)
    context.extend(2, 2, torch.tensor([5, 6]))
    context.extend(100, 1)
    fork = context.fork()
    context.extend(1, 1, torch.tensor([9]))
    assert context.ids.tolist() == [5, 6, 9] and fork.ids.tolist() == [5, 6]


class Model:
    """Contexts whose entries are numbers, and the lists they should hold."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.pool = PagedPool(SMALL, pages, page_size=page_size, poison=True)
        self.contexts: list[Context] = [Context(self.pool)]
        self.lists: list[list[int]] = [[]]
        self.next = 1

    def write(self, which: int, count: int) -> None:
        context, wanted = self.contexts[which], self.lists[which]
        before = (list(context.pages), self.pool.free_pages)
        try:
            context.reserve(count)
        except OutOfPages:
            assert (list(context.pages), self.pool.free_pages) == before
            return
        new = list(range(self.next, self.next + count))
        slots = context.slots(context.length, context.length + count)
        self.pool.data[:, :, slots] = torch.tensor(new, dtype=torch.float32)[:, None]
        context.extend(count, count, torch.tensor(new))
        self.next += count
        wanted += new

    def check(self) -> None:
        references: dict[int, int] = {}
        for context, wanted in zip(self.contexts, self.lists, strict=True):
            assert context.length == len(wanted)
            slots = context.slots(0, context.length)
            assert self.pool.data[1, 1, slots, 0].tolist() == wanted
            assert context.ids.tolist() == wanted
            start = context.run_start(context.length)
            assert (start is not None) == (slots == list(range(slots[0], slots[0] + len(slots))) if slots else True)
            for page in context.pages:
                references[page] = references.get(page, 0) + 1
        assert [self.pool.refs(page) for page in range(self.pool.total_pages)] == [
            references.get(page, 0) for page in range(self.pool.total_pages)
        ]
        assert self.pool.free_pages == self.pool.total_pages - len(references)


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "fork", "drop", "reserve", "release"]),
        st.integers(0, 9),
        st.integers(0, 11),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(1, 14), st.integers(1, 5))
def test_no_leak_and_no_alias_in_any_history(actions: list[tuple[str, int, int]], pages: int, page_size: int) -> None:
    model = Model(pages, page_size)
    for action, who, amount in actions:
        which = who % len(model.contexts)
        context, wanted = model.contexts[which], model.lists[which]
        if action == "write":
            model.write(which, amount)
        elif action == "fork" and len(model.contexts) < 6:
            model.contexts.append(context.fork())
            model.lists.append(list(wanted))
        elif action == "drop":
            context.drop()
            wanted.clear()
        elif action == "reserve":
            with contextlib.suppress(OutOfPages):
                context.reserve(amount)
        elif action == "release":
            context.release_reserved()
        model.check()
    for context in model.contexts:
        context.drop()
    assert model.pool.free_pages == pages
