"""Checkpoint tensors (CTranslate2 or HF safetensors) -> a net with f32 weights. One half of the model is read, not both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.shards import shards
from mstarc_runtime.models.whisper import ct2
from mstarc_runtime.models.whisper.config import CT2_FILE, folder_of

_HALVES = ("encoder", "decoder")


def fill(net: nn.Module, half: str, checkpoint: Checkpoint, device: str) -> None:
    """Assign the `encoder` or `decoder` tensors to a net without storage. Raises LoadError on a missing, unexpected or misshaped one."""
    folder = folder_of(checkpoint)
    if (folder / CT2_FILE).exists():
        found = {
            k: torch.from_numpy(v.astype("float32"))
            for k, v in ct2.whisper_tensors(ct2.read_model(folder / CT2_FILE), half).items()
        }
    else:
        found = _read_safetensors(folder, half)
    expected = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    _compare(half, expected, found)
    net.load_state_dict({name: tensor.to(device, torch.float32) for name, tensor in found.items()}, assign=True)
    net.requires_grad_(False)
    net.eval()


def _compare(half: str, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    missing, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing:
        raise LoadError(f"Whisper {half}: tensor `{missing[0]}` is missing ({len(missing)} in all)")
    if extra:
        raise LoadError(f"Whisper {half}: tensor `{extra[0]}` is unexpected ({len(extra)} in all)")
    for name, shape in expected.items():
        if tuple(found[name].shape) != shape:
            raise LoadError(
                f"Whisper {half}: tensor `{name}` has shape {list(found[name].shape)}, expected {list(shape)}"
            )


def _read_safetensors(folder: Path, half: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in shards(folder, CT2_FILE):
        try:
            with safe_open(str(path), framework="pt") as opened:
                file: Any = opened  # its methods carry no types
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    kind, _, rest = name.removeprefix("model.").partition(".")
                    if not name.startswith("model.") or kind not in _HALVES:
                        _check_head(file, name, half, path)
                    elif kind == half:
                        found[rest] = _float(file.get_tensor(name), name)
        except (SafetensorError, OSError) as error:
            raise LoadError(f"{path} cannot be read: {error}") from error
    return found


def _check_head(file: Any, name: str, half: str, path: Path) -> None:
    """A stored head is allowed where it repeats the token embeddings; any other foreign tensor is not."""
    if name != "proj_out.weight":
        raise LoadError(f"{path.name}: tensor `{name}` is unexpected")
    if half == "decoder" and not torch.equal(
        file.get_tensor(name), file.get_tensor("model.decoder.embed_tokens.weight")
    ):
        raise LoadError(f"{path.name}: `{name}` differs from the token embeddings; Whisper's head is tied")


def _float(tensor: Tensor, name: str) -> Tensor:
    if not tensor.is_floating_point():
        raise LoadError(f"tensor `{name}` is {tensor.dtype}, expected a floating-point type")
    return tensor
