"""The fused paths of pi0.5 and V-JEPA 2 against the plain ones, on the same weights; their kernels against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.kernels import INTERPRETED, device_for_kernels, dtypes_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.component import Checkpoint  # noqa: E402
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine  # noqa: E402
from mstarc_runtime.models import fused_triton as fused  # noqa: E402
from mstarc_runtime.models.pi05 import fused as fused_pi05  # noqa: E402
from mstarc_runtime.models.pi05 import nets  # noqa: E402
from mstarc_runtime.models.pi05.policy import Policy  # noqa: E402
from mstarc_runtime.models.pi05.vision import Vision  # noqa: E402
from mstarc_runtime.models.vjepa2 import rope  # noqa: E402

pytestmark = pytest.mark.gpu
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
SIZES = {
    "vocab_size": 90, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 16, "expert_hidden_size": 32, "expert_intermediate_size": 40, "chunk_size": 5,
    "max_action_dim": 6, "text_scale": 2.0, "tokens": 4,
}  # fmt: skip


def error(result: Tensor, expected: Tensor) -> float:
    assert torch.isfinite(result).all()
    return float((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_gated_gelu(dtype: torch.dtype) -> None:
    pair = torch.randn(3, 2200, device=DEVICE, dtype=dtype) * 3
    gate, up = pair.double().chunk(2, -1)
    assert error(fused.gelu_mul(pair), F.gelu(gate, approximate="tanh") * up) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_rotation_over_three_axes(batched: bool, dtype: torch.dtype) -> None:
    """Queries and keys inside a fused qkv; tables are shared by a batch."""
    qkv = torch.randn(2, 12, 3, 2, 20, device=DEVICE, dtype=dtype)
    x = qkv[..., :2, :, :] if batched else qkv[0, :, :2]
    turn = rope.rotation(*rope.token_positions(torch.arange(12, device=DEVICE), 2), 20)
    expected = rope.rotate(x.cpu().double(), (turn[0].cpu().double(), turn[1].cpu().double()))
    rows = x.flatten(-3, -2).reshape(-1, 4, 20)
    found = fused.rotate_pairs(rows, turn[0].reshape(-1, 20), turn[1].reshape(-1, 20)).view(x.shape)
    assert error(found, expected) < BOUNDS[dtype]
    if not INTERPRETED:
        assert torch.equal(rope.rotate(x, turn), found)


Reading = Callable[..., Any]


def flow(policy: Policy, device: str, dtype: torch.dtype, read: Reading, velocity: Reading) -> Tensor:
    """Velocities after two prefixes were read, by the given ways through the nets."""
    facts = policy.config
    pool = PagedPool(
        Geometry(facts.layers, facts.heads, facts.kv_heads, facts.head_dim), 20, dtype=dtype, device=device
    )
    engine = TransformerEngine(pool)
    contexts = [Context(pool) for _ in range(2)]
    draw = torch.Generator().manual_seed(2)

    def look(run: Any, rows: Tensor) -> None:
        read(policy.net.language, run, rows, policy._frequencies)

    def step(run: Any, x: Tensor, t: Tensor) -> Tensor:
        found: Tensor = velocity(policy, run, x, t)
        return found

    with torch.inference_mode():
        for context, length in zip(contexts, (3, 2), strict=True):
            seen = torch.randn(4, SIZES["hidden_size"], generator=draw).to(device)  # type: ignore[call-overload]
            ids = torch.randint(90, (length,), generator=draw).to(device)
            spec = OpSpec("llm.read", ("packed",), (), attend="full")
            engine.call(look, spec, [Call((policy.prefix(seen, ids),), (context,), 4 + length)])
        spec = OpSpec("llm.velocity", ("plain", "scalar"), attend="full", frozen=True)
        calls = [
            Call((torch.randn(5, 6, generator=draw).to(device), torch.tensor(t, device=device)), (context,), 5)
            for context, t in zip(contexts, (0.9, 0.3), strict=True)
        ]
        (found,) = engine.call(step, spec, calls)
    assert isinstance(found, Tensor)
    return found


TOWER = {
    "image_size": 28, "patch_size": 14, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 88,
    "projection_dim": 40,
}  # fmt: skip


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_camera_tower_of_pi05(dtype: torch.dtype) -> None:
    vision = Vision.load(Checkpoint(), {**TOWER, "dtype": str(dtype).removeprefix("torch.")}, DEVICE)
    plain = Vision.load(Checkpoint(), TOWER, "cpu")
    draw = torch.Generator().manual_seed(4)
    for key, value in vision.net.state_dict().items():
        value.add_((0.2 * torch.randn(value.shape, generator=draw)).to(DEVICE))
        plain.net.state_dict()[key].copy_(value)
    images = torch.rand(3, 3, 28, 28, generator=draw) * 2 - 1
    with torch.inference_mode():
        expected, found = plain.net.hidden(images), fused_pi05.hidden(vision.net, images.to(DEVICE))
    close = 2e-3 if INTERPRETED else 1e-5  # on a CPU the product with an activation has the exact gelu
    assert error(found, expected) < {torch.float32: close, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_flow_of_pi05(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    policy = Policy.load(Checkpoint(), {**SIZES, "dtype": name}, DEVICE)
    plain = Policy.load(Checkpoint(), {**SIZES, "dtype": "float32"}, "cpu")
    state = {key: value.float().cpu() for key, value in policy.net.state_dict().items()}
    for net in (policy.net, plain.net):
        net.requires_grad_(False)
    draw = torch.Generator().manual_seed(8)  # what `_random` leaves at 0 counts too
    for key, value in state.items():
        state[key] = value + 0.1 * torch.randn(value.shape, generator=draw)
        policy.net.state_dict()[key].copy_(state[key])
        plain.net.state_dict()[key].copy_(policy.net.state_dict()[key])
    expected = flow(plain, "cpu", torch.float32, nets.LanguageNet.read, Policy.velocity)
    found = flow(policy, DEVICE, dtype, fused_pi05.read, lambda policy, *args: policy._flow.velocity(*args))
    assert error(found, expected) < {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
