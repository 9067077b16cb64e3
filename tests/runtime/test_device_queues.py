"""Which walks work in the queue beside, what is sent there, and that it shows what one queue shows; the queues only write down here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mstarc_runtime.abi.linked import LoopLink, StateLink, StreamLink
from mstarc_runtime.arrays import TorchArrays
from mstarc_runtime.worker.device_queues import consumers
from mstarc_runtime.worker.device_regions import DeviceOptions
from mstarc_runtime.worker.ops import OpTable
from mstarc_runtime.worker.outbox import Outbox
from tests.runtime import tiny
from tests.runtime.device_harness import DirectRunner, LateRunner, assert_same, run
from tests.runtime.test_device_regions import spoken


class Written:
    """Queues that only know which of them work goes to."""

    def __init__(self) -> None:
        self.side = False

    @contextmanager
    def on(self, side: bool) -> Iterator[None]:
        before, self.side = self.side, side
        try:
            yield
        finally:
            self.side = before

    def is_side(self) -> bool:
        return self.side

    def mark(self) -> bool:
        return self.side

    def wait(self, mark: bool) -> None:
        assert mark != self.side

    def lend(self, value: Any, side: bool) -> None:
        """Memory of a CPU is not used again early."""


def changed(walk: dict[str, Any] | None = None, node: dict[str, Any] | None = None, **parts: Any) -> Any:
    """The tiny speech model with another walk `vocode` or node `snac`."""
    linked = tiny.speech()
    walks = [msgspec.structs.replace(w, **(walk or {})) if w.name == "vocode" else w for w in linked.walks]
    nodes = [msgspec.structs.replace(n, **(node or {})) if n.name == "snac" else n for n in linked.nodes]
    return msgspec.structs.replace(linked, walks=walks, nodes=nodes, **parts)


def test_a_walk_that_takes_and_keeps_nothing_is_a_consumer() -> None:
    assert consumers(changed(), 0) == {"vocode"}
    assert consumers(changed(), 1) == frozenset()
    assert consumers(tiny.speech(ranks=2), 1) == {"vocode"}


@pytest.mark.parametrize(
    "linked",
    [
        changed(walk={"takes": []}),
        changed(walk={"contexts": ["main"]}),
        changed(walk={"nodes": ["llm"]}),
        changed(walk={"ranks": [0, 1]}),
        changed(node={"states": [StateLink(name="s", dtype="f32")]}),
        changed(loops=[LoopLink(walk="vocode", label="x", kind="max", region="vocode_x")]),
        changed(
            walk={"sends": ["back"]},
            streams=[
                *tiny.speech().streams,
                StreamLink(name="back", policy="fixed", args={"size": 1}, capacity=1, source=0, sink=0),
            ],
        ),
    ],
)
def test_what_keeps_something_or_feeds_the_rank_is_none(linked: Any) -> None:
    assert consumers(linked, 0) == frozenset()


def test_sends_to_another_rank_leave_it_a_consumer() -> None:
    back = StreamLink(name="back", policy="fixed", args={"size": 1}, capacity=1, source=0, sink=1)
    assert consumers(changed(walk={"sends": ["back"]}, streams=[*tiny.speech().streams, back]), 0) == {"vocode"}


@pytest.mark.parametrize("looks", [0, 3])
async def test_consumers_work_beside_and_show_the_same(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    queues = Written()
    runner = LateRunner(looks) if looks else DirectRunner()
    runner.queues = queues  # type: ignore[assignment]
    called: dict[str, set[bool]] = {}
    call_rows = OpTable.call_rows

    def noted(self: OpTable, op: str, calls: Any) -> Any:
        called.setdefault(op, set()).add(queues.side)
        return call_rows(self, op, calls)

    rng = random.Random(looks)
    asks = [spoken(rng, max_tokens=60, ignore_eos=True) for _ in range(6)]
    wanted = await run(tiny.speech(), "speech", asks, "host")
    monkeypatch.setattr(OpTable, "call_rows", noted)
    found = await run(tiny.speech(), "speech", asks, DeviceOptions(runner, 7, 1))
    assert_same(found, wanted, asks)
    assert called == {"llm.read": {False}, "snac.decode": {True}}


def test_copies_begin_in_the_queue_of_their_values() -> None:
    queues, sent = Written(), list[Any]()

    class Runner(DirectRunner):
        def fetch(self, tensors: Any) -> Any:
            copied.append((queues.side, len(tensors)))
            return super().fetch(tensors)

    copied: list[tuple[bool, int]] = []
    runner = Runner()
    runner.queues = queues  # type: ignore[assignment]
    outbox = Outbox(TorchArrays(), runner, sent.extend)
    outbox.emit(1, "speak", "text", torch.tensor(5), {})
    with queues.on(side=True):
        outbox.emit(1, "vocode", "audio", torch.ones(2), {})
        outbox.emit(1, "vocode", "audio", torch.zeros(2), {})
    outbox.emit(2, "speak", "text", torch.tensor(6), {})
    outbox.flush()
    assert copied == [(False, 2), (True, 2)]
    assert [event[2] for event in sent] == ["text", "audio", "audio", "text"]
    assert [event[3] if event[2] == "text" else event[3].tolist() for event in sent] == [5, [1.0, 1.0], [0.0, 0.0], 6]


def test_what_has_landed_is_not_fetched() -> None:
    """As long as its request lives."""
    sent = list[Any]()

    class Runner(DirectRunner):
        def fetch(self, tensors: Any) -> Any:
            copied.append(len(tensors))
            return super().fetch(tensors)

    copied: list[int] = []
    outbox = Outbox(TorchArrays(), Runner(), sent.extend)
    value = torch.tensor([5])
    outbox.landed(1, value, np.array([7]))  # another number, to tell them apart
    for request in (1, 2):
        outbox.emit(request, "w", "ids", value, {})
    outbox.flush()
    outbox.forget(1)
    outbox.emit(1, "w", "ids", value, {})
    outbox.flush()
    assert [event[3].tolist() for event in sent] == [[7], [5], [5]]
    assert copied == [1, 1]
