"""Attention among the tokens of images against torch in f32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.gpu.kernels import device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.models.pi05.image_attend import attend  # noqa: E402

pytestmark = pytest.mark.gpu
SIZES = [
    (3, 256, 16, 72),
    (2, 64, 3, 80),
    (1, 192, 2, 72),
    (2, 50, 2, 72),
    (2, 64, 2, 24),
]  # images, tokens, heads, dim


def expected(qkv: Tensor, images: int, heads: int) -> Tensor:
    q, k, v = qkv.float().unflatten(1, (3, heads, -1)).unflatten(0, (images, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).flatten(0, 1)


@pytest.mark.parametrize(("images", "tokens", "heads", "dim"), SIZES)
@pytest.mark.parametrize("sharp", [1.0, 6.0])
def test_image_attention(images: int, tokens: int, heads: int, dim: int, sharp: float) -> None:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    qkv = (torch.randn(images * tokens, 3 * heads * dim, device=DEVICE) * sharp).to(dtype)
    found, wanted = attend(qkv, images, heads), expected(qkv, images, heads)
    assert (found.float() - wanted).norm() < 6e-3 * wanted.norm()
