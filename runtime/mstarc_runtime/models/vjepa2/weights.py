"""Nets of V-JEPA 2 with the weights of a checkpoint. A net is one half of the model, and what is read of a file is that half."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.weights import Fit, dtype_named, fill, fit_of
from mstarc_runtime.weights.files import NAMES

Net = TypeVar("Net", bound=nn.Module)
Facts = TypeVar("Facts")
#: what the weight file of V-JEPA 2-AC is called in a folder: the published one, and a copy as safetensors
_AC_FILES = ("vjepa2_ac.safetensors", "vjepa2-ac-vitg.pt")


def prepared(make: Callable[[Facts], Net], facts: Facts, checkpoint: Checkpoint, ac: bool = False) -> tuple[Net, Fit]:
    """A net without storage, and the tensors for it. ac: of V-JEPA 2-AC. Raises LoadError."""
    with torch.device("meta"):
        net = make(facts)
    what = f"V-JEPA 2{'-AC' if ac else ''} {type(net).__name__}"
    return net, fit_of(net, checkpoint.tensors(_AC_FILES if ac else NAMES), what)


def load(
    make: Callable[[Facts], Net],
    facts: Facts,
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    device: str,
    ac: bool = False,
) -> Net:
    """The net with its weights in the config's `dtype` (float32), ready to run. Raises LoadError."""
    dtype = dtype_named(config.get("dtype", "float32"), "V-JEPA 2")
    net, fit = prepared(make, facts, checkpoint, ac)
    fill(net, fit, device, dtype)
    return net
