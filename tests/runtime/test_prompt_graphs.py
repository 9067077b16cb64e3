"""Prompts of requests that come together, through captured buckets of rows, show what the eager engine shows; capture is direct here."""

from __future__ import annotations

import functools
import random
from typing import Any

import msgspec
import pytest

from mstarc_runtime.abi.linked import Linked, PortLink
from mstarc_runtime.engines.ragged_graphs import RaggedGraph
from mstarc_runtime.worker.device_regions import DeviceOptions
from mstarc_runtime.worker.ops import OpTable
from tests.runtime import tiny
from tests.runtime.device_harness import DirectRunner, LateRunner, assert_same, run
from tests.runtime.test_device_regions import spoken


def with_shapes(linked: Linked) -> Linked:
    """The program with the declared shape of `llm.read`, as the linker gives it."""

    def shaped(op: Any) -> Any:
        return (
            msgspec.structs.replace(op, inputs=[PortLink(name="ids", dtype="i64", dims=[None])])
            if op.name == "read"
            else op
        )

    nodes = [msgspec.structs.replace(node, ops=[shaped(op) for op in node.ops]) for node in linked.nodes]
    return msgspec.structs.replace(linked, nodes=nodes)


@pytest.mark.parametrize("seed", range(4))
async def test_prompts_that_come_together(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    asks = [spoken(rng) for _ in range(10)]
    for ask in asks:
        ask.delay = rng.randrange(3)
        if rng.random() < 0.15:
            ask.cancel_after = 1
    linked = with_shapes(tiny.speech(bad=rng.choice([-1, 11])))
    wanted = await run(linked, "speech", asks, "host")

    init, replayed = OpTable.__init__, list[int]()

    def captured(table: OpTable, *args: Any) -> None:
        init(table, *args)
        table.transformers.capture([table.bound("llm.read")], DirectRunner(), lambda done, total, what: None)

    class Counted(RaggedGraph):
        def run(self, calls: Any) -> Any:
            replayed.append(len(calls))
            return super().run(calls)

    monkeypatch.setattr(OpTable, "__init__", captured)
    monkeypatch.setattr(
        "mstarc_runtime.worker.kv.RaggedGraph", functools.partial(Counted, buckets=(8, 24, 64), requests=3)
    )
    found = await run(linked, "speech", asks, DeviceOptions(LateRunner(2), 7, 1))
    assert_same(found, wanted, asks)
    assert sum(replayed) == 10 and max(replayed) > 1
