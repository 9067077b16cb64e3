"""Ops on slots equal the same ops on contexts: lengths, positions, rules of attention, idle slots, and who may write where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mstarc_runtime.cache.contexts import Context
from mstarc_runtime.cache.pool import Geometry, PagedPool
from mstarc_runtime.engines.attend_torch import attend_slots
from mstarc_runtime.engines.slots import Slots, call_slots
from mstarc_runtime.engines.transformer import Call, EngineError, OpSpec, TransformerEngine
from tests.engines.dense_model import DIM, HEADS, KV_HEADS, LAYERS, WIDTH, Net, Probe

NET = Net(1)
PROBE = Probe(NET)
PAGE = 4
READ = OpSpec("n.read", ("packed",), ("packed",))
PAGES = 12


class Twin:
    """The same contexts twice: on an engine with lanes, and on slots of a pool of its own whose free pages hold NaN."""

    def __init__(self, lengths: list[int], source: int = 5) -> None:
        self.lengths = lengths
        self.engine, self.lanes, self.lane_source = self._make(lengths, source)
        self.mirror, self.contexts, self.slot_source = self._make(lengths, source)
        self.slots = Slots(self.mirror.pool, len(lengths), PAGES)
        self.cross = Slots(self.mirror.pool, len(lengths), PAGES)
        for slot, context in enumerate(self.contexts):
            context.reserve(24)
            context.clean_tail()
            self.slots.put(slot, context)
            self.cross.put(slot, self.slot_source)

    @staticmethod
    def _make(lengths: list[int], source: int) -> tuple[TransformerEngine, list[Context], Context]:
        pool = PagedPool(Geometry(LAYERS, HEADS, KV_HEADS, DIM), 120, page_size=PAGE, poison=True)
        engine = TransformerEngine(pool)
        contexts = [Context(pool) for _ in [*lengths, source]]
        for n, (context, length) in enumerate(zip(contexts, [*lengths, source], strict=True)):
            if length:
                rows = torch.randn(length, WIDTH, generator=torch.Generator().manual_seed(n))
                engine.call(PROBE.forward, READ, [Call((rows,), (context,), length)])
        return engine, contexts[:-1], contexts[-1]

    def entries(self, context: Context) -> Tensor:
        return context.pool.data[:, :, context.slots(0, context.length)]


def on_lanes(twin: Twin, spec: OpSpec, args: Tensor, takes: int, only: list[int], method: str = "forward") -> Tensor:
    calls = [Call((args[i],), (twin.lanes[i],), takes, cross=twin.lane_source if spec.cross else None) for i in only]
    (column,) = twin.engine.call(getattr(PROBE, method), spec, calls)
    return torch.stack(list(column))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["seq", "same"])
@pytest.mark.parametrize("takes", [1, 3])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@torch.inference_mode()
def test_slots_equal_lanes(causal: bool, positions: str, takes: int, cross: bool, frozen: bool) -> None:
    twin = Twin([0, 1, 4, 7, 13])
    spec = OpSpec(
        "n.op",
        ("packed",),
        ("packed",),
        attend="causal" if causal else "full",
        positions=positions,  # type: ignore[arg-type]
        frozen=frozen,
        cross=cross,
    )
    method = "across" if cross else "forward"
    active = torch.tensor([True, True, False, True, True])
    for step in range(4):
        if step == 2:
            active[1], active[2] = False, True
        only = active.nonzero()[:, 0].tolist()
        args = torch.randn(5, takes, WIDTH, generator=torch.Generator().manual_seed(50 + step))
        wanted = on_lanes(twin, spec, args, takes, only, method)
        (found,) = call_slots(
            getattr(PROBE, method),
            spec,
            [twin.slots],
            [args.flatten(0, 1)],
            active,
            takes=takes,
            cross=twin.cross if cross else None,
        )
        torch.testing.assert_close(found[only], wanted, atol=1e-5, rtol=1e-4)
        assert found.isfinite().all()  # an idle slot computes along and meets nothing that is not its own
    lanes = twin.lanes
    assert twin.slots.length.tolist() == [lane.length for lane in lanes]
    assert twin.slots.position.tolist() == [lane.position for lane in lanes]
    for context, lane in zip(twin.contexts, lanes, strict=True):
        context.extend(lane.length - context.length, lane.position - context.position)
        torch.testing.assert_close(twin.entries(context), twin.entries(lane), atol=1e-5, rtol=1e-4)


def test_idle_slots_write_nowhere() -> None:
    twin = Twin([3, 5])
    before = twin.mirror.pool.data.clone()
    args = torch.randn(2, WIDTH)
    call_slots(PROBE.forward, READ, [twin.slots], [args], torch.tensor([False, False]), takes=1)
    assert torch.equal(before.nan_to_num(9e9), twin.mirror.pool.data.nan_to_num(9e9))
    assert twin.slots.length.tolist() == [3, 5]
    call_slots(PROBE.forward, READ, [twin.slots], [args], torch.tensor([False, True]), takes=1)
    changed = (before.nan_to_num(9e9) != twin.mirror.pool.data.nan_to_num(9e9)).any(0).any(0).any(-1).nonzero()[:, 0]
    assert changed.tolist() == twin.contexts[1].slots(5, 6)


def test_several_targets_are_independent_and_the_value_is_the_first() -> None:
    twin, other = Twin([2, 6]), Twin([2, 6])
    second = Slots(twin.mirror.pool, 2, PAGES)
    contexts = [context.fork() for context in twin.contexts]
    for slot, context in enumerate(contexts):
        context.reserve(4)
        second.put(slot, context)
    args = torch.randn(2, 1, WIDTH)
    active = torch.tensor([True, True])
    (found,) = call_slots(PROBE.forward, READ, [twin.slots, second], [args.flatten(0, 1)], active, takes=1)
    torch.testing.assert_close(found, on_lanes(other, READ, args, 1, [0, 1]), atol=1e-5, rtol=1e-4)
    assert second.length.tolist() == twin.slots.length.tolist() == [3, 7]


def test_a_source_without_entries_gives_zeros() -> None:
    pool = PagedPool(Geometry(1, HEADS, KV_HEADS, DIM), 3, page_size=PAGE)
    slots = Slots(pool, 2, 3)
    q = torch.randn(2, HEADS, DIM)
    mixed = attend_slots(
        pool.data[0], q, None, None, slots.table, slots.length, None,
        rows_per_slot=1, page_size=PAGE, causal=False, frozen=True, scale=1.0,
    )  # fmt: skip
    assert mixed.eq(0).all()


def test_a_part_of_the_slots_shares_their_memory() -> None:
    twin = Twin([1, 2, 3])
    part = twin.slots.first(2)
    call_slots(PROBE.forward, READ, [part], [torch.randn(2, WIDTH)], part.active, takes=1, advance=5)
    assert twin.slots.length.tolist() == [2, 3, 3]
    assert twin.slots.position.tolist() == [6, 7, 3]


def test_rules_of_the_engine_hold_on_slots() -> None:
    twin = Twin([1])
    active = twin.slots.active

    def lazy(run: object, x: Tensor) -> Tensor:
        return x

    with pytest.raises(EngineError, match=r"did not write layers \[0, 1\]"):
        call_slots(lazy, READ, [twin.slots], [torch.randn(1, WIDTH)], active, takes=1)
    with pytest.raises(EngineError, match="names no source"):
        call_slots(PROBE.across, READ, [twin.slots], [torch.randn(1, WIDTH)], active, takes=1)
    with pytest.raises(EngineError, match="pages in slots of 2"):
        Slots(twin.mirror.pool, 1, 2).put(0, twin.contexts[0])
