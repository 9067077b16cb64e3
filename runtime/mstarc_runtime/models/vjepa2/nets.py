"""The V-JEPA 2 networks as torch modules: video encoder, masked predictor, action-conditioned predictor.

All are pre-norm blocks with fused qkv, exact GELU and rotary positions over three axes (`rope`). A block attends through a
function, so the same weights run over dense batches [B, rows, width] and over the packed rows of a `Run` [ΣT, width].
Sources: the public V-JEPA 2 implementation and the HF checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mstarc_runtime.engines.component import Run
from mstarc_runtime.models.vjepa2.config import REPR_EPS, AcConfig, EncoderConfig, MaskedConfig, Stack
from mstarc_runtime.models.vjepa2.rope import Rotation, rotate, rotation, token_positions

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v [..., rows, heads, head_dim]

MASK_INDEX = 1  # the mask token that the published predictor is run with
_TABLES_KEPT = 16  # position tables of different clip lengths


def plain_norm(x: Tensor) -> Tensor:
    """Layer norm without affine over the last dim, in f32: what features pass before they are used as context."""
    if x.is_cuda:
        from mstarc_runtime.models.vjepa2 import fused  # triton is there where CUDA is

        return fused.plain_norm(x.contiguous(), REPR_EPS)
    return F.layer_norm(x.float(), x.shape[-1:], eps=REPR_EPS)


def pick(x: Tensor, ids: Tensor) -> Tensor:
    """Rows `ids` [B, K] of x [B, N, D] -> [B, K, D]."""
    return x.gather(1, ids[..., None].expand(-1, -1, x.shape[-1]))


def dense(mask: Tensor | None = None) -> Attend:
    """Attention inside a dense batch; `mask` [rows, rows] is true where a row may look."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(-3, -2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(-3, -2)

    return attend


class Block(nn.Module):
    """One pre-norm block; how it attends is given."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.heads = stack.heads
        self.norm1 = nn.LayerNorm(stack.width, eps=stack.eps)
        self.qkv = nn.Linear(stack.width, 3 * stack.width, bias=stack.qkv_bias)
        self.proj = nn.Linear(stack.width, stack.width)
        self.norm2 = nn.LayerNorm(stack.width, eps=stack.eps)
        self.fc1 = nn.Linear(stack.width, stack.ffn)
        self.fc2 = nn.Linear(stack.ffn, stack.width)

    def forward(self, x: Tensor, layer: int, turn: Rotation, attend: Attend) -> Tensor:
        """[..., rows, width] -> the same."""
        qkv: Tensor = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        q, k = rotate(qkv[..., :2, :, :], turn).unbind(-3)
        x = x + self.proj(attend(layer, q, k, qkv[..., 2, :, :]).flatten(-2))
        grown: Tensor = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x + grown


class StackNet(nn.Module):
    """Blocks and the norm after them: what the three networks share."""

    grid: int  # rows and columns of tokens of a frame

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.head_dim = stack.head_dim
        self.blocks = nn.ModuleList(Block(stack) for _ in range(stack.depth))
        self.norm = nn.LayerNorm(stack.width, eps=stack.eps)

    def through(self, x: Tensor, turn: Rotation, attend: Attend) -> Tensor:
        """[..., rows, width] -> the same, before the norm."""
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, turn, attend)
        return x


class PatchEmbedding(nn.Module):
    """Tubelets as tokens. The kernel is the stride, so the convolution is a product of unfolded pixels."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.tubelet, self.patch = config.tubelet, config.patch
        shape = (config.stack.width, config.channels, config.tubelet, config.patch, config.patch)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(config.stack.width))

    def forward(self, video: Tensor) -> Tensor:
        """[B, T, C, H, W] -> [B, T/tubelet · rows · columns, width]; frames that fill no tubelet are left out."""
        batch, frames, channels, height, width = video.shape
        tubelets, rows, columns = frames // self.tubelet, height // self.patch, width // self.patch
        whole = video[:, : tubelets * self.tubelet].to(self.weight.dtype)
        parts = whole.reshape(batch, tubelets, self.tubelet, channels, rows, self.patch, columns, self.patch)
        # B, tubelets, in tubelet, C, rows, in row, columns, in column -> tokens x pixels in the order of the weight
        pixels = parts.permute(0, 1, 4, 6, 3, 2, 5, 7).flatten(4).flatten(1, 3)
        return F.linear(pixels, self.weight.flatten(1), self.bias)


class EncoderNet(StackNet):
    """Video [B, T, C, H, W] -> features [B, N, width]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config.stack)
        self.grid, self.tubelet = config.grid, config.tubelet
        self.patch = PatchEmbedding(config)
        self._tables: dict[tuple[int, torch.device], Rotation] = {}

    def embed(self, video: Tensor) -> Tensor:
        """Normalised pixels [B, T, C, H, W] -> tokens [B, N, width]; a video shorter than a tubelet is repeated to fill it."""
        if video.shape[1] < self.tubelet:
            video = video.repeat(1, self.tubelet, 1, 1, 1)
        tokens: Tensor = self.patch(video)
        return tokens

    def forward(self, video: Tensor) -> Tensor:
        """[B, T, C, H, W] -> features [B, N, width] after the final norm."""
        x = self.embed(video)
        if x.is_cuda:
            from mstarc_runtime.models.vjepa2 import fused

            return fused.features(self, x)
        features: Tensor = self.norm(self.through(x, self._table(x.shape[1], x.device), dense()))
        return features

    def _table(self, tokens: int, device: torch.device) -> Rotation:
        key = (tokens, device)
        if key not in self._tables:
            if len(self._tables) >= _TABLES_KEPT:
                self._tables.clear()
            self._tables[key] = rotation(
                *token_positions(torch.arange(tokens, device=device), self.grid), self.head_dim
            )
        return self._tables[key]


class MaskedPredictorNet(StackNet):
    """Features at some positions -> features at others."""

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__(config.stack)
        self.grid = config.grid
        self.embed = nn.Linear(config.embed_dim, config.stack.width)
        self.mask_tokens = nn.Parameter(torch.empty(config.mask_tokens, 1, 1, config.stack.width))
        self.out = nn.Linear(config.stack.width, config.embed_dim)

    def forward(self, context: Tensor, at: Tensor, targets: Tensor) -> Tensor:
        """Features [B, Nc, D] at token positions `at` [B, Nc] -> predicted features at `targets` [B, Nt], [B, Nt, D].

        Attention has no mask and positions are explicit, so the order of the tokens does not matter and nothing is sorted.
        """
        mask = self.mask_tokens[MASK_INDEX % len(self.mask_tokens)].expand(*targets.shape, -1)
        x = torch.cat([self.embed(context.to(mask.dtype)), mask], dim=1)
        turn = rotation(*token_positions(torch.cat([at, targets], dim=1), self.grid), self.head_dim)
        x = self.through(x, turn, dense())[:, at.shape[1] :]
        predicted: Tensor = self.out(self.norm(x))
        return predicted


class AcPredictorNet(StackNet):
    """Rows of a frame: action, pose, then the frame's tokens. All have the frame's index as their time; the first two no place."""

    def __init__(self, config: AcConfig) -> None:
        super().__init__(config.stack)
        self.grid, self.rows = config.grid, config.rows
        self.embed = nn.Linear(config.embed_dim, config.stack.width)
        self.action = nn.Linear(config.action_dim, config.stack.width)
        self.state = nn.Linear(config.action_dim, config.stack.width)
        self.out = nn.Linear(config.stack.width, config.embed_dim)

    def tokens(self, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
        """z [..., n, D], actions and states [..., A] of frames -> rows [..., n + 2, width]."""
        dtype = self.embed.weight.dtype
        action, state = self.action(actions.to(dtype)), self.state(states.to(dtype))
        return torch.cat([action[..., None, :], state[..., None, :], self.embed(z.to(dtype))], dim=-2)

    def turn(self, times: Tensor) -> Rotation:
        """Tables for the rows of frames at `times` [...]: [..., n + 2, 1, 1, head_dim]."""
        _, row, column = token_positions(torch.arange(self.rows - 2, device=times.device), self.grid)
        return rotation(times[..., None], F.pad(row, (2, 0)), F.pad(column, (2, 0)), self.head_dim)

    def head(self, x: Tensor) -> Tensor:
        """Rows [..., n + 2, width] -> the next frame's features [..., n, D], not layer-normed."""
        predicted: Tensor = self.out(self.norm(x[..., 2:, :]))
        return predicted

    def forward(self, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
        """All frames in one pass: z [B, T, n, D], actions, states [B, T, A] -> raw predictions of frames 1..T, [B, T, n, D]."""
        frames = z.shape[1]
        x = self.tokens(z, actions, states).flatten(1, 2)
        times = torch.arange(frames, device=z.device)
        cos, sin = (table.flatten(0, 1) for table in self.turn(times))
        frame = times.repeat_interleave(self.rows)
        x = self.through(x, (cos, sin), dense(frame[:, None] >= frame[None] if frames > 1 else None))
        return self.head(x.view(len(z), frames, self.rows, -1))

    def dream(self, z: Tensor, actions: Tensor, states: Tensor) -> Tensor:
        """Rollouts from frames z [B, n, D] by actions and states [B, H, A]: the frames they imagine, layer-normed [B, H, n, D].

        Keys and values of earlier frames are kept in a cache of this call.
        """
        held: dict[int, tuple[Tensor, Tensor]] = {}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if layer in held:
                k, v = (torch.cat(pair, dim=1) for pair in zip(held[layer], (k, v), strict=True))
            held[layer] = (k, v)
            return dense()(layer, q, k, v)

        path = []
        for step in range(actions.shape[1]):
            cos, sin = (table.flatten(0, 1) for table in self.turn(torch.tensor([step], device=z.device)))
            z = plain_norm(
                self.head(self.through(self.tokens(z, actions[:, step], states[:, step]), (cos, sin), attend))
            )
            path.append(z)
        return torch.stack(path, dim=1)

    def step(self, run: Run, z: Tensor, action: Tensor, state: Tensor) -> Tensor:
        """One frame of each request over its cached ones: z [B, n, D], action, state [B, A] -> raw next frames [B, n, D]."""
        if z.is_cuda:
            from mstarc_runtime.models.vjepa2 import fused

            return fused.step(self, run, z, action, state)
        batch = len(z)
        times = run.positions.view(batch, self.rows)[:, 0]
        cos, sin = (table.flatten(0, 1) for table in self.turn(times))
        x = self.through(self.tokens(z, action, state).flatten(0, 1), (cos, sin), run.attend)
        return self.head(x.view(batch, self.rows, -1))
