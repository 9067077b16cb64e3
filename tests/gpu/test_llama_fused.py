"""The fused Llama against the plain one, and its kernels against torch in float64."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels, dtypes_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.component import Checkpoint  # noqa: E402
from mstarc_runtime.engines.transformer import Call, TransformerEngine  # noqa: E402
from mstarc_runtime.models import fused_triton as fused  # noqa: E402
from mstarc_runtime.models import llama_weights  # noqa: E402
from mstarc_runtime.models.llama import Llama  # noqa: E402
from mstarc_runtime.models.llama_config import Llama3Scaling, LlamaConfig  # noqa: E402
from mstarc_runtime.models.llama_fused import FusedLlama  # noqa: E402
from tests.models.llama_helpers import READ, STEP  # noqa: E402

pytestmark = pytest.mark.gpu
BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 5e-3, torch.float16: 1e-3}
FACTS = LlamaConfig(
    vocab_size=300,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=500000.0,
    rope_scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192),
)


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    assert torch.isfinite(result).all()
    return float((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("width", [96, 3072])
def test_sum_and_norm(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(5, width, device=DEVICE)
    y, weight = torch.randn(5, width, device=DEVICE, dtype=dtype), torch.randn(width, device=DEVICE, dtype=dtype)
    whole = x.double() + y.double()
    normed = whole * (whole.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    result = fused.add_rms_norm(x, y, weight, 1e-5)
    assert error(x, whole) < 1e-6
    assert error(result, normed) < BOUNDS[dtype]
    assert error(fused.add_rms_norm(x, None, weight, 1e-5), normed) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(24, 8, 128), (3, 1, 12)])
def test_rotation(heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(4, heads + 2 * kv_heads, dim, device=DEVICE, dtype=dtype)
    angle = torch.randn(4, dim // 2, device=DEVICE) * 10
    before = x.double()
    turned = torch.view_as_complex(torch.stack(before.chunk(2, -1), -1)) * torch.polar(
        torch.ones_like(angle).double(), angle.double()
    ).unsqueeze(1)
    fused.rotate(x, heads + kv_heads, angle.cos(), angle.sin())
    expected = torch.cat([turned.real, turned.imag], -1)
    assert error(x[:, : heads + kv_heads], expected[:, : heads + kv_heads]) < BOUNDS[dtype]
    assert torch.equal(x[:, heads + kv_heads :].double(), before[:, heads + kv_heads :])


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize("width", [40, 8192])
def test_gated_silu(width: int, dtype: torch.dtype) -> None:
    pair = torch.randn(3, 2 * width, device=DEVICE, dtype=dtype) * 4
    gate, up = pair.double().chunk(2, -1)
    assert error(fused.silu_mul(pair), torch.nn.functional.silu(gate) * up) < BOUNDS[dtype]


@torch.inference_mode()
def steps(model: Llama, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Logits of a ragged prefill and of three decode steps that are fed fixed tokens."""
    geometry = Geometry(FACTS.num_hidden_layers, FACTS.num_attention_heads, FACTS.num_key_value_heads, FACTS.head_dim)
    engine = TransformerEngine(PagedPool(geometry, 40, dtype=dtype, device=device))
    draw = torch.Generator().manual_seed(4)
    contexts = [Context(engine.pool) for _ in range(3)]
    prompts = [torch.randint(300, (n,), generator=draw).to(device) for n in (5, 1, 70)]
    found = [
        engine.call(model.read, READ, [Call((p,), (c,), len(p)) for p, c in zip(prompts, contexts, strict=True)])[0]
    ]
    for _ in range(3):
        tokens = torch.randint(300, (3,), generator=draw).to(device)
        found += engine.call(model.step, STEP, [Call((t,), (c,), 1) for t, c in zip(tokens, contexts, strict=True)])
    return [logits.float().cpu() for logits in found if isinstance(logits, torch.Tensor)]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_logits_are_those_of_the_plain_llama(dtype: torch.dtype, tied: bool) -> None:
    facts = LlamaConfig(**{**{name: getattr(FACTS, name) for name in FACTS.__slots__}, "tie_word_embeddings": tied})
    weights = {name: tensor.to(dtype).float() for name, tensor in llama_weights.random(facts, 7).items()}
    expected = steps(Llama(facts, weights), "cpu", torch.float32)
    model = FusedLlama(facts, llama_weights.for_gpu(facts, weights, dtype, DEVICE), DEVICE)
    results = steps(model, DEVICE, dtype)
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    assert len(results) == 4
    for result, wanted in zip(results, expected, strict=True):
        assert error(result, wanted) < bound


def test_fabricated_weights() -> None:
    """On the device, in the dtype, and the tied head without memory of its own."""
    dtype = torch.float32 if INTERPRETED else torch.bfloat16
    made = llama_weights.fabricate(FACTS, 3, dtype, DEVICE)
    assert {name: tuple(tensor.shape) for name, tensor in made.items()} == llama_weights.shapes(FACTS)
    assert made["head"].data_ptr() == made["embed"].data_ptr()
    assert all(tensor.dtype == dtype and tensor.device.type == DEVICE for tensor in made.values())
    assert 0.015 < float(made["0.qkv"].float().std()) < 0.025
    assert torch.equal(made["1.down"], llama_weights.fabricate(FACTS, 3, dtype, DEVICE)["1.down"])


@pytest.mark.skipif(INTERPRETED, reason="a CUDA device chooses the fused class")
def test_load_on_cuda() -> None:
    config = {name: getattr(FACTS, name) for name in FACTS.__slots__ if name != "rope_scaling"}
    assert isinstance(Llama.load(Checkpoint(), config, "cuda"), FusedLlama)
