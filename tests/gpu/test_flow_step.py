"""The flow step as one kernel against the plain nets, on slots."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import device_for_kernels, dtypes_for_kernels
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
