"""Attention of the tokens of images, which see each other and nothing else: on Hopper one kernel, `image_attend.cu`, else torch's."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from mstarc_runtime.engines.attend_triton import LOG2_E
from mstarc_runtime.models.cuda_program import Function, TensorMap, compiled, wgmma


class _Work(ctypes.Structure):
    """`Work` of the kernel."""

    _fields_ = [
        ("main", TensorMap), ("rest", TensorMap), ("out", ctypes.c_void_p), ("heads", ctypes.c_int), ("scale", ctypes.c_float),
        ("padding", ctypes.c_byte * 48),
    ]  # fmt: skip


def attend(qkv: Tensor, images: int, heads: int) -> Tensor:
    """Rows [images · tokens, 3 · heads · dim] of queries, keys and values -> softmax(q k / sqrt(dim)) v [images · tokens, heads · dim]."""
    rows, dim = len(qkv), qkv.shape[1] // (3 * heads)
    tokens = rows // images
    if not _takes(qkv, tokens, dim):
        q, k, v = qkv.view(images, tokens, 3, heads, dim).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, heads * dim)
    out, parts = qkv.new_empty(rows, heads * dim), qkv.view(rows, 3 * heads, dim)
    work = _Work(
        TensorMap.of(parts, 64, 1, 64), TensorMap.of(parts, 64, 1, 16), out.data_ptr(), heads, LOG2_E / dim**0.5
    )
    _function(qkv.device, tokens, dim).launch_early(images * heads * tokens // 64, 128, work)
    return out


def _takes(qkv: Tensor, tokens: int, dim: int) -> bool:
    """Whether the kernel is for such rows: heads of 72 or 80 dims, a few whole blocks of tokens."""
    if qkv.dtype != torch.bfloat16 or not qkv.is_cuda or torch.cuda.get_device_capability(qkv.device) != (9, 0):
        return False
    return dim in (72, 80) and tokens in (64, 128, 192, 256)


@cache
def _function(device: torch.device, tokens: int, dim: int) -> Function:
    products = (
        wgmma("scores", tokens)
        + wgmma("mix", 64, held=True, turned=True)
        + wgmma("mix_rest", 16, held=True, turned=True)
    )
    shared = (2 * tokens + 64) * (128 + 32) + 1024
    with torch.cuda.device(device):
        image = compiled(Path(__file__).with_name("image_attend.cu"), {"TOKENS": tokens, "DIM": dim}, products)
        return Function(image, "attend", shared)
