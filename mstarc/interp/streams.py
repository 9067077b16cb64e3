"""One stream of one running request: items in, chunks out, credit, and its two ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mstarc_runtime.abi.chunks import Chunker


@dataclass(frozen=True, slots=True)
class ChunkHandle:
    """What a consumer binds: `value` is the item (`fixed(1)`) or the items stacked on a new dim 0."""

    value: Any
    new: int
    index: int
    first: bool
    tail: bool


@dataclass(slots=True)
class LiveStream:
    """A stream both of whose ends are arms of the running `together`.

    `cuts` tells whether a phrase ends with an item. Once the consumer has ended, items are discarded and always have credit.
    """

    name: str
    producer: str
    consumer: str
    capacity: int
    chunker: Chunker[Any]
    stack: Callable[[tuple[Any, ...]], Any]
    cuts: Callable[[Any], bool]
    ended: bool = False
    consumed: bool = False
    discarded: int = field(default=0)

    def has_credit(self) -> bool:
        return self.consumed or self.chunker.held < self.capacity

    def send(self, item: Any) -> None:
        """Append one item; the caller waited for credit."""
        if self.consumed:
            self.discarded += 1
        else:
            self.chunker.push(item, self.cuts(item))

    def can_take(self) -> bool:
        return self.chunker.ready()

    def is_over(self) -> bool:
        """Whether every chunk was taken and none can come."""
        return self.chunker.ended()

    def take(self) -> ChunkHandle:
        chunk = self.chunker.take()
        value = chunk.items[0] if self.chunker.single else self.stack(chunk.items)
        return ChunkHandle(value, chunk.new, chunk.index, chunk.first, chunk.tail)

    def close_producer(self) -> None:
        """The producing arm can reach no further `send`: the stream ends, once."""
        if not self.ended:
            self.ended = True
            self.chunker.end()

    def close_consumer(self) -> None:
        """The consuming arm can take no further chunk: what is left and what comes is discarded."""
        if not self.consumed:
            self.consumed = True
            self.discarded += self.chunker.held
