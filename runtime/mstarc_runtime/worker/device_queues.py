"""Two queues of work (CUDA streams) on the GPU of a rank: the main one, and one beside it for the walks that only consume.

A device loop keeps the main queue full: a run of several steps is queued before the results of the one before it were read. What a
consumer does with those results would wait behind it. In the queue beside, which has a higher priority, it does not.

Work of one queue runs in the order in which it was queued. What crosses over needs two things: the other queue waits until a value
is there (`mark` and `wait`), and the memory of the value is not used again before the other queue is done with it (`lend`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from mstarc_runtime.abi.linked import Linked, NodeLink


def consumers(linked: Linked, rank: int) -> frozenset[str]:
    """The walks of a rank that only consume: they take items, call stateless ops, and nothing they make is used here by another walk.

    So a walk with contexts, cells, draws in an op, or a region loop is none, nor one that sends to its own rank.
    """
    nodes = {node.name: node for node in linked.nodes}
    looping = {loop.walk for loop in linked.loops if loop.region}
    local = {stream.name for stream in linked.streams if stream.sink == rank}
    return frozenset(
        walk.name
        for walk in linked.walks
        if walk.rank == rank
        and walk.takes
        and not (walk.ranks or walk.contexts or walk.name in looping or local.intersection(walk.sends))
        and all(_keeps_nothing(nodes[name]) for name in walk.nodes)
    )


def _keeps_nothing(node: NodeLink) -> bool:
    return node.kind == "stateless" and not node.states and not any(op.samples for op in node.ops)


class Queues:
    """The queues of a process on one GPU, for one thread. It knows which of them is in use: to ask the library takes longer than a switch
    that is not needed.
    """

    def __init__(self, device: torch.device) -> None:
        self._in_side = False
        self.main: torch.cuda.Stream = torch.cuda.current_stream(device)
        self.out: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # copies to the host
        self.side: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]  # the highest

    def on(self, side: bool) -> AbstractContextManager[None]:
        """Work that is queued inside goes to the queue beside, or to the main one."""
        return nullcontext() if side == self._in_side else self._switched()

    @contextmanager
    def _switched(self) -> Iterator[None]:
        self._in_side = not self._in_side
        try:
            with torch.cuda.stream(self._now):
                yield
        finally:
            self._in_side = not self._in_side

    @property
    def _now(self) -> torch.cuda.Stream:
        return self.side if self._in_side else self.main

    def is_side(self) -> bool:
        """Whether work goes to the queue beside now."""
        return self._in_side

    def mark(self) -> torch.cuda.Event:
        """The work queued so far, to wait for."""
        event: torch.cuda.Event = self._now.record_event()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """What is queued from now on waits for it; the host does not."""
        self._now.wait_event(mark)

    def lend(self, value: Tensor, side: bool) -> None:
        """A value of one queue is used by the other: its memory is used again only after what is queued there when it is dropped."""
        if value.is_cuda:
            value.record_stream(self.side if side else self.main)

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Work that is queued inside goes to the main queue; it waits for the queue beside, and that one for it."""
        self.main.wait_stream(self.side)
        with self.on(side=False):
            yield
        self.side.wait_stream(self.main)
