"""The nets of pi0.5 with the weights of a checkpoint, in the layout of openpi and LeRobot, or random ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.pi05.config import PolicyConfig, VisionConfig
from mstarc_runtime.models.pi05.nets import PolicyNet, VisionNet
from mstarc_runtime.weights import Fit, dtype_named, fill, fit_of

Net = TypeVar("Net", bound=nn.Module)

_IN_F32 = frozenset({"norm", "norm1", "norm2", "modulation", "action_in", "action_out", "time_in", "time_out"})
_TOWER_IN_F32 = frozenset({"patch", "position"})


def vision_net(config: VisionConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> VisionNet:
    """The tower with its weights; random ones if there is no checkpoint. Raises LoadError naming the tensor that is wrong."""
    with torch.device("meta"):
        net = VisionNet(config)
    return _ready(net, None if checkpoint.path is None else vision_fit(config, checkpoint), dtype, device, seed)


def policy_net(config: PolicyConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> PolicyNet:
    """Language model and expert, as `vision_net`."""
    with torch.device("meta"):
        net = PolicyNet(config)
    return _ready(net, None if checkpoint.path is None else policy_fit(config, checkpoint), dtype, device, seed)


def vision_fit(config: VisionConfig, checkpoint: Checkpoint) -> Fit:
    """What `vision_net` fills. Raises LoadError."""
    with torch.device("meta"):
        net = VisionNet(config)
    return fit_of(net, checkpoint.tensors(), "pi0.5 vision")


def policy_fit(config: PolicyConfig, checkpoint: Checkpoint) -> Fit:
    """What `policy_net` fills. Raises LoadError."""
    with torch.device("meta"):
        net = PolicyNet(config)
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return fit_of(net, checkpoint.tensors(), "pi0.5 policy", {"**.qkv.weight": (wide, narrow, narrow)})


def _ready(net: Net, fit: Fit | None, dtype: str, device: str, seed: int) -> Net:
    by_name = partial(_dtype, asked=dtype_named(dtype, "pi0.5"))
    if fit is not None:
        fill(net, fit, device, by_name)
        return net
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    found = _random(shapes, seed, device)
    net.load_state_dict({name: tensor.to(by_name(name)) for name, tensor in found.items()}, assign=True)
    net.requires_grad_(False)
    return net.eval()


def _dtype(name: str, asked: torch.dtype) -> torch.dtype:
    """What openpi keeps in f32 stays so: of the policy norms, time and action projections, of the tower patches and positions."""
    kept = _IN_F32 if name.startswith(("language.", "expert.")) else _TOWER_IN_F32
    return asked if kept.isdisjoint(name.split(".")) else torch.float32


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int, device: str) -> dict[str, Tensor]:
    """Random weights, for tests and measurements without a checkpoint: matrices normal with deviation 0.02, norms 1, biases 0."""
    generator = torch.Generator(device).manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            one = "norm" in name and not name.endswith("bias")
            made[name] = torch.full(shape, 1.0 if one else 0.0, device=device)
        else:
            made[name] = torch.randn(shape, generator=generator, device=device) * 0.02
    return made
