"""The Whisper networks as torch modules whose parameter names are those of the HF layout (`model.encoder.*`, `model.decoder.*`).

Encoder: mel f32 [n_mels, 2·A] (or a batch of them) -> states f32 [A, d]. Decoder: packed rows of a `Run`. Pre-norm, exact GELU,
keys without bias, head tied to the token embeddings. Source: the Whisper paper and the public checkpoints.
"""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mstarc_runtime.engines.component import Run
from mstarc_runtime.models.whisper.config import WhisperConfig

Net = TypeVar("Net", "EncoderNet", "DecoderNet")


class Table(nn.Module):
    """A row per id or position. Unlike nn.Embedding it draws no initial values: on the meta device that costs a second of imports."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Projections(nn.Module):
    """q, k, v and output projections of one attention; heads are split off as a dim."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def query(self, x: Tensor) -> Tensor:
        """[..., T, d] -> [..., T, heads, head_dim]."""
        return self._split(self.q_proj(x))

    def key(self, x: Tensor) -> Tensor:
        return self._split(self.k_proj(x))

    def value(self, x: Tensor) -> Tensor:
        return self._split(self.v_proj(x))

    def out(self, x: Tensor) -> Tensor:
        """[..., T, heads, head_dim] -> [..., T, d]."""
        projected: Tensor = self.out_proj(x.flatten(-2))
        return projected

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)


class Layer(nn.Module):
    """Norms, self attention and feed-forward: what layers of both halves share. The halves differ in how they attend."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = Projections(width, heads)
        self.final_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, ffn)
        self.fc2 = nn.Linear(ffn, width)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The residual block after attention."""
        grown: Tensor = self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return x + grown


class EncoderLayer(Layer):
    """A layer of the encoder: every position sees every other."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, d] -> [..., T, d]; every position sees every other."""
        h = self.self_attn_layer_norm(x)
        q, k, v = (
            part.transpose(-3, -2) for part in (self.self_attn.query(h), self.self_attn.key(h), self.self_attn.value(h))
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(-3, -2)
        return self.feed_forward(x + self.self_attn.out(attended))


class EncoderNet(nn.Module):
    """mel f32 [n_mels, 2·A], or [B, n_mels, 2·A] -> states [A, d], or [B, A, d]."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.d_model
        self.conv1 = nn.Conv1d(config.n_mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.embed_positions = Table(config.source_positions, width)
        self.layers = nn.ModuleList(
            EncoderLayer(width, config.encoder_heads, config.encoder_ffn) for _ in range(config.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)

    def embed(self, mel: Tensor) -> Tensor:
        """Input of layer 0: both convolutions and the positions."""
        frames = F.gelu(self.conv2(F.gelu(self.conv1(mel))))
        return frames.transpose(-2, -1) + self.embed_positions.weight

    def forward(self, mel: Tensor) -> Tensor:
        # With a batch dim torch takes its fused attention kernel on a CPU; without one it is four times slower.
        x = self.embed(mel if mel.dim() == 3 else mel[None])
        for layer in self.layers:
            x = layer(x)
        states: Tensor = self.layer_norm(x)
        return states if mel.dim() == 3 else states[0]


class DecoderLayer(Layer):
    """A layer of the decoder, with attention to the heard states."""

    def __init__(self, width: int, heads: int, ffn: int) -> None:
        super().__init__(width, heads, ffn)
        self.encoder_attn_layer_norm = nn.LayerNorm(width)
        self.encoder_attn = Projections(width, heads)

    def forward(self, x: Tensor, run: Run, index: int) -> Tensor:
        """Packed [ΣT, d] -> [ΣT, d]; attention to own tokens and to the heard states goes through the run."""
        own, heard = self.self_attn, self.encoder_attn
        h = self.self_attn_layer_norm(x)
        x = x + own.out(run.attend(index, own.query(h), own.key(h), own.value(h)))
        h = self.encoder_attn_layer_norm(x)
        x = x + heard.out(run.cross(index, heard.query(h)))
        return self.feed_forward(x)


class DecoderNet(nn.Module):
    """Packed token ids [ΣT] -> hidden states [ΣT, d] -> logits."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        width = config.d_model
        self.embed_tokens = Table(config.vocab_size, width)
        self.embed_positions = Table(config.target_positions, width)
        self.layers = nn.ModuleList(
            DecoderLayer(width, config.decoder_heads, config.decoder_ffn) for _ in range(config.decoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width)

    def listen(self, run: Run, states: Tensor) -> None:
        """Write the cross-attention keys and values of packed encoder states [ΣA, d] to the op's context, per layer."""
        for index, layer in enumerate(self.layers):
            heard = cast(DecoderLayer, layer).encoder_attn
            run.write(index, heard.key(states), heard.value(states))

    def hidden(self, run: Run, ids: Tensor) -> Tensor:
        """Final hidden states of packed tokens: i64 [ΣT] -> [ΣT, d]."""
        x = self.embed_tokens(ids) + self.embed_positions(run.positions)
        for index, layer in enumerate(self.layers):
            x = layer(x, run, index)
        normed: Tensor = self.layer_norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied head: [N, d] -> [N, vocab]."""
        return F.linear(hidden, self.embed_tokens.weight)


def skeleton(net: type[Net], config: WhisperConfig) -> Net:
    """The net with names and shapes but no storage; the loader assigns the tensors."""
    with torch.device("meta"):
        return net(config)
