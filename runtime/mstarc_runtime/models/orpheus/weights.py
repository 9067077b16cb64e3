"""The decoder of SNAC with the weights of a checkpoint, or random ones. What only encoding needs is in the same file and is not read."""

from __future__ import annotations

import torch

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.orpheus.config import SnacConfig
from mstarc_runtime.models.orpheus.nets import SnacDecoder
from mstarc_runtime.weights import Fit, fill, fit_of


def decoder(facts: SnacConfig, checkpoint: Checkpoint, seed: int, device: str) -> SnacDecoder:
    """The decoder with its weights, in f32; random ones if there is no checkpoint. Raises LoadError naming the tensor that is wrong."""
    if checkpoint.path is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = SnacDecoder(facts)
        net.requires_grad_(False)
        return net.eval().to(device)
    net, fit = prepared(facts, checkpoint)
    fill(net, fit, device, torch.float32)
    return net


def prepared(facts: SnacConfig, checkpoint: Checkpoint) -> tuple[SnacDecoder, Fit]:
    """The decoder without storage, and the tensors for it. Raises LoadError."""
    with torch.device("meta"):
        net = SnacDecoder(facts)
    return net, fit_of(net, checkpoint.tensors(), "SNAC")
