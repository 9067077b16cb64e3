"""Layers that the nets of the voice share: matrices in int8 or f32, the depthwise block, the text encoder; and the loader.

Everything works on one sequence without a batch dim, [T, channels]. Tensor names are those of the ONNX file.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.hibari.onnxfile import Arrays

NORM_EPS = 1e-5


class Dense(nn.Module):
    """x @ weight + bias with weight [in, out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Buffer(torch.empty(inputs, outputs))
        self.bias = nn.Buffer(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


class Int8Dense(Dense):
    """x @ (step * weight) + bias where weight holds int8 values and x is quantised too, to 8 bits over its own range.

    This is ONNX's DynamicQuantizeLinear followed by MatMulInteger. The integers are held as f32: |a| <= 255, |w| <= 127 and at
    most 768 terms keep the sums of real data below 2**24, where f32 adds integers exactly, so the result depends neither on the
    order of the sum nor on threads. The whole sequence shares one range: cutting x into pieces changes the result.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.step = nn.Buffer(torch.empty(()))

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Integers (as f32, zero point taken off) of x, and the value of one of them."""
        low, high = torch.aminmax(x)
        low, high = low.clamp(max=0.0), high.clamp(min=0.0)
        step = (high - low) / 255.0
        step = torch.where(step > 0, step, torch.ones_like(step))
        zero = (-low / step).clamp(0.0, 255.0).round()
        return (x / step).round_().add_(zero).clamp_(0.0, 255.0).sub_(zero), step

    def product(self, integers: Tensor, step: Tensor) -> Tensor:
        return (integers @ self.weight).mul_(step * self.step).add_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(*self.quantise(x))


def gelu(x: Tensor) -> Tensor:
    """x (erf(x / sqrt 2) + 1) / 2 in the graph's order of operations, which rounds unlike `torch.nn.functional.gelu`."""
    return (x / math.sqrt(2.0)).erf_().add_(1.0).mul_(x).mul_(0.5)


class Depthwise(nn.Module):
    """Convolution of each channel over time with zeros beyond the ends, [T, channels] -> the same.

    Products are added tap by tap and the bias last: this gives the reference's sums bit for bit, where other orders round
    differently and so flip a few of the integers that the next matrix sees.
    """

    def __init__(self, channels: int, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.weight = nn.Buffer(torch.empty(channels, 1, width))
        self.bias = nn.Buffer(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        taps = self.weight[:, 0].t().contiguous()
        reach = self.dilation * (taps.shape[0] // 2)
        padded = F.pad(x, (0, 0, reach, reach))
        total = padded[: x.shape[0]] * taps[0]
        term = torch.empty_like(total)
        for k in range(1, taps.shape[0]):
            torch.mul(padded[k * self.dilation :][: x.shape[0]], taps[k], out=term)
            total += term
        return total.add_(self.bias)


class Block(nn.Module):
    """x + gamma * pw2(gelu(pw1(norm(dw(x))))): a ConvNeXt block over time."""

    def __init__(self, channels: int, hidden: int, width: int, dilation: int = 1) -> None:
        super().__init__()
        self.dw = Depthwise(channels, width, dilation)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)
        self.pw1 = Int8Dense(channels, hidden)
        self.pw2 = Int8Dense(hidden, channels)
        self.gamma = nn.Buffer(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        update: Tensor = self.pw2(gelu(self.pw1(self.norm(self.dw(x)))))
        return x + self.gamma * update


class SelfAttention(nn.Module):
    """Unmasked attention without positions; q, k, v from one matrix."""

    def __init__(self, channels: int, heads: int, dense: type[Dense]) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj = dense(channels, 3 * channels)
        self.out_proj = dense(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        length, channels = x.shape
        q, k, v = self.in_proj(x).view(length, 3, self.heads, -1).permute(1, 2, 0, 3)
        weights = ((q @ k.transpose(1, 2)) / (channels // self.heads) ** 0.5).softmax(-1)
        out: Tensor = self.out_proj((weights @ v).transpose(0, 1).reshape(length, channels))
        return out


class EncoderLayer(nn.Module):
    """Transformer layer with the norms first."""

    def __init__(self, channels: int, hidden: int, heads: int, dense: type[Dense]) -> None:
        super().__init__()
        self.self_attn = SelfAttention(channels, heads, dense)
        self.linear1 = dense(channels, hidden)
        self.linear2 = dense(hidden, channels)
        self.norm1 = nn.LayerNorm(channels, eps=NORM_EPS)
        self.norm2 = nn.LayerNorm(channels, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.norm1(x))
        update: Tensor = self.linear2(gelu(self.linear1(self.norm2(x))))
        return x + update


class TextEncoder(nn.Module):
    """Phoneme ids i64 [P] -> [P, channels]: two depthwise blocks, then one transformer layer applied `rounds` times."""

    def __init__(self, vocab: int, channels: int, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds
        self.emb = nn.Embedding(vocab, channels)
        self.convs = nn.ModuleList(Block(channels, 2 * channels, 5) for _ in range(2))
        self.attn = EncoderLayer(channels, 2 * channels, 2, Int8Dense)
        self.norm = nn.LayerNorm(channels, eps=NORM_EPS)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        for block in self.convs:
            x = block(x)
        for _ in range(self.rounds):
            x = self.attn(x)
        out: Tensor = self.norm(x)
        return out


def fill(module: nn.Module, weights: Arrays, prefix: str, path: Path) -> None:
    """Copy the tensors whose names begin with `prefix` into the module; every one must fit and none be left over.

    Raises `LoadError` naming the tensor.
    """
    given = {_module_name(name.removeprefix(prefix)): name for name in weights if name.startswith(prefix)}
    for name, target in module.state_dict().items():
        source = given.pop(name, None)
        if source is None:
            raise LoadError(f"{path}: tensor `{prefix}{name}` is missing")
        array = weights[source]
        if tuple(array.shape) != tuple(target.shape):
            raise LoadError(f"{path}: tensor `{source}` has shape {list(array.shape)}, expected {list(target.shape)}")
        target.copy_(torch.tensor(array))
    if given:
        raise LoadError(f"{path}: tensor `{min(given.values())}` is not a part of this model")
    module.requires_grad_(False).eval()


def _module_name(name: str) -> str:
    """The fused projection is named `in_proj_weight`, without a module of its own."""
    return name.replace("in_proj_", "in_proj.")
