"""The kernels of V-JEPA 2 against torch in float64, and the nets on them against the plain nets on the same weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.kernels import device_for_kernels, dtypes_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.cache.contexts import Context  # noqa: E402
from mstarc_runtime.cache.pool import Geometry, PagedPool  # noqa: E402
from mstarc_runtime.engines.component import Run  # noqa: E402
from mstarc_runtime.engines.transformer import Call, OpSpec, TransformerEngine  # noqa: E402
from mstarc_runtime.models.vjepa2 import fused, nets, rope  # noqa: E402
from mstarc_runtime.models.vjepa2.config import AcConfig, EncoderConfig, Stack  # noqa: E402

pytestmark = pytest.mark.gpu
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 6e-3, torch.float16: 1e-3}
NET_BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
AC = AcConfig(Stack(40, 2, 2, 72, True, 1e-6), embed_dim=48, grid=3, action_dim=7)
ENCODER = EncoderConfig(Stack(40, 2, 2, 72, True, 1e-6), 12, 4, 2, 3)
FRAME = OpSpec("predictor.step", ("plain", "plain", "plain"), attend="full", positions="same")
dtypes = pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)


def error(result: Tensor, expected: Tensor) -> float:
    assert torch.isfinite(result).all()
    return float((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


@dtypes
@pytest.mark.parametrize("added", [False, True])
def test_layer_norm(added: bool, dtype: torch.dtype) -> None:
    norm = nn.LayerNorm(40, device=DEVICE, dtype=dtype, eps=1e-6).requires_grad_(False)
    norm.weight.normal_()
    norm.bias.normal_()
    x, y = normal(12, 40, dtype=dtype) + 2, normal(12, 40, dtype=dtype) if added else None
    whole = x.double() if y is None else x.double() + y.double()
    expected = F.layer_norm(whole, (40,), norm.weight.double(), norm.bias.double(), 1e-6)
    tail = fused.add_layer_norm(x.clone(), y, norm, (4, 6))
    assert error(tail, expected.view(2, 6, 40)[:, 2:].flatten(0, 1)) < BOUNDS[dtype]
    assert error(fused.add_layer_norm(x, y, norm), expected) < BOUNDS[dtype]
    assert error(x, whole) < BOUNDS[dtype]


@dtypes
def test_norm_without_affine_is_in_f32(dtype: torch.dtype) -> None:
    x = normal(2, 3, 1408, dtype=dtype) * 3 + 1
    found = fused.plain_norm(x, 1e-5)
    assert found.dtype == torch.float32
    assert error(found, F.layer_norm(x.double(), (1408,), eps=1e-5)) < BOUNDS[torch.float32]


@dtypes
def test_gelu(dtype: torch.dtype) -> None:
    x = normal(3, 700, dtype=dtype) * 3
    assert error(fused.gelu(x), F.gelu(x.double())) < BOUNDS[dtype]


@dtypes
@pytest.mark.parametrize(("heads", "dim"), [(2, 20), (5, 64)])
def test_rows_of_frames_turn_by_time_and_place(heads: int, dim: int, dtype: torch.dtype) -> None:
    qkv, times = normal(22, 3, heads, dim, dtype=dtype), torch.tensor([3, 7], device=DEVICE)
    _, row, column = rope.token_positions(torch.arange(9, device=DEVICE), 3)
    tables = rope.rotation(times[:, None], F.pad(row, (2, 0)), F.pad(column, (2, 0)), dim)
    cos, sin = (table.flatten(0, 1).cpu().double() for table in tables)
    before = qkv.clone()
    fused.turn(qkv, 3, times.repeat_interleave(11), 11)
    assert error(qkv[:, :2], rope.rotate(before[:, :2].cpu().double(), (cos, sin))) < BOUNDS[dtype]
    assert torch.equal(qkv[:, 2], before[:, 2])


@dtypes
def test_tokens_of_clips_turn_by_frame_and_place(dtype: torch.dtype) -> None:
    qkv = normal(2 * 27, 3, 2, 20, dtype=dtype)
    tables = rope.rotation(*rope.token_positions(torch.arange(27, device=DEVICE), 3), 20)
    cos, sin = (table.cpu().double() for table in tables)
    expected = rope.rotate(qkv.view(2, 27, 3, 2, 20)[:, :, :2].cpu().double(), (cos, sin))
    fused.turn(qkv, 3, rows_each=27)
    assert error(qkv.view(2, 27, 3, 2, 20)[:, :, :2], expected) < BOUNDS[dtype]


def drawn(net: nn.Module, dtype: torch.dtype, device: str) -> None:
    """The same weights in every net of a kind, rounded to `dtype`."""
    draw = torch.Generator().manual_seed(3)
    net.requires_grad_(False)
    for tensor in net.state_dict().values():
        tensor.copy_((torch.randn(tensor.shape, generator=draw) * 0.2).to(dtype))
    net.to(device)


@dtypes
def test_encoder(dtype: torch.dtype) -> None:
    plain, fast = nets.EncoderNet(ENCODER), nets.EncoderNet(ENCODER).to(dtype)
    drawn(plain, dtype, "cpu")
    drawn(fast, dtype, DEVICE)
    video = normal(2, 4, 3, 12, 12)
    expected = plain(video.cpu())
    assert error(fused.features(fast, fast.embed(video)), expected) < NET_BOUNDS[dtype]


@dtypes
def test_rollout(dtype: torch.dtype) -> None:
    """Frames of two requests, one ahead of the other."""
    plain, fast = nets.AcPredictorNet(AC), nets.AcPredictorNet(AC).to(dtype)
    drawn(plain, dtype, "cpu")
    drawn(fast, dtype, DEVICE)
    draw = torch.Generator().manual_seed(4)
    z = torch.randn(2, 9, 48, generator=draw)
    given = torch.randn(2, 3, 2, 7, generator=draw)

    def frames(net: nets.AcPredictorNet, on: str, kept: torch.dtype) -> Tensor:
        pool = PagedPool(Geometry(2, 2, 2, 20), 8, dtype=kept, device=on)
        contexts = [Context(pool) for _ in range(2)]
        engine = TransformerEngine(pool)

        def step(run: Run, z: Tensor, action: Tensor, state: Tensor) -> Tensor:
            return fused.step(net, run, z, action, state) if net is fast else net.step(run, z, action, state)

        def made(which: list[int], time: int, z: list[Tensor]) -> list[Tensor]:
            calls = [
                Call((z[b].to(on), given[b, time, 0].to(on), given[b, time, 1].to(on)), (contexts[b],), 11, advance=1)
                for b in which
            ]
            (found,) = engine.call(step, FRAME, calls)
            return [nets.plain_norm(frame.cpu()) for frame in found]

        (early,) = made([0], 0, [z[0]])
        return torch.stack([early, *made([0, 1], 1, [early, z[1]])])

    assert error(frames(fast, DEVICE, dtype), frames(plain, "cpu", torch.float32)) < NET_BOUNDS[dtype]
