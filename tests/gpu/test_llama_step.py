"""The decode step with kernels of its own: its products against torch in float64, its logits against the plain Llama on slots."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.attend_step_triton import Shares  # noqa: E402
from mstarc_runtime.engines.early_triton import early, in_turn  # noqa: E402
from mstarc_runtime.engines.slots import Slots, call_slots  # noqa: E402
from mstarc_runtime.models import llama_weights, step_gluon, step_triton  # noqa: E402
from mstarc_runtime.models.llama import Llama  # noqa: E402
from mstarc_runtime.models.llama_config import Llama3Scaling, LlamaConfig  # noqa: E402
from mstarc_runtime.models.llama_fused import FusedLlama  # noqa: E402
from mstarc_runtime.models.step_products import Stream  # noqa: E402
from tests.models.llama_helpers import STEP  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 6e-3}
EPS = 1e-5
FACTS = LlamaConfig(
    vocab_size=300,
    hidden_size=256,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    rope_theta=500000.0,
    rope_scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192),
)
SHAPES = [(1, 256, 512, 2), (5, 256, 192, 3), (17, 256, 128, 1)]  # rows, ins, outs, parts
WIDE = [
    (1, 3072, 5120, 3),
    (16, 8192, 3072, 5),
    (32, 3072, 16384, 1),
    (32, 3072, 3072, 5),
    (3, 512, 64, 4),
    (2, 512, 128, 1),
]
if not INTERPRETED:
    SHAPES += WIDE
CASES = [(step_triton, dtype, shape) for dtype in DTYPES for shape in SHAPES]
ON_HOPPER = not INTERPRETED and torch.cuda.get_device_capability()[0] == 9
if ON_HOPPER:
    CASES += [(step_gluon, torch.bfloat16, shape) for shape in WIDE]


def error(result: Tensor, expected: Tensor) -> float:
    assert torch.isfinite(result).all()
    return float((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


def stream_of(rows: int, width: int, dtype: torch.dtype) -> tuple[Stream, Tensor]:
    """A random stream, and its norm in float64 (of the rows as they were rounded)."""
    x, norm = torch.randn(rows, width, device=DEVICE) * 3, 1 + 0.1 * torch.randn(width, device=DEVICE)
    scaled = (x * norm).to(dtype)
    squares = x.square().view(rows, -1, 64).sum(-1)
    normed = scaled.double() / (x.double().square().mean(-1, keepdim=True) + EPS).sqrt()
    return Stream(x, scaled, squares), normed


@pytest.mark.parametrize(("kernels", "dtype", "shape"), CASES, ids=str)
def test_products(kernels: ModuleType, dtype: torch.dtype, shape: tuple[int, int, int, int]) -> None:
    rows, ins, outs, parts = shape
    products = kernels.PRODUCTS
    stream, normed = stream_of(rows, ins, dtype)
    weight = (torch.randn(outs, ins, device=DEVICE) * 0.05).to(dtype)
    expected = normed @ weight.double().T
    found = products.parts_product(stream, weight, EPS, parts)
    assert found.shape == (parts, rows, outs)
    assert error(found.double().sum(0), expected) < 1e-5
    gate, up = expected.chunk(2, -1)
    assert error(products.gated_product(stream, weight, EPS), torch.nn.functional.silu(gate) * up) < BOUNDS[dtype]

    before = torch.randn(rows, outs, device=DEVICE)
    norm = (1 + 0.1 * torch.randn(outs, device=DEVICE)).to(dtype)
    x = torch.randn(rows, ins, device=DEVICE).to(dtype)
    arrived = torch.zeros(outs // 64, dtype=torch.int32, device=DEVICE)
    added = before.double() + x.double() @ weight.double().T
    alone = []
    for first, last in ((0, rows), (rows - 1, rows)):
        onto = Stream(before[first:last].clone(), x, before)
        after = products.add_product(onto, x[first:last].contiguous(), weight, norm, arrived, parts)
        assert error(after.residual, added[first:last]) < 1e-5
        assert error(after.scaled, added[first:last] * norm.double()) < BOUNDS[dtype]
        assert error(after.squares.double().sum(-1), added[first:last].square().sum(-1)) < 1e-5
        assert not arrived.any()
        alone.append(after.residual[-1])
    if not INTERPRETED or rows <= 16:  # numpy sums in an order that depends on the padded rows
        assert torch.equal(*alone)


@pytest.mark.skipif(not ON_HOPPER, reason="only the kernels for Hopper take shares")
@pytest.mark.parametrize(("ins", "outs", "parts", "splits"), [(3072, 3072, 5, 16), (512, 128, 1, 3), (1024, 192, 3, 2)])
def test_product_of_shares_of_attention(ins: int, outs: int, parts: int, splits: int) -> None:
    heads = ins // 128
    mixed = torch.randn(1, heads, splits, 128, device=DEVICE)
    tops, totals = torch.randn(1, heads, splits, device=DEVICE) * 4, torch.rand(1, heads, splits, device=DEVICE) + 0.5
    empty = torch.rand(1, heads, splits, device=DEVICE) < 0.3
    empty[..., -1] = False
    mixed[empty], tops[empty], totals[empty] = 0.0, -torch.inf, 0.0
    factor = (tops.double() - tops.double().amax(-1, keepdim=True)).exp2()
    x = (mixed * factor[..., None]).sum(-2) / (totals * factor).sum(-1)[..., None]
    weight = (torch.randn(outs, ins, device=DEVICE) * 0.05).to(torch.bfloat16)
    before, norm = torch.randn(1, outs, device=DEVICE), torch.ones(outs, device=DEVICE, dtype=torch.bfloat16)
    arrived = torch.zeros(outs // 64, dtype=torch.int32, device=DEVICE)
    onto = Stream(before.clone(), before, before)
    after = step_gluon.PRODUCTS.add_product(onto, Shares(mixed, tops, totals), weight, norm, arrived, parts)
    expected = x.view(1, -1) @ weight.double().T
    assert error(after.residual - before, expected) < 4e-3  # the mixes are rounded to 16 bits
    assert not arrived.any()


@torch.inference_mode()
def steps(model: Llama, device: str, dtype: torch.dtype, lengths: list[int], active: list[bool]) -> list[Tensor]:
    """Logits of three steps on slots whose contexts are filled with noise; fixed tokens are fed."""
    facts = model.facts
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    pool = PagedPool(geometry, 40, dtype=dtype, device=device)
    draw = torch.Generator().manual_seed(8)
    slots = Slots(pool, len(lengths), 12)
    for slot, length in enumerate(lengths):
        context = Context(pool)
        context.reserve(length + 3)
        slots.put(slot, context)
        slots.length[slot] = slots.position[slot] = length
    pool.data.copy_(torch.randn(pool.data.shape, generator=draw).to(device, dtype))
    slots.active.copy_(torch.tensor(active))
    found: list[Tensor] = []
    for _ in range(3):
        tokens = torch.randint(300, (len(lengths),), generator=draw).to(device)
        found += call_slots(model.step, STEP, [slots], [tokens], slots.active, takes=1)
    return [logits.float().cpu() for logits in found]


@triton.jit  # type: ignore[untyped-decorator]
def _active_at_last(active, sink, turns, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every row becomes active, but only after a while."""
    in_turn(EARLY)
    passed = tl.load(sink)
    for _ in range(turns):
        passed = passed * 0.5 + 1.0
    tl.store(sink, passed)
    at = tl.arange(0, 2)
    tl.store(active + at, passed > 0.0)


@pytest.mark.skipif(not ON_HOPPER, reason="elsewhere no kernel starts early")
@torch.inference_mode()
def test_attention_that_starts_early_reads_what_the_chain_wrote() -> None:
    facts = replace(FACTS, hidden_size=512, intermediate_size=640, num_attention_heads=8)
    model = FusedLlama(
        facts, llama_weights.for_gpu(facts, llama_weights.random(facts, 7), torch.bfloat16, DEVICE), DEVICE
    )
    geometry = Geometry(facts.num_hidden_layers, facts.num_attention_heads, facts.num_key_value_heads, facts.head_dim)
    pool = PagedPool(geometry, 8, dtype=torch.bfloat16, device=DEVICE)
    pool.data.normal_()
    slots, lengths = Slots(pool, 2, 4), torch.tensor([33, 20], dtype=torch.int32, device=DEVICE)
    for slot in range(2):
        context = Context(pool)
        context.reserve(40)
        slots.put(slot, context)
    token, sink = torch.tensor([5, 7], device=DEVICE), torch.ones(1, device=DEVICE)

    def step() -> Tensor:
        _active_at_last[(1,)](slots.active, sink, 30_000, num_warps=1, **early(torch.device(DEVICE)))
        return call_slots(model.step, STEP, [slots], [token], slots.active, takes=1)[0]

    def reset() -> None:
        slots.length.copy_(lengths)
        slots.position.copy_(lengths)

    reset()
    expected = call_slots(model.step, STEP, [slots], [token], slots.active, takes=1)[0].clone()
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(3):
        reset()
        slots.active.fill_(False)
        graph.replay()
        assert torch.equal(found, expected)


@pytest.mark.parametrize("wide", [False] if INTERPRETED else [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_logits_are_those_of_the_plain_llama(dtype: torch.dtype, tied: bool, wide: bool) -> None:
    facts = replace(FACTS, tie_word_embeddings=tied)
    if wide:  # as the kernels for Hopper ask
        facts = replace(facts, hidden_size=512, intermediate_size=640, num_attention_heads=8)
    weights = {name: tensor.to(dtype).float() for name, tensor in llama_weights.random(facts, 7).items()}
    model = FusedLlama(facts, llama_weights.for_gpu(facts, weights, dtype, DEVICE), DEVICE)
    assert model._step is not None
    lengths, active = [5, 0, 70, 33], [True, True, True, False]
    expected = steps(Llama(facts, weights), "cpu", torch.float32, lengths, active)
    results = steps(model, DEVICE, dtype, lengths, active)
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    for result, wanted in zip(results, expected, strict=True):
        assert result.shape == (4, 300)
        assert error(result[active], wanted[active]) < bound
