"""Checkpoint tensors of SNAC -> the decoder. The original layout: weight norm in two tensors, the encoder in the same file.

A weight is original0 · original1 / |original1|, the length over all dims but the first (of a transposed convolution that is the
input channel). It is multiplied out in f32 at load.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.orpheus.config import SnacConfig
from mstarc_runtime.models.orpheus.nets import SnacDecoder

_FILES = ("model.safetensors", "pytorch_model.bin")
_LENGTH, _DIRECTION = "parametrizations.weight.original0", "parametrizations.weight.original1"


def decoder(facts: SnacConfig, checkpoint: Checkpoint, seed: int, device: str) -> SnacDecoder:
    """The decoder with its weights, in f32; random ones if there is no checkpoint. Raises LoadError naming the tensor that is wrong."""
    if checkpoint.path is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = SnacDecoder(facts)
    else:
        with torch.device("meta"):
            net = SnacDecoder(facts)
        net.load_state_dict(_made(net, _read(_file_of(checkpoint.path))), assign=True)
    net.requires_grad_(False)
    return net.eval().to(device)


# ------------------------------------------------------------------------------------------------------------------ layout


def _stored_names(net: SnacDecoder) -> dict[str, str]:
    """Stored module or parameter of each module of the net with tensors of its own; both sides without `.weight` and `.bias`."""
    found = {"deep": "decoder.model.0", "wide": "decoder.model.1"}
    for n in range(len(net.codebooks)):
        found[f"codebooks.{n}"] = f"quantizer.quantizers.{n}.codebook"
        found[f"projections.{n}"] = f"quantizer.quantizers.{n}.out_proj"
    for n, stage in enumerate(net.stages):
        mine, block = f"stages.{n}", f"decoder.model.{n + 2}.block"
        found |= {f"{mine}.snake": f"{block}.0", f"{mine}.up": f"{block}.1", f"{mine}.noise": f"{block}.2.linear"}
        for k in range(len(stage.residuals)):  # type: ignore[arg-type]  # a ModuleList
            parts = enumerate(("snake1", "deep", "snake2", "wide"))
            found |= {f"{mine}.residuals.{k}.{part}": f"{block}.{k + 3}.block.{place}" for place, part in parts}
    after = len(net.stages) + 2
    return found | {"snake": f"decoder.model.{after}", "out": f"decoder.model.{after + 1}"}


def _sources(net: SnacDecoder) -> Iterator[tuple[str, str, bool]]:
    """(parameter of the net, stored tensor without the two parts of weight norm, whether it has these parts)."""
    modules = _stored_names(net)
    for name in net.state_dict():
        owner, _, leaf = name.rpartition(".")
        normed = leaf == "weight" and not owner.startswith("codebooks.")
        yield name, modules[owner] + ("" if normed else f".{leaf}"), normed


def _made(net: SnacDecoder, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The net's parameters from the stored tensors, all of which must be known and fit. Raises LoadError."""
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    expected: dict[str, tuple[int, ...]] = {}
    for name, stored, normed in _sources(net):
        shape = shapes[name]
        if normed:
            expected[f"{stored}.{_LENGTH}"] = (shape[0], *[1] * (len(shape) - 1))
            expected[f"{stored}.{_DIRECTION}"] = shape
        else:
            expected[stored] = shape
    mine = {name for name in found if not _of_encoder(name)}
    for what, names in (("missing", expected.keys() - mine), ("unexpected", mine - expected.keys())):
        if names:
            raise LoadError(f"SNAC: tensor `{min(names)}` is {what} ({len(names)} in all)")
    for stored, wanted in expected.items():
        if tuple(found[stored].shape) != wanted:
            raise LoadError(f"SNAC: tensor `{stored}` has shape {list(found[stored].shape)}, expected {list(wanted)}")
        if not found[stored].is_floating_point():
            raise LoadError(f"SNAC: tensor `{stored}` is {found[stored].dtype}, expected a floating-point type")
    return {
        name: _multiplied(found, stored) if normed else found[stored].float() for name, stored, normed in _sources(net)
    }


def _multiplied(found: Mapping[str, Tensor], stored: str) -> Tensor:
    length, direction = found[f"{stored}.{_LENGTH}"].float(), found[f"{stored}.{_DIRECTION}"].float()
    return direction.mul(length / torch.linalg.vector_norm(direction, dim=(1, 2), keepdim=True))


def _of_encoder(name: str) -> bool:
    """Tensors that only encoding needs."""
    return name.startswith("encoder.") or (name.startswith("quantizer.quantizers.") and ".in_proj." in name)


# ----------------------------------------------------------------------------------------------------------------- reading


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    for name in _FILES:
        if (path / name).exists():
            return path / name
    raise LoadError(f"{path} has neither {' nor '.join(_FILES)}")


def _read(path: Path) -> dict[str, Tensor]:
    """Tensors by stored name, from safetensors or from a state dict that torch pickled."""
    if path.suffix != ".safetensors":
        return _read_pickle(path)
    try:
        with safe_open(str(path), framework="pt") as opened:
            file: Any = opened  # its methods carry no types
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise LoadError(f"{path} holds no state dict")
    return found
