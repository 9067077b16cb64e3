"""The two ends of a stream of one request on a rank. Chunk arithmetic is `abi.chunks`; here are items, credit and waiting."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.messages import Credit, EndOfStream, Items
from mstarc_runtime.abi.values import WireError

if TYPE_CHECKING:
    from mstarc_runtime.worker.rank import Rank
    from mstarc_runtime.worker.session import Session


@dataclass(frozen=True, slots=True)
class View:
    """Implements `mstarc_runtime.program.ChunkView`."""

    value: Any
    new: int
    index: int
    first: bool
    tail: bool


class StreamOut:
    """Producer's end. Room exists while fewer than `capacity` items are unconsumed, or endlessly once it is a sink."""

    def __init__(self, rank: Rank, session: Session, stream: str, scope: int, capacity: int, sink_rank: int) -> None:
        self.rank = rank
        self.session = session
        self.stream = stream
        self.scope = scope
        self.capacity = capacity
        self.sink_rank = sink_rank
        self.sent = 0
        self.consumed = 0
        self.closed = False
        self.discards = False
        self.wakers: deque[Callable[[], None]] = deque()
        self._unsent: list[Any] = []

    def room(self, items: int = 1) -> bool:
        """Whether `items` more can be pushed now."""
        return self.discards or self.sent - self.consumed + items <= self.capacity

    def push(self, item: Any, there: bool = False) -> None:
        """Append one item; the caller made sure of room. `there`: its value is known to be on the device already."""
        if self.discards or self.closed:
            return
        self.sent += 1
        if self.sink_rank == self.rank.rank:
            self.session_in().accept(item, there)
            return
        if not self._unsent:
            self.rank.flush_later(self.flush)
        self._unsent.append(self.rank.arrays.to_host(item))

    def flush(self) -> None:
        """Hand pending items to the transport."""
        if self._unsent:
            first = self.sent - len(self._unsent)
            items = Items(self.session.request, self.stream, self.scope, first, self._unsent)
            self._unsent = []
            try:
                self.rank.port.send(self.sink_rank, items)
            except WireError as error:
                self.rank.fail_session(self.session, error)

    def close(self) -> None:
        """No further item. The end is a message of its own, after the last item, once."""
        if self.closed:
            return
        self.closed = True
        if self.discards:
            return  # nobody takes, so nobody waits for the end
        if self.sink_rank == self.rank.rank:
            self.session_in().end(self.sent)
            return
        self.flush()
        self.rank.port.send(self.sink_rank, EndOfStream(self.session.request, self.stream, self.scope, self.sent))

    def discard(self) -> None:
        """The consumer has ended or does not run: every further item is dropped, and whoever waits goes on."""
        self.discards = True
        self._unsent.clear()
        self.wake()

    def credit(self, consumed: int) -> None:
        """The consumer has released `consumed` items in all."""
        if consumed > self.consumed:
            self.consumed = consumed
            self.wake()

    def wake(self) -> None:
        """Let everything that waits for credit look again."""
        waiting, self.wakers = self.wakers, deque()
        for waker in waiting:
            waker()

    def session_in(self) -> StreamIn:
        return self.rank.stream_in(self.session, self.stream, self.scope)


class StreamIn:
    """Consumer's end: items, the policy's chunker, and whoever waits for a chunk."""

    def __init__(
        self,
        rank: Rank,
        session: Session,
        stream: str,
        scope: int,
        chunker: Any,
        cut: Any,
        source: int,
        taker: str,
    ) -> None:
        self.rank = rank
        self.session = session
        self.stream = stream
        self.scope = scope
        self.chunker = chunker
        self.cut = cut
        self.cut_state: Any = None
        self.source = source
        self.taker = taker  # the walk that takes
        self.received = 0
        self.ended = False
        self.wakers: deque[Callable[[], None]] = deque()
        self._credited = 0
        self._mark: Any = None  # what the last items wait for

    def accept(self, item: Any, there: bool = False) -> None:
        """One more item, in order. `there`: the queue of the walk that takes it need not wait for its value."""
        try:
            self._hand_over(item, there)
            self._accept(item)
        except (
            Exception
        ) as error:  # the author's `cut`, called in the producer's turn: the fault is this request's alone
            self.rank.fail_session(self.session, error)

    def _hand_over(self, item: Any, there: bool) -> None:
        """The item was made in the main queue, its taker may work in the one beside."""
        queues = self.rank.queues
        if queues is not None and self.taker in self.rank.consumers and getattr(item, "is_cuda", False):
            queues.lend(item, side=True)
            if not there:
                self._mark = queues.mark()

    def _accept(self, item: Any) -> None:
        self.received += 1
        self.chunker.push(item, cut=self._cuts(item))
        if self.chunker.ready():
            self.wake()

    def _cuts(self, item: Any) -> bool:
        """Whether a phrase ends with this item."""
        if self.cut is None:
            return False
        self.cut_state, here = self.cut(self.cut_state, self.rank.arrays.to_host(item).item())
        return bool(here)

    def end(self, total: int) -> None:
        """The end of the stream, once; `total` items were sent."""
        if self.ended:
            return
        if total != self.received:
            raise RuntimeError(f"stream `{self.stream}`: {total} items were sent, {self.received} arrived")
        self.ended = True
        self.chunker.end()
        self.wake()

    def ready(self) -> bool:
        """Whether `take` gives a chunk or the end at once."""
        return bool(self.chunker.ready()) or self.ended

    def take(self) -> View | None:
        """The next chunk, or None at the end. Returns credit for what it released."""
        if not self.chunker.ready():
            return None
        chunk = self.chunker.take()
        if self._mark is not None:
            self.rank.queues.wait(self._mark)  # type: ignore[union-attr]
            self._mark = None
        arrays = self.rank.arrays
        value = arrays.asarray(chunk.items[0]) if self.chunker.single else arrays.stack(chunk.items)
        self._return_credit()
        return View(value, chunk.new, chunk.index, chunk.first, chunk.tail)

    def _return_credit(self) -> None:
        released = self.received - self.chunker.held
        if released == self._credited:
            return
        self._credited = released
        if self.source == self.rank.rank:
            out = self.session.outs.get((self.stream, self.scope))
            if out is not None:
                out.credit(released)
        else:
            self.rank.port.send(self.source, Credit(self.session.request, self.stream, self.scope, released))

    def wake(self) -> None:
        waiting, self.wakers = self.wakers, deque()
        for waker in waiting:
            waker()
