"""The pi0.5 networks as torch modules: the SigLIP tower with its connector, the Gemma language model and the action expert.

Weights are fused for few, large products: qkv, gate with up, and the modulations of all norms of the expert. A Gemma norm
multiplies by (1 + weight); `weights` stores the sum. Sources: the public openpi implementation and the checkpoints' key names.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mstarc_runtime.engines.component import Run
from mstarc_runtime.models.pi05.config import PolicyConfig, VisionConfig

# ------------------------------------------------------------------------------------------------------------------ vision


class VisionBlock(nn.Module):
    """One pre-norm block of the tower."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1 = nn.LayerNorm(width, eps=config.eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=config.eps)
        self.fc1 = nn.Linear(width, config.ffn)
        self.fc2 = nn.Linear(config.ffn, width)

    def forward(self, x: Tensor) -> Tensor:
        """[C, tokens, width] -> the same."""
        x = x + self.mix(self.norm1(x))
        return x + self.feed(self.norm2(x))

    def mix(self, x: Tensor) -> Tensor:
        """Attention of normed tokens [C, tokens, width]; those of one image see each other."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return mixed

    def feed(self, x: Tensor) -> Tensor:
        """The feed-forward of normed tokens."""
        grown: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return grown


class Patches(nn.Module):
    """Patches as tokens. The kernel is the stride, so the convolution is a product of unfolded pixels."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.size = config.patch
        self.weight = nn.Parameter(torch.empty(config.width, 3, config.patch, config.patch))
        self.bias = nn.Parameter(torch.empty(config.width))

    def forward(self, images: Tensor) -> Tensor:
        """Pixels [C, 3, size, size] -> [C, tokens, width], row by row."""
        parts = images.to(self.weight.dtype).unfold(2, self.size, self.size).unfold(3, self.size, self.size)
        pixels = parts.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        return F.linear(pixels, self.weight.flatten(1), self.bias)


class VisionNet(nn.Module):
    """The tower and its connector: pixels f32 [C, 3, size, size] -> rows [C, tokens, out]."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch = Patches(config)
        self.position = nn.Parameter(torch.empty(config.tokens, config.width))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.eps)
        self.connector = nn.Linear(config.width, config.out)

    def embedded(self, images: Tensor) -> Tensor:
        """Pixels [C, 3, size, size] -> tokens [C, tokens, width]: patches with their positions."""
        tokens: Tensor = self.patch(images) + self.position
        return tokens.to(self.norm.weight.dtype)

    def hidden(self, images: Tensor) -> Tensor:
        """Pixels [C, 3, size, size] in [-1, 1] -> [C, tokens, width] after the last norm."""
        if images.is_cuda:
            from mstarc_runtime.models.pi05 import fused  # needs triton, which is there where CUDA is

            return fused.hidden(self, images)
        x = self.embedded(images)
        for block in self.blocks:
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, images: Tensor) -> Tensor:
        """Pixels [C, 3, size, size] -> rows of the language model's width [C, tokens, out]."""
        rows: Tensor = self.connector(self.hidden(images))
        return rows


# ------------------------------------------------------------------------------------------------------- language and expert


class Layer(nn.Module):
    """The matrices of one Gemma layer, the language model's or the expert's; the norms belong to who runs it."""

    def __init__(self, config: PolicyConfig, width: int, ffn: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.qkv = nn.Linear(width, (config.heads + 2 * config.kv_heads) * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)

    def mix(self, run: Run, layer: int, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Attention of normed rows [..., width] (ΣT in all) -> the same shape."""
        qkv: Tensor = self.qkv(x.flatten(0, -2)).unflatten(-1, (-1, self.head_dim))
        turned = self.heads + self.kv_heads
        qk = rotate(qkv[:, :turned], turn)
        mixed = run.attend(layer, qk[:, : self.heads], qk[:, self.heads :], qkv[:, turned:])
        summed: Tensor = self.out(mixed.flatten(1))
        return summed.view(x.shape)

    def store(self, run: Run, layer: int, x: Tensor, turn: tuple[Tensor, Tensor]) -> None:
        """Keys and values of normed rows [ΣT, width] into the run's context, without attention."""
        kv = F.linear(x, self.qkv.weight[self.heads * self.head_dim :]).view(len(x), -1, self.head_dim)
        run.write(layer, rotate(kv[:, : self.kv_heads], turn), kv[:, self.kv_heads :])

    def feed(self, x: Tensor) -> Tensor:
        """The gated feed-forward of normed rows."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        fed: Tensor = self.down(F.gelu(gate, approximate="tanh") * up)
        return fed


class LanguageLayer(Layer):
    """One Gemma layer with its two norms."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__(config, config.width, config.ffn)
        self.eps = config.eps
        self.norm1 = nn.Parameter(torch.empty(config.width))
        self.norm2 = nn.Parameter(torch.empty(config.width))

    def forward(self, run: Run, layer: int, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Rows [ΣT, width] -> the same."""
        x = x + self.mix(run, layer, scaled(x, self.norm1, self.eps), turn)
        return x + self.feed(scaled(x, self.norm2, self.eps))


class LanguageNet(nn.Module):
    """The language model, as far as it is read: rows [ΣT, width] -> keys and values of every layer."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.embed = nn.Parameter(torch.empty(config.vocab, config.width))
        self.layers = nn.ModuleList(LanguageLayer(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.empty(config.width))

    def read(self, run: Run, x: Tensor, frequencies: Tensor) -> None:
        """Rows [ΣT, width] -> keys and values of all layers. Of the last layer nothing else is needed, so nothing else runs.

        On a GPU the rows are overwritten.
        """
        if x.is_cuda:
            from mstarc_runtime.models.pi05 import fused

            fused.read(self, run, x, frequencies)
            return
        turn = rotation(run.positions, frequencies)
        *layers, last = self.layers
        for layer, each in enumerate(layers):
            x = each(run, layer, x, turn)
        assert isinstance(last, LanguageLayer)
        last.store(run, len(layers), scaled(x, last.norm1, self.eps), turn)

    def hidden(self, run: Run, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """As `read`, but through the whole last layer and the norm after it: [ΣT, width]."""
        for layer, each in enumerate(self.layers):
            x = each(run, layer, x, turn)
        return scaled(x, self.norm, self.eps)


class ExpertNet(nn.Module):
    """The action expert. Its norms have no weights: scale, shift and gate of each are a linear map of the time condition.

    `modulation` holds the maps of all norms: of every layer the one before attention and the one before the feed-forward, then
    the last. The time of a flow step is the same for all layers, so they are one product.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.expert_width
        self.eps = config.eps
        self.layers = nn.ModuleList(Layer(config, width, config.expert_ffn) for _ in range(config.layers))
        self.modulation = nn.Linear(width, (2 * config.layers + 1) * 3 * width)
        self.action_in = nn.Linear(config.action_dim, width)
        self.action_out = nn.Linear(width, config.action_dim)
        self.time_in = nn.Linear(width, width)
        self.time_out = nn.Linear(width, width)

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrices, and of the rows between the layers."""
        first = self.layers[0]
        assert isinstance(first, Layer)
        return first.qkv.weight.dtype

    def condition(self, waves: Tensor) -> Tensor:
        """Sines and cosines of the time [B, width] -> the condition of the norms [B, width]."""
        return F.silu(self.time_out(F.silu(self.time_in(waves))))

    def velocity(self, run: Run, x: Tensor, waves: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Noisy actions [B, horizon, action_dim] -> velocities of the same shape, f32."""
        parts = self.modulation(self.condition(waves)).view(len(x), -1, 3, 1, waves.shape[-1])
        rows: Tensor = self.action_in(x.float()).to(self.dtype)
        for layer, each in enumerate(self.layers):
            assert isinstance(each, Layer)
            normed, gate = self._modulated(rows, parts[:, 2 * layer])
            rows = rows + gate * each.mix(run, layer, normed, turn)
            normed, gate = self._modulated(rows, parts[:, 2 * layer + 1])
            rows = rows + gate * each.feed(normed)
        velocities: Tensor = self.action_out(self._modulated(rows, parts[:, -1])[0].float())
        return velocities

    def _modulated(self, x: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """RMS norm of x [B, rows, width], scaled and shifted by `parts` [B, 3, 1, width], and the gate of the sublayer."""
        scale, shift, gate = parts.unbind(1)
        normed = F.rms_norm(x.float(), x.shape[-1:], eps=self.eps)
        return torch.addcmul(shift, normed, 1 + scale).to(x.dtype), gate.to(x.dtype)


class PolicyNet(nn.Module):
    """Both halves; their layers share one cache."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.language = LanguageNet(config)
        self.expert = ExpertNet(config)


# --------------------------------------------------------------------------------------------------------------- positions


def scaled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in f32: x / sqrt(mean(x²) + eps) · weight."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def inverse_frequencies(config: PolicyConfig, device: str) -> Tensor:
    """Rotary frequencies f32 [head_dim / 2]: theta^(-2i / head_dim)."""
    exponents = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    return config.rope_theta**-exponents


def rotation(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines of rotary positions [ΣT], each [ΣT, 1, head_dim]."""
    angle = positions[:, None, None].float() * frequencies
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions: pairs are half a head apart; the sines are negative in the first half."""
    cos, sin = turn
    half = x.shape[-1] // 2
    swapped = torch.cat([x[..., half:], x[..., :half]], dim=-1)
    return torch.addcmul(x * cos, swapped.to(cos.dtype), sin).to(x.dtype)


def angular_speeds(config: PolicyConfig, device: str) -> Tensor:
    """2π / period of the time embedding, f64 [expert_width / 2]; periods run geometrically from min to max."""
    steps = torch.linspace(0, 1, config.expert_width // 2, dtype=torch.float64, device=device)
    return 2 * math.pi / (config.min_period * (config.max_period / config.min_period) ** steps)


def time_waves(t: Tensor, speeds: Tensor) -> Tensor:
    """Times [B], taken as f32 -> sines, then cosines, f32 [B, width]. The angles are f64: the shortest period needs it."""
    angle = t.float().double()[:, None] * speeds
    return torch.cat([angle.sin(), angle.cos()], dim=-1).float()
