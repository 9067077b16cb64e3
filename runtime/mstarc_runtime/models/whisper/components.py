"""The components of a Whisper spec: `Encoder` (stateless, op encode) and `Scribe` (transformer, ops listen, read, step)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint, Run
from mstarc_runtime.models.whisper.config import WhisperConfig, config_values, read_agreeing
from mstarc_runtime.models.whisper.nets import DecoderNet, EncoderNet, skeleton
from mstarc_runtime.models.whisper.weights import tensors
from mstarc_runtime.weights import Fit, fill, fit_of


class Encoder:
    """`encode(mel: f32[n_mels, 2·A]) -> states: f32[A, d]`, one request or (with `batch stack`) several on dim 0."""

    def __init__(self, net: EncoderNet, config: WhisperConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker; see `config.WhisperConfig`."""
        return config_values(checkpoint, config)

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return _fit(skeleton(EncoderNet, read_agreeing(checkpoint, config)), checkpoint)

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Encoder:
        """Weights of the encoder half, in f32. Raises LoadError."""
        facts = read_agreeing(checkpoint, config)
        net = skeleton(EncoderNet, facts)
        fill(net, _fit(net, checkpoint), device, torch.float32)
        return cls(net, facts)

    def encode(self, mel: Tensor) -> Tensor:
        """The window must be whole: shorter audio is padded by `log_mel`. Raises ValueError on another shape."""
        wanted = (self.config.n_mels, self.config.n_frames)
        if tuple(mel.shape[-2:]) != wanted:
            raise ValueError(f"encode takes mel {list(wanted)}, got {list(mel.shape)}")
        states: Tensor = self.net(mel)
        return states


class Scribe:
    """The decoder: `listen` writes the cross-attention source once, `read` takes the forced prompt, `step` one token."""

    def __init__(self, net: DecoderNet, config: WhisperConfig) -> None:
        self.net = net
        self.config = config

    @classmethod
    def config_values(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
        """Config values of the node, for the linker; see `config.WhisperConfig`."""
        return config_values(checkpoint, config)

    @classmethod
    def fit(cls, checkpoint: Checkpoint, config: Mapping[str, Any]) -> Fit:
        """What `load` fills. Raises LoadError."""
        return _fit(skeleton(DecoderNet, read_agreeing(checkpoint, config)), checkpoint)

    @classmethod
    def load(cls, checkpoint: Checkpoint, config: Mapping[str, Any], device: str) -> Scribe:
        """Weights of the decoder half, in f32. Raises LoadError."""
        facts = read_agreeing(checkpoint, config)
        net = skeleton(DecoderNet, facts)
        fill(net, _fit(net, checkpoint), device, torch.float32)
        return cls(net, facts)

    def listen(self, run: Run, states: Tensor) -> None:
        """Packed encoder states [ΣA, d] -> keys and values of every layer in the op's context; no output."""
        self.net.listen(run, states)

    def read(self, run: Run, ids: Tensor) -> Tensor:
        """Packed prompt ids [ΣT] -> logits of each request's last row [B, vocab], before suppression."""
        return self.net.logits(self.net.hidden(run, ids)[run.last])

    def step(self, run: Run, token: Tensor) -> Tensor:
        """One token of each request [B] -> logits [B, vocab], before suppression."""
        return self.net.logits(self.net.hidden(run, token))


def _fit(net: EncoderNet | DecoderNet, checkpoint: Checkpoint) -> Fit:
    return fit_of(net, tensors(checkpoint), f"Whisper {'encoder' if isinstance(net, EncoderNet) else 'decoder'}")
