"""The nets of pi0.5 with the weights of a checkpoint, in the layout of openpi and LeRobot, or random ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.models.pi05.config import PolicyConfig, VisionConfig
from mstarc_runtime.models.pi05.nets import PolicyNet, VisionNet
from mstarc_runtime.weights import Fit, dtype_named, fill, fit_of

Net = TypeVar("Net", bound=nn.Module)
Config = TypeVar("Config")

_IN_F32 = frozenset({"norm", "norm1", "norm2", "modulation", "action_in", "action_out", "time_in", "time_out"})
_TOWER_IN_F32 = frozenset({"patch", "position"})


def vision_net(config: VisionConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> VisionNet:
    """The tower with its weights; random ones if there is no checkpoint. Raises LoadError naming the tensor that is wrong."""
    if checkpoint.path is None:
        return _random(_skeleton(VisionNet, config), dtype, device, seed)
    return _filled(*vision_prepared(config, checkpoint), dtype, device)


def policy_net(config: PolicyConfig, checkpoint: Checkpoint, dtype: str, device: str, seed: int = 0) -> PolicyNet:
    """Language model and expert, as `vision_net`."""
    if checkpoint.path is None:
        return _random(_skeleton(PolicyNet, config), dtype, device, seed)
    return _filled(*policy_prepared(config, checkpoint), dtype, device)


def vision_prepared(config: VisionConfig, checkpoint: Checkpoint) -> tuple[VisionNet, Fit]:
    """The tower without storage, and the tensors for it. Raises LoadError."""
    net = _skeleton(VisionNet, config)
    return net, fit_of(net, checkpoint.tensors(), "pi0.5 vision")


def policy_prepared(config: PolicyConfig, checkpoint: Checkpoint) -> tuple[PolicyNet, Fit]:
    """As `vision_prepared`."""
    net = _skeleton(PolicyNet, config)
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return net, fit_of(net, checkpoint.tensors(), "pi0.5 policy", {"**.qkv.weight": (wide, narrow, narrow)})


def _skeleton(make: Callable[[Config], Net], config: Config) -> Net:
    with torch.device("meta"):
        return make(config)


def _filled(net: Net, fit: Fit, dtype: str, device: str) -> Net:
    fill(net, fit, device, partial(_dtype, asked=dtype_named(dtype, "pi0.5")))
    return net


def _dtype(name: str, asked: torch.dtype) -> torch.dtype:
    """What openpi keeps in f32 stays so: of the policy norms, time and action projections, of the tower patches and positions."""
    kept = _IN_F32 if name.startswith(("language.", "expert.")) else _TOWER_IN_F32
    return asked if kept.isdisjoint(name.split(".")) else torch.float32


def _random(net: Net, dtype: str, device: str, seed: int) -> Net:
    """Random weights, for tests and measurements without a checkpoint: matrices normal with deviation 0.02, norms 1, biases 0."""
    asked, generator = dtype_named(dtype, "pi0.5"), torch.Generator(device).manual_seed(seed)
    made: dict[str, Tensor] = {}
    for name, due in net.state_dict().items():
        if due.dim() == 1:
            one = "norm" in name and not name.endswith("bias")
            found = torch.full(due.shape, 1.0 if one else 0.0, device=device)
        else:
            found = torch.randn(due.shape, generator=generator, device=device) * 0.02
        made[name] = found.to(_dtype(name, asked))
    net.load_state_dict(made, assign=True)
    net.requires_grad_(False)
    return net.eval()
