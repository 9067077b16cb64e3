"""What a walk coroutine yields: the things it can wait for. The scheduler answers each by resuming the coroutine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mstarc_runtime.program import Absent


@dataclass(frozen=True, slots=True)
class CallWait:
    """One call of `node.op` in a walk, batched with calls of other requests."""

    op: str
    args: tuple[Any, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    only: tuple[int, ...] | None
    walk: str


@dataclass(frozen=True, slots=True)
class ParallelWait:
    """Calls of one walk that do not depend on each other; what is ABSENT is not called."""

    calls: tuple[CallWait | Absent, ...]


@dataclass(frozen=True, slots=True)
class LoopWait:
    """A region loop: `body` is run for a batch of requests until each has left; or `bodies`, one for each iteration below `bound`."""

    label: str
    body: Callable[..., tuple[Any, ...]]
    kind: str
    bound: int
    carry: tuple[Any, ...]
    fixed: tuple[Any, ...]
    bodies: Sequence[Callable[..., tuple[Any, ...]]] = ()

    def phase(self, iteration: int) -> tuple[int, Callable[..., tuple[Any, ...]]]:
        """The iteration before which the body of this one is run, and that body."""
        if iteration >= len(self.bodies):
            return self.bound, self.body
        body = self.bodies[iteration]
        ends = (i for i in range(iteration, len(self.bodies)) if self.bodies[i] != body)
        return next(ends, self.bound), body


@dataclass(frozen=True, slots=True)
class SendWait:
    """A walk sends an item and waits for room."""

    stream: str
    item: Any


@dataclass(frozen=True, slots=True)
class TakeWait:
    """A walk takes one chunk of each stream, and waits until all are there."""

    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExternWait:
    """A walk calls a host function and waits for its results."""

    name: str
    args: tuple[Any, ...]


Wait = CallWait | ParallelWait | LoopWait | SendWait | TakeWait | ExternWait
