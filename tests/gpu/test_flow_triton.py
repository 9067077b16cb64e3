"""The kernels of a flow step against torch in float64, and the maps kept by time against the nets that make them."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gpu.kernels import device_for_kernels, dtypes_for_kernels
from tests.gpu.test_fused_nets import BOUNDS, error

DEVICE = device_for_kernels()
from mstarc_runtime.models.pi05 import flow_triton as kernels  # noqa: E402
from mstarc_runtime.models.pi05 import nets, times_triton  # noqa: E402

pytestmark = pytest.mark.gpu
EPS = 1e-6


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize(("rows", "width", "ffn"), [(5, 48, 40), (60, 256, 96), (70, 48, 40)])
def test_gated_products(rows: int, width: int, ffn: int, dtype: torch.dtype) -> None:
    x, weight = draw(rows, width, dtype=dtype), draw(2 * ffn, width, dtype=dtype, seed=1) / width**0.5
    gate, up = F.linear(x.double(), weight.double()).chunk(2, -1)
    assert error(kernels.gated(x, weight), F.gelu(gate, approximate="tanh") * up) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize(("rows", "width", "half"), [(5, 48, 8), (60, 128, 20), (70, 48, 8)])
def test_products_that_are_turned(rows: int, width: int, half: int, dtype: torch.dtype) -> None:
    """Three heads of four are turned; a head is wider than a tile, or narrower."""
    x, weight = draw(rows, width, dtype=dtype), draw(4 * 2 * half, width, dtype=dtype, seed=1) / width**0.5
    positions = torch.arange(rows, device=DEVICE) + 900
    frequencies = 10_000.0 ** -(torch.arange(half, device=DEVICE) / half)
    cos, sin = kernels.angles(positions, frequencies)
    angle = positions[:, None].double() * frequencies.double()
    assert error(cos, angle.cos()) < 1e-4  # of angles that are f32
    plain = F.linear(x.double(), weight.double()).view(rows, 4, 2 * half)
    turn = nets.rotation(positions, frequencies)
    expected = torch.cat([nets.rotate(plain[:, :3], (turn[0].double(), turn[1].double())), plain[:, 3:]], 1)
    assert error(kernels.turned(x, weight, 3, cos, sin), expected) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
@pytest.mark.parametrize(("rows", "inside", "width"), [(5, 40, 48), (60, 600, 40), (3, 1024, 64), (70, 40, 48)])
def test_partial_sums(rows: int, inside: int, width: int, dtype: torch.dtype) -> None:
    x, weight = draw(rows, inside, dtype=dtype), draw(width, inside, dtype=dtype, seed=1)
    found = kernels.partial(x, weight)
    bound = 2e-6 if rows <= kernels.TILE else BOUNDS[dtype]  # sums of few rows are f32 whatever the dtype
    assert error(found.double().sum(0), F.linear(x.double(), weight.double())) < bound


def parts(norms: int, width: int) -> tuple[Tensor, Tensor]:
    """Maps of five times, and which two of them a batch of two has."""
    return draw(5, norms, 3, width, seed=3), torch.tensor([4, 1], dtype=torch.int32, device=DEVICE)


def modulated(x: Tensor, held: Tensor) -> Tensor:
    """x [B, rows, width] by scale and shift [B, 3, width]."""
    scale, shift, _ = held.double()[:, :, None].unbind(1)
    return F.rms_norm(x, x.shape[-1:], eps=EPS) * (1 + scale) + shift


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_norms_by_time(dtype: torch.dtype) -> None:
    held, slot = parts(4, 48)
    x, y = draw(10, 48, dtype=dtype), draw(3, 10, 48, seed=1)
    mine = held[slot.long()]
    whole = x.double().view(2, 5, 48) + mine[:, 1, 2, None].double() * y.double().sum(0).view(2, 5, 48)
    found = kernels.normed(x, y, held, slot, 2, EPS)
    assert error(x.view(2, 5, 48), whole) < BOUNDS[dtype]
    assert error(found.view(2, 5, 48), modulated(whole, mine[:, 2])) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", dtypes_for_kernels(), ids=str)
def test_the_ends_of_a_step(dtype: torch.dtype) -> None:
    held, slot = parts(3, 48)
    mine = held[slot.long()]
    actions, into, bias = draw(2, 5, 11), draw(48, 11, seed=1), draw(48, seed=2)
    x, entered = kernels.opened(actions, into.T.contiguous(), bias, held, slot, EPS, dtype)
    rows = F.linear(actions.double(), into.double(), bias.double())
    assert error(x.view(2, 5, 48), rows) < BOUNDS[dtype]
    assert error(entered.view(2, 5, 48), modulated(x.view(2, 5, 48).double(), mine[:, 0])) < BOUNDS[dtype]
    y, back, bias = draw(2, 10, 48, seed=4), draw(11, 48, seed=5), draw(11, seed=6)
    whole = x.double().view(2, 5, 48) + mine[:, 1, 2, None].double() * y.double().sum(0).view(2, 5, 48)
    expected = F.linear(modulated(whole, mine[:, 2]), back.double(), bias.double())
    found = kernels.closed(x, y, held, slot, 2, EPS, back, bias)
    assert error(found.view(2, 5, 11), expected) < BOUNDS[dtype]


Made = tuple[times_triton.Times, list[nn.Linear], Tensor]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Four times are kept."""
    monkeypatch.setattr(times_triton, "KEPT", 4)
    torch.manual_seed(3)
    maps = [nn.Linear(32, count).to(DEVICE).requires_grad_(False) for count in (32, 32, 5 * 3 * 32)]
    speeds = 2 * math.pi / 4e-3 / 1000.0 ** torch.linspace(0, 1, 16, dtype=torch.float64, device=DEVICE)
    time_in, time_out, modulation = maps
    return times_triton.Times(time_in, time_out, modulation, speeds), maps, speeds


def mapped(maps: list[nn.Linear], t: Tensor, speeds: Tensor) -> Tensor:
    found = nets.time_waves(t, speeds).double()
    for number, each in enumerate(maps):
        found = F.linear(found, each.weight.double(), each.bias.double())
        found = F.silu(found) if number < 2 else found
    return found.view(len(t), 5, 3, 32)


def test_times_are_kept(made: Made) -> None:
    times, maps, speeds = made
    # (asked for, which of them are there)
    for asked in ([0.5], [0.9, 0.5], [0.5, 0.5], [1.0, 0.3, 0.3], [0.7, 0.9, 0.8, 0.1], [0.8, 0.7, 0.9, 0.1], [0.2]):
        t = torch.tensor(asked, device=DEVICE)
        slot = times.slots(t)
        assert error(times.parts[slot.long()], mapped(maps, t, speeds)) < 2e-6
        assert len(set(slot.tolist())) == len(set(asked))


def test_a_time_that_is_there_is_not_computed_again(made: Made) -> None:
    times, _, _ = made
    first = int(times.slots(torch.tensor([0.5], device=DEVICE)))
    times.parts[first] = 7.0
    for other in (0.1, 0.2, 0.3):  # three more have room
        times.slots(torch.tensor([other], device=DEVICE))
    assert int(times.slots(torch.tensor([0.5], device=DEVICE))) == first
    assert bool((times.parts[first] == 7).all())
    times.slots(torch.tensor([0.4], device=DEVICE))  # 0.1 goes, which was used least lately
    assert bool((times.parts[first] == 7).all())
    again = times.slots(torch.tensor([0.2, 0.3, 0.4, 0.5], device=DEVICE))
    assert bool((times.parts[int(again[3])] == 7).all())


def test_more_times_than_are_kept_are_refused(made: Made) -> None:
    with pytest.raises(ValueError, match="at most 4"):
        made[0].slots(torch.zeros(5, device=DEVICE))
