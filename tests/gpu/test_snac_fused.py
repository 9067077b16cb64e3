"""The decoder of SNAC with fused kernels against the same decoder in float64 on the CPU, and the kernels against torch."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.models.orpheus import fused  # noqa: E402
from mstarc_runtime.models.orpheus.config import SnacConfig  # noqa: E402
from mstarc_runtime.models.orpheus.nets import SnacDecoder, Snake  # noqa: E402

pytestmark = pytest.mark.gpu


def error(result: torch.Tensor, expected: torch.Tensor) -> float:
    result, expected = result.detach(), expected.detach()
    return float((result.cpu().double() - expected.cpu().double()).norm() / expected.cpu().double().norm())


@pytest.mark.parametrize("steps", [5, 700])
@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_snake_convolution_snake(steps: int, dilation: int) -> None:
    x = torch.randn(2, 6, steps + 4, device=DEVICE)[:, :, 2:-2]  # steps are dense, rows are not
    one, two = Snake(6), Snake(6)
    for snake in (one, two):
        snake.alpha.data = torch.rand(1, 6, 1) * 9 + 0.5
    weight, bias = torch.randn(6, 1, 7), torch.randn(6)
    padded = F.conv1d(one.double()(x.cpu().double()), weight.double(), bias.double(), 1, 3 * dilation, dilation, 6)
    expected = two.double()(padded)
    alphas = [snake.alpha.data.float().to(DEVICE) for snake in (one, two)]
    result = fused.snake_conv_snake(x, alphas[0], weight.to(DEVICE), bias.to(DEVICE), alphas[1], dilation)
    assert error(result, expected) < 1e-6
    assert error(fused.snake(x, alphas[0]), one(x.cpu().double())) < 1e-6


@pytest.mark.parametrize("rate", [2, 3, 8])
def test_transposed_convolution_from_products(rate: int) -> None:
    x, weight, bias = torch.randn(2, 5, 9), torch.randn(5, 6, 2 * rate), torch.randn(6)
    expected = F.conv_transpose1d(x.double(), weight.double(), bias.double(), rate)
    products = F.conv1d(x.double(), weight.double().permute(1, 2, 0).flatten(0, 1)[..., None]).float().to(DEVICE)
    for first, steps in ((0, expected.shape[2]), (rate + 1, 3 * rate), (7 * rate, 2 * rate)):
        result = fused.fold(products, bias.to(DEVICE), rate, first, steps)
        assert error(result, expected[:, :, first : first + steps]) < 1e-6


def test_sum_with_a_bias() -> None:
    x, z, bias = torch.randn(2, 6, 1300, device=DEVICE)[:, :, 3:-4], torch.randn(2, 6, 1293), torch.randn(6)
    expected = x.cpu().double() + z.double() + bias.double()[:, None]
    assert error(fused.add(x, z.to(DEVICE), bias.to(DEVICE)), expected) < 1e-6


@pytest.mark.skipif(INTERPRETED, reason="the decoder takes the kernels on a GPU only")
@pytest.mark.parametrize("heard", [None, (2048, 4096), (0, 2048)])
def test_the_decoder(heard: tuple[int, int] | None) -> None:
    torch.manual_seed(0)
    config = SnacConfig(96, 128, (8, 8, 4, 2), 64, 8, (4, 2, 1), 24000)
    net = SnacDecoder(config).eval()
    codes = [torch.randint(0, 64, (3, 4 * count)) for count in config.codes_per_frame]
    noise = [torch.randn(3, 4 * steps) for steps in config.noise_lengths]
    with torch.inference_mode():
        expected = copy.deepcopy(net).double()(codes, [part.double() for part in noise], heard)
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False
        try:
            result = net.to(DEVICE)([c.to(DEVICE) for c in codes], [part.to(DEVICE) for part in noise], heard)
        finally:
            torch.backends.cudnn.allow_tf32 = before
    assert error(result, expected) < 1e-5
