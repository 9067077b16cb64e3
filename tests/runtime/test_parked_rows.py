"""A row of a region's loop on the host that waits for credit of a stream and for pages in turn."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mstarc_runtime.worker.batch import Row
from mstarc_runtime.worker.regions import RegionLoop


class _Rank:
    """What a loop asks of its rank: one stream that has `credit` or not, one pool that may be `full`."""

    def __init__(self) -> None:
        self.program = SimpleNamespace(SENDS={"w_l": {"s": 1}}, RAGGED=frozenset())
        self.swaps = self.scheduler = self
        self.pool, self.contexts = SimpleNamespace(free_pages=8), 1
        self.credit, self.full = False, False
        self.wakers: list[Callable[[], None]] = []  # of the stream
        self.turns: list[Callable[[], None]] = []  # of those who wait for pages
        self.woken: list[RegionLoop] = []
        self.came_back: list[tuple[Row, Any]] = []

    @property
    def waiting(self) -> bool:
        return self.full

    def of_walk(self, run: Any) -> tuple[Any, ...]:
        return (self,)

    def held_up(self, run: Any) -> Any:
        return self if self.full else None

    def wait(self, session: Any, wake: Callable[[], None]) -> None:
        self.turns.append(wake)

    def stream_out(self, session: Any, stream: str, scope: int) -> Any:
        return self

    def room(self, items: int) -> bool:
        return self.credit

    def join_host(self, row: Row, carry: Any) -> None:
        self.came_back.append((row, carry))

    def ready(self, loop: RegionLoop) -> None:
        self.woken.append(loop)


def test_credit_wakes_the_loop_to_which_a_row_came_back() -> None:
    rank: Any = _Rank()
    run: Any = SimpleNamespace(alive=True, session=None, scope=0, waiting="")
    row = Row(run, SimpleNamespace(label="l", carry=(), fixed=(), phase=lambda at: (3, None)))  # type: ignore[arg-type]
    left, entered = RegionLoop(rank, "w_l", 4), RegionLoop(rank, "w_l", 4)
    left.join(row, ())
    left.turn()
    assert run.waiting == "credit of stream s" and not left.has_work()
    rank.full = True
    left.turn()
    assert run.waiting == "pages for loop l" and left.empty()
    rank.full = False
    for wake in rank.turns:
        wake()
    for came in rank.came_back:
        entered.join(*came)  # that of before was empty, and is gone
    entered.turn()
    assert run.waiting == "credit of stream s" and not entered.has_work()
    rank.credit = True
    for wake in rank.wakers:
        wake()
    assert entered in rank.woken and entered.has_work()
