"""The flow step as one kernel against the plain nets, on slots."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels, dtypes_for_kernels
from tests.gpu.test_fused_nets import error

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.component import Checkpoint  # noqa: E402
from mstarc_runtime.engines.slots import Slots, SlotsRun  # noqa: E402
from mstarc_runtime.engines.transformer import OpSpec  # noqa: E402
from mstarc_runtime.models.pi05 import nets  # noqa: E402
from mstarc_runtime.models.pi05.flow_step import FlowStep  # noqa: E402
from mstarc_runtime.models.pi05.policy import Policy  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = [dtype for dtype in dtypes_for_kernels() if dtype != torch.float16]
BOUNDS = {torch.float32: 4e-6, torch.bfloat16: 2e-2}
VELOCITY = OpSpec("llm.velocity", params=("plain", "scalar"), attend="full", positions="seq", frozen=True)
SIZES = {
    "vocab_size": 90, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "expert_hidden_size": 128, "expert_intermediate_size": 256, "chunk_size": 7,
    "max_action_dim": 6, "text_scale": 2.0, "tokens": 4,
}  # fmt: skip
LARGER = {"head_dim": 128, "expert_intermediate_size": 512}  # as tiles of 16-bit weights are
RING = {  # as its slots are
    "expert_hidden_size": 256, "num_attention_heads": 8, "head_dim": 128, "expert_intermediate_size": 1024,
}  # fmt: skip
REAL = {
    "expert_hidden_size": 1024, "head_dim": 256, "expert_intermediate_size": 4096, "chunk_size": 50, "max_action_dim": 32
}  # fmt: skip
ENDS = (
    (3, True),
    (60, True),
    (64, True),
    (100, True),
    (1001, True),
    (1300, True),
    (1001, False),
)  # lengths, and whether they are seen


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("lengths", [[40], [3, 70]])
def test_step(lengths: list[int], dtype: torch.dtype) -> None:
    """Several requests at their own times; one of them again, at the same time."""
    sizes = SIZES if dtype == torch.float32 else {**SIZES, **LARGER}
    policy = Policy.load(Checkpoint(), {**sizes, "dtype": str(dtype).removeprefix("torch.")}, DEVICE)
    facts, net = policy.config, policy.net.expert
    torch.manual_seed(2)
    net.modulation.weight.normal_(0, 0.1)
    net.modulation.bias.normal_(0, 0.1)
    pool = PagedPool(
        Geometry(facts.layers, facts.heads, facts.kv_heads, facts.head_dim), 12, page_size=16, dtype=dtype,
        device=policy.net.expert.action_in.weight.device,
    )  # fmt: skip
    pool.data.normal_()
    contexts = [Context(pool) for _ in lengths]
    for context, length in zip(contexts, lengths, strict=True):
        context.reserve(length)
        context.extend(length, length, None)
    slots = Slots(pool, len(lengths), 8)
    slots.load(contexts)
    step = FlowStep(net, policy._frequencies, policy._speeds)
    assert FlowStep.fits(net)
    for t in ([0.7, 0.2], [0.7, 0.9], [0.1, 0.1]):
        times = torch.tensor(t[: len(lengths)], device=slots.length.device)
        x = torch.randn(len(lengths), facts.horizon, facts.action_dim, device=times.device)
        with torch.inference_mode():
            run = SlotsRun("velocity", slots, VELOCITY, facts.horizon, slots.active)
            assert step.takes(run, len(lengths), facts.horizon)
            found = step(run, x, times)
            turn = nets.rotation(run.positions, policy._frequencies)
            expected = net.velocity(run, x, nets.time_waves(times, policy._speeds), turn)
        assert error(found, expected) < BOUNDS[dtype]
    assert not step.takes(run, 10, facts.horizon)


@pytest.mark.skipif(INTERPRETED, reason="Gluon has no interpreter")
@pytest.mark.parametrize(
    "sizes", [{}, {"num_attention_heads": 4, "head_dim": 256}, {"num_key_value_heads": 2}, REAL], ids=str
)
def test_ring(sizes: dict[str, int]) -> None:
    """Weights through a ring, in a graph: contexts that end within, before and at the end of a block, none, and what no one may see."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("for Hopper")
    policy = Policy.load(Checkpoint(), {**SIZES, **RING, **sizes, "dtype": "bfloat16"}, DEVICE)
    facts, net = policy.config, policy.net.expert
    torch.manual_seed(2)
    net.modulation.weight.normal_(0, 0.1)
    net.modulation.bias.normal_(0, 0.1)
    pool = PagedPool(
        Geometry(facts.layers, facts.heads, facts.kv_heads, facts.head_dim), 24, page_size=64, dtype=torch.bfloat16,
        device=net.action_in.weight.device,
    )  # fmt: skip
    slots = Slots(pool, 1, 24)
    context = Context(pool)
    context.reserve(1300)
    context.extend(1300, 1300, None)
    slots.load([context])
    step = FlowStep(net, policy._frequencies, policy._speeds)
    times = torch.tensor([0.7], device=slots.length.device)
    x = torch.randn(1, facts.horizon, facts.action_dim, device=times.device)
    run = SlotsRun("velocity", slots, VELOCITY, facts.horizon, slots.active)
    assert step.in_ring(run, 1, facts.horizon) and not step.in_ring(run, 2, facts.horizon)
    with torch.inference_mode():
        step(run, x, times)  # compiles
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step(run, x, times)
        for length, active in ENDS:
            slots.length.fill_(length)
            slots.active.fill_(active)
            pool.data.normal_()
            graph.replay()
            first = found.clone()
            expected = net.velocity(
                run, x, nets.time_waves(times, policy._speeds), nets.rotation(run.positions, policy._frequencies)
            )
            assert error(first, expected) < BOUNDS[torch.bfloat16]
            entry = torch.arange(slots.table.shape[1] * 64, device=times.device)
            seen = slots.table[0].long()[entry // 64] * 64 + entry % 64
            hidden = torch.ones(pool.data.shape[2], dtype=torch.bool, device=times.device)
            hidden[seen[: length * active]] = False
            pool.data[:, :, hidden] = float("nan")
            for _ in range(20):
                graph.replay()
                assert torch.equal(found, first)
