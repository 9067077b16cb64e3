"""Checkpoint tensors (HF safetensors, or the original V-JEPA 2-AC file) -> nets. One half of the model is read, not both.

The AC file is the original `.pt`, a dict with the state dicts `encoder` and `predictor`, or a safetensors file whose keys are
`encoder/` or `predictor/` + the original key. Training wrappers leave `module.` and `backbone.` in the keys; they are dropped.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mstarc_runtime.engines.component import Checkpoint
from mstarc_runtime.errors import LoadError
from mstarc_runtime.models.shards import shards
from mstarc_runtime.models.vjepa2.config import folder_of

Net = TypeVar("Net", bound=nn.Module)
Facts = TypeVar("Facts", bound=Hashable)
_HALVES = ("encoder", "predictor")
_WRAPPERS = ("module", "backbone")
_AC_FILES = ("vjepa2_ac.safetensors", "vjepa2-ac-vitg.pt")
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a checkpoint keeps the tensors of one half: stored names by the net's names.

    `blocks` is the stored list of blocks, `parts` the modules of a block (several are concatenated on dim 0), `others` the rest.
    `unused` are stored modules that no forward pass reads. `read` gives the half's stored tensors.
    """

    half: str
    read: Callable[[Checkpoint, str], dict[str, Tensor]]
    blocks: str
    parts: Mapping[str, tuple[str, ...]]
    others: Mapping[str, str]
    unused: tuple[str, ...] = ()

    def stored(self, name: str) -> tuple[str, ...]:
        """Stored names of a parameter of the net, in the order of concatenation."""
        owner, _, leaf = name.rpartition(".")
        if owner.startswith("blocks."):
            _, index, part = owner.split(".")
            return tuple(f"{self.blocks}.{index}.{stored}.{leaf}" for stored in self.parts[part])
        return (f"{self.others[owner]}.{leaf}" if owner else self.others[leaf],)


_shared: WeakValueDictionary[tuple[Any, ...], nn.Module] = WeakValueDictionary()


def load(
    make: Callable[[Facts], Net], facts: Facts, layout: Layout, checkpoint: Checkpoint, dtype: str, device: str
) -> Net:
    """The net `make(facts)` with the checkpoint's weights, ready to run. Raises LoadError on a missing, unexpected or misshaped tensor.

    Nodes of one process that share a verified checkpoint share the net (a critic uses the predictor's weights).
    """
    if dtype not in _DTYPES:
        raise LoadError(f"V-JEPA 2: dtype `{dtype}` is none of {', '.join(_DTYPES)}")
    with torch.device("meta"):
        net = make(facts)
    key = (type(net), facts, checkpoint.digest, str(checkpoint.path), layout.half, dtype, device)
    known = _shared.get(key) if checkpoint.digest else None
    if isinstance(known, type(net)):
        return known
    found = layout.read(checkpoint, layout.half)
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    _compare(layout, shapes, found)
    ready = {name: _joined(layout, name, shape, found).to(device, _DTYPES[dtype]) for name, shape in shapes.items()}
    net.load_state_dict(ready, assign=True)
    net.requires_grad_(False)
    net.eval()
    if checkpoint.digest:
        _shared[key] = net
    return net


def _compare(layout: Layout, shapes: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    expected = {stored for name in shapes for stored in layout.stored(name)}
    unused = {name for name in found if name.rpartition(".")[0] in layout.unused}
    for what, names in (("missing", expected - found.keys()), ("unexpected", found.keys() - expected - unused)):
        if names:
            raise LoadError(f"V-JEPA 2 {layout.half}: tensor `{min(names)}` is {what} ({len(names)} in all)")


def _joined(layout: Layout, name: str, shape: tuple[int, ...], found: Mapping[str, Tensor]) -> Tensor:
    stored = layout.stored(name)
    wanted = (shape[0] // len(stored), *shape[1:])
    for each in stored:
        tensor = found[each]
        if tuple(tensor.shape) != wanted:
            raise LoadError(
                f"V-JEPA 2 {layout.half}: tensor `{each}` has shape {list(tensor.shape)}, expected {list(wanted)}"
            )
        if not tensor.is_floating_point():
            raise LoadError(
                f"V-JEPA 2 {layout.half}: tensor `{each}` is {tensor.dtype}, expected a floating-point type"
            )
    return found[stored[0]] if len(stored) == 1 else torch.cat([found[each] for each in stored])


# ------------------------------------------------------------------------------------------------------------------ reading


def read_hf(checkpoint: Checkpoint, half: str) -> dict[str, Tensor]:
    """Tensors `half.*` of a HF folder, without the prefix."""
    found: dict[str, Tensor] = {}
    for path in shards(folder_of(checkpoint)):
        found |= _read_safetensors(path, half, ".")
    return found


def read_ac(checkpoint: Checkpoint, half: str) -> dict[str, Tensor]:
    """Tensors of a half of the AC file, without prefix and wrappers."""
    path = _ac_file(checkpoint)
    raw = _read_safetensors(path, half, "/") if path.suffix == ".safetensors" else _read_pickle(path, half)
    found: dict[str, Tensor] = {}
    for name, tensor in raw.items():
        bare = ".".join(part for part in name.split(".") if part not in _WRAPPERS)
        if bare in found:
            raise LoadError(f"{path.name}: `{half}` holds `{bare}` twice")
        found[bare] = tensor
    return found


def _read_safetensors(path: Path, half: str, separator: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    try:
        with safe_open(str(path), framework="pt") as opened:
            file: Any = opened  # its methods carry no types
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                kind, _, rest = name.partition(separator)
                if kind not in _HALVES or not rest:
                    raise LoadError(f"{path.name}: tensor `{name}` is unexpected")
                if kind == half:
                    found[rest] = file.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    return found


def _read_pickle(path: Path, half: str) -> dict[str, Tensor]:
    """A state dict of a `.pt` file, mapped and not copied. Other entries are the training's (optimizer, epoch …)."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    tensors = stored.get(half) if isinstance(stored, dict) else None
    if not isinstance(tensors, dict):
        raise LoadError(f"{path.name}: there is no state dict `{half}`")
    wrong = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
    if wrong:
        raise LoadError(f"{path.name}: `{half}` holds `{wrong[0]}`, which is no tensor")
    return tensors


def _ac_file(checkpoint: Checkpoint) -> Path:
    folder = folder_of(checkpoint)
    if checkpoint.path is not None and checkpoint.path.is_file():
        return checkpoint.path
    for name in _AC_FILES:
        if (folder / name).exists():
            return folder / name
    raise LoadError(f"{folder} has neither {' nor '.join(_AC_FILES)}; name the weight file in the binding")


# ------------------------------------------------------------------------------------------------------------------ layouts

_SAME = {"norm1": ("norm1",), "norm2": ("norm2",), "fc1": ("mlp.fc1",), "fc2": ("mlp.fc2",)}
_HF_PARTS = {
    **_SAME,
    "qkv": ("attention.query", "attention.key", "attention.value"),
    "proj": ("attention.proj",),
}
_AC_PARTS = {**_SAME, "qkv": ("attn.qkv",), "proj": ("attn.proj",)}

HF_ENCODER = Layout(
    "encoder", read_hf, "layer", _HF_PARTS, {"patch": "embeddings.patch_embeddings.proj", "norm": "layernorm"}
)
HF_PREDICTOR = Layout(
    "predictor",
    read_hf,
    "layer",
    _HF_PARTS,
    {
        "embed": "embeddings.predictor_embeddings",
        "mask_tokens": "embeddings.mask_tokens",
        "norm": "layernorm",
        "out": "proj",
    },
)
AC_ENCODER = Layout("encoder", read_ac, "blocks", _AC_PARTS, {"patch": "patch_embed.proj", "norm": "norm"})
AC_PREDICTOR = Layout(
    "predictor",
    read_ac,
    "predictor_blocks",
    _AC_PARTS,
    {
        "embed": "predictor_embed",
        "action": "action_encoder",
        "state": "state_encoder",
        "norm": "predictor_norm",
        "out": "predictor_proj",
    },
    unused=("extrinsics_encoder",),
)
