"""Stream policies: how the items of one stream of one request become chunks. Pure Python; compiler and runtime share it.

Takes items one by one, then the end; gives chunks. `Chunker` is the run-time semantics. The functions below it are closed
forms of the same for N items in all: they are what the compiler's stream rules print, and a brute-force test holds both together.

A chunk never depends on *when* the end is learned: a full chunk is due as soon as its last item is there, and a tail is due
at the end iff it holds an item that no chunk held before. Items kept only as context are not data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Generic, Literal, TypeAlias, TypeVar

Item = TypeVar("Item")
AtEnd: TypeAlias = Literal["", "drop", "partial", "pad:zero", "pad:repeat"]
AT_END: tuple[AtEnd, ...] = ("", "drop", "partial", "pad:zero", "pad:repeat")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Chunks of `size` items, none shared."""

    size: int

    def __post_init__(self) -> None:
        _require(self.size >= 1, f"fixed({self.size}): size is at least 1")


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Chunks of `size` items, each `stride` items after the one before."""

    size: int
    stride: int

    def __post_init__(self) -> None:
        ok = 1 <= self.stride <= self.size
        _require(ok, f"sliding_window({self.size}, {self.stride}): 1 <= stride <= size")


@dataclass(frozen=True, slots=True)
class LeftContext:
    """`chunk` new items after the last `left` items of what came before; the first chunk has no context."""

    chunk: int
    left: int

    def __post_init__(self) -> None:
        ok = self.chunk >= 1 and 0 <= self.left <= self.chunk
        _require(ok, f"left_context({self.chunk}, {self.left}): chunk >= 1 and 0 <= left <= chunk")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Chunks that end at an item the caller marks as a cut, or at `max` items."""

    max: int

    def __post_init__(self) -> None:
        _require(self.max >= 1, f"phrase({self.max}): max is at least 1")


Policy: TypeAlias = Fixed | SlidingWindow | LeftContext | Phrase


def _require(ok: bool, text: str) -> None:
    if not ok:
        raise ValueError(text)


def policy_of(name: str, args: Mapping[str, Any]) -> Policy:
    """The policy named as in the language, from its arguments by name (`cut` of a phrase is not used here).

    Raises ValueError for an unknown name, a missing argument, or one that is out of range.
    """
    needed = {
        "fixed": ("size",),
        "sliding_window": ("size", "stride"),
        "left_context": ("chunk", "left"),
        "phrase": ("max",),
    }
    if name not in needed:
        raise ValueError(f"unknown stream policy `{name}`")
    missing = [key for key in needed[name] if key not in args]
    if missing:
        raise ValueError(f"stream policy `{name}` needs `{missing[0]}`")
    numbers = [int(args[key]) for key in needed[name]]
    if name == "fixed":
        return Fixed(numbers[0])
    if name == "sliding_window":
        return SlidingWindow(numbers[0], numbers[1])
    if name == "left_context":
        return LeftContext(numbers[0], numbers[1])
    return Phrase(numbers[0])


@dataclass(frozen=True, slots=True)
class ChunkInfo(Generic[Item]):
    """One chunk. Items `start .. start + count` of the stream, then `padded` fillers; the last `new` real items are new.

    `items` holds count + padded items. `tail`: an incomplete chunk, made at the end. `index` counts from 0.
    """

    items: tuple[Item, ...]
    start: int
    count: int
    new: int
    index: int
    first: bool
    tail: bool
    padded: int = 0


def zero_of(item: Any) -> Any:
    """A filler of the item's kind by arithmetic: right for numbers and for arrays of finite numbers, whose dtype it keeps."""
    zero = item * 0
    dtype = getattr(item, "dtype", None)
    if dtype is None or zero.dtype == dtype:
        return zero
    return zero.astype(dtype) if hasattr(zero, "astype") else zero.to(dtype)


class Chunker(Generic[Item]):
    """The chunks of one stream of one request, in order. Holds the items that are still needed; never looks into one.

    `zero` makes the filler of `pad:zero` from an item.
    """

    def __init__(self, policy: Policy, at_end: str = "", zero: Callable[[Item], Item] = zero_of) -> None:
        if at_end not in AT_END:
            raise ValueError(f"unknown end rule `{at_end}`")
        if isinstance(policy, Phrase) and at_end.startswith("pad"):
            raise ValueError("a phrase has no length to be padded to")
        self.policy = policy
        self.at_end = at_end
        self.single = policy == Fixed(1)  # the item itself is the chunk
        self._zero = zero
        self._items: deque[Item] = deque()
        self._cuts: deque[int] = deque()  # phrase: how many items into the stream each due chunk ends
        self._start = 0  # position in the stream of the first held item
        self._fresh = 0  # position of the first item that no chunk has held
        self._index = 0
        self._over = False

    @property
    def held(self) -> int:
        """Items that count against the capacity: not yet taken, or kept as context."""
        return len(self._items)

    @property
    def received(self) -> int:
        """Items pushed so far."""
        return self._start + len(self._items)

    def push(self, item: Item, cut: bool = False) -> None:
        """One more item. `cut`: a phrase ends with it."""
        if self._over:
            raise RuntimeError("an item came after the end of the stream")
        self._items.append(item)
        if isinstance(self.policy, Phrase):
            begun = self.received - (self._cuts[-1] if self._cuts else self._start)
            if cut or begun == self.policy.max:
                self._cuts.append(self.received)

    def end(self) -> None:
        """There is no further item. Releases what no chunk will hold."""
        self._over = True
        if not self.ready():
            self._release(len(self._items))

    def ready(self) -> bool:
        """Whether `take` gives a chunk now."""
        return self._full() > 0 or self._tail_due()

    def ended(self) -> bool:
        """Whether every chunk has been taken and no further one can come."""
        return self._over and not self.ready()

    def take(self) -> ChunkInfo[Item]:
        """The next chunk, and drop the items that no later chunk needs. Raises RuntimeError if there is none."""
        count = self._full()
        tail = count == 0
        if tail and not self._tail_due():
            raise RuntimeError("no chunk is due")
        if tail:
            count = len(self._items)
        items = tuple(self._items[i] for i in range(count))
        padding = self._padding(items) if tail else ()
        chunk = ChunkInfo(
            items + padding,
            self._start,
            count,
            self._start + count - self._fresh,
            self._index,
            self._index == 0,
            tail,
            len(padding),
        )
        self._fresh = self._start + count
        self._release(count if tail else count - self._kept())
        self._index += 1
        if isinstance(self.policy, Phrase) and self._cuts:
            self._cuts.popleft()
        if self.ended():
            self._release(len(self._items))
        return chunk

    def _full(self) -> int:
        """Items of the full chunk that is due; 0 if none is."""
        if isinstance(self.policy, Phrase):
            return self._cuts[0] - self._start if self._cuts else 0
        need = peek(self.policy, self._index)
        return need if len(self._items) >= need else 0

    def _tail_due(self) -> bool:
        return self._over and self.at_end not in ("", "drop") and self.received > self._fresh

    def _kept(self) -> int:
        """Items that a full chunk leaves behind as context."""
        if isinstance(self.policy, SlidingWindow):
            return self.policy.size - self.policy.stride
        return self.policy.left if isinstance(self.policy, LeftContext) else 0

    def _padding(self, items: tuple[Item, ...]) -> tuple[Item, ...]:
        if not self.at_end.startswith("pad") or isinstance(self.policy, Phrase):
            return ()
        filler = items[-1] if self.at_end == "pad:repeat" else self._zero(items[-1])
        return (filler,) * (peek(self.policy, self._index) - len(items))

    def _release(self, count: int) -> None:
        for _ in range(count):
            self._items.popleft()
        self._start += count


# -------------------------------------------------------------------------------------------------------- closed forms


def peek(policy: Policy, index: int) -> int:
    """Items of full chunk `index` (of a phrase: the most)."""
    match policy:
        case Fixed(size) | SlidingWindow(size, _):
            return size
        case LeftContext(chunk, left):
            return chunk if index == 0 else chunk + left
        case Phrase(most):
            return most


def pop(policy: Policy) -> int:
    """New items per chunk after the first (of a phrase: the most)."""
    match policy:
        case Fixed(size):
            return size
        case SlidingWindow(_, stride):
            return stride
        case LeftContext(chunk, _):
            return chunk
        case Phrase(most):
            return most


def overlap(policy: Policy) -> int:
    """Items of a chunk that the chunk before it held too."""
    match policy:
        case SlidingWindow(size, stride):
            return size - stride
        case LeftContext(_, left):
            return left
        case _:
            return 0


def firings(policy: Fixed | SlidingWindow | LeftContext, items: int) -> int:
    """F(N): full chunks of a stream of `items` items."""
    match policy:
        case Fixed(size) | LeftContext(size, _):
            return items // size
        case SlidingWindow(size, stride):
            return 0 if items < size else (items - size) // stride + 1


def fresh_tail(policy: Fixed | SlidingWindow | LeftContext, items: int) -> int:
    """Items that no full chunk held: a tail is due iff this is positive."""
    match policy:
        case Fixed(size) | LeftContext(size, _):
            return items % size
        case SlidingWindow(size, stride):
            full = firings(policy, items)
            return items if full == 0 else items - size - (full - 1) * stride


def chunks(policy: Fixed | SlidingWindow | LeftContext, items: int, at_end: str) -> int:
    """All chunks of a stream of `items` items, the tail included."""
    tail = at_end not in ("", "drop") and fresh_tail(policy, items) > 0
    return firings(policy, items) + int(tail)


def tail_possible(policy: Policy) -> bool:
    """Whether some number of items leaves a fresh tail."""
    return policy not in (Fixed(1), SlidingWindow(1, 1), LeftContext(1, 0), LeftContext(1, 1), Phrase(1))


def least_capacity(policy: Policy, burst: int = 1) -> int:
    """The least capacity with which a producer that pushes `burst` items at once never blocks for ever.

    Lints, section 2: P + K - gcd(P, K), P + g * ceil(W / g) - g with g = gcd(P, S), and P + C + L - gcd(P, C).
    """
    match policy:
        case Fixed(size):
            return burst + size - gcd(burst, size)
        case SlidingWindow(size, stride):
            unit = gcd(burst, stride)
            return burst + unit * -(-size // unit) - unit
        case LeftContext(chunk, left):
            return burst + chunk + left - gcd(burst, chunk)
        case Phrase(most):
            return burst + most - 1


def capacity_sum(policy: Policy, burst: int = 1) -> str:
    """`least_capacity` as a sum that a reader can redo."""
    total = least_capacity(policy, burst)
    match policy:
        case Fixed(size):
            return f"{total} = {burst} + {size} - gcd({burst}, {size})"
        case SlidingWindow(size, stride):
            unit = gcd(burst, stride)
            if unit == 1:
                return f"{total} = {burst} + {size} - 1"
            return f"{total} = {burst} + {unit} * ceil({size} / {unit}) - {unit}"
        case LeftContext(chunk, left):
            return f"{total} = {burst} + {chunk} + {left} - gcd({burst}, {chunk})"
        case Phrase(most):
            return f"{total} = {burst} + {most} - 1"


def aligned(a: Policy, b: Policy) -> bool:
    """Whether both give equally many full chunks, and equally many new items in each, for every number of items."""
    if isinstance(a, Phrase) or isinstance(b, Phrase):
        return a == b == Phrase(1)
    return (_first_new(a), pop(a)) == (_first_new(b), pop(b))


def _first_new(policy: Fixed | SlidingWindow | LeftContext) -> int:
    """New items of the first full chunk; each later one brings `pop` of them."""
    return peek(policy, 0)
