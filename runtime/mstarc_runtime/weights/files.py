"""The tensors of weight files, unread: names, shapes and dtypes from the headers, and how to read each. Takes paths; gives `Weight`s.

Files are safetensors, or what torch has pickled: a state dict, or a dict of state dicts, whose tensors are then called `entry/name`;
other entries of such a dict (optimiser, epoch, …) are the training's and are passed over.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mstarc_runtime.errors import LoadError

if TYPE_CHECKING:
    from torch import Tensor

Shape: TypeAlias = tuple[int, ...]

#: the weight files that a folder may have, the first that is there; also in parts, as `NAME.index.json` lists them
NAMES = ("model.safetensors", "pytorch_model.bin")
_MOST = 1 << 28  # bytes of a header; a longer one is damage
#: what a file that is not as its format says makes a reader raise
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError)
_BITS = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "I16": ("int16", 16),
    "I32": ("int32", 32),
    "I64": ("int64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in a file. dtype: as torch calls it."""

    name: str
    shape: Shape
    dtype: str
    file: str

    def __str__(self) -> str:
        return f"`{self.name}` {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor that is read when it is needed. Two that are one tensor have one `read`.

    parts: what it is made of, in order. rule: the number of the last rule that had to do with it, 0 for none. shape: None where a rule
    could not make it, which has been told.
    """

    shape: Shape | None
    parts: tuple[Stored, ...]
    read: Callable[[], Tensor]
    rule: int = 0


def weight(name: str, shape: Sequence[int], dtype: str, file: str, read: Callable[[], Tensor]) -> Weight:
    """A stored tensor."""
    found = Stored(name, tuple(shape), dtype, file)
    return Weight(found.shape, (found,), read)


def stored(path: Path, names: Sequence[str] = NAMES) -> dict[str, Weight]:
    """The tensors of a weight file, or of those of a folder. Raises LoadError for a missing or damaged file, and for a name twice."""
    found: dict[str, Weight] = {}
    for file in weight_files(path, names):
        for name, each in _headers(file):
            if name in found:
                raise LoadError(f"tensor `{name}` is in {found[name].parts[0].file} and in {file.name}")
            found[name] = each
    return found


def weight_files(path: Path, names: Sequence[str] = NAMES) -> list[Path]:
    """The weight files of a folder: the first name that is there, whole or in parts. A file stands for itself. Raises LoadError."""
    if not path.is_dir():
        return [path]
    for name in names:
        if (path / name).exists():
            return [path / name]
        index = path / f"{name}.index.json"
        if index.exists():
            return [path / part for part in _listed(index)]
    raise LoadError(f"{path} has {'neither ' if len(names) > 1 else 'no '}{' nor '.join(names)}")


def _listed(index: Path) -> list[str]:
    try:
        return sorted(
            {Path(part).name for part in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
        )
    except _DAMAGE as error:
        raise LoadError(f"{index} cannot be read: {error}") from error


def _headers(path: Path) -> Iterator[tuple[str, Weight]]:
    try:
        for name, each in _safetensors(path) if path.suffix == ".safetensors" else _pickled(path):
            if not (name + each.parts[0].dtype).isprintable():  # what a terminal would obey, or half a surrogate pair
                raise ValueError(f"no tensor is called {name!a}, of dtype {each.parts[0].dtype!a}")
            yield name, each
    except (*_DAMAGE, pickle.UnpicklingError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error


# ------------------------------------------------------------------------------------------------------------- safetensors


def _safetensors(path: Path) -> Iterator[tuple[str, Weight]]:
    """Format: u64 bytes of the header; the header, JSON by name; data. Raises ValueError and the like for one that is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_MOST, size - 8):
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(file.read(length))
    opened = cache(partial(_opened, path))
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not all(type(number) is int and number >= 0 for number in (*entry["shape"], *entry["data_offsets"])):
            raise ValueError(f"tensor {name!a} has a shape or offsets that are no counts")
        dtype, bits = _BITS.get(entry["dtype"], (str(entry["dtype"]), 0))
        first, last = entry["data_offsets"]
        if not first <= last <= size - 8 - length or (bits and (last - first) * 8 != math.prod(entry["shape"]) * bits):
            raise ValueError(f"tensor {name!a} has bytes {first} to {last} of {size - 8 - length}")
        yield name, weight(name, entry["shape"], dtype, path.name, partial(_taken, opened, path, name))


def _opened(path: Path) -> Any:
    from safetensors import safe_open

    opened: Any = safe_open(str(path), framework="pt")  # its methods carry no types
    return opened.__enter__()


def _taken(opened: Callable[[], Any], path: Path, name: str) -> Tensor:
    from safetensors import SafetensorError

    try:
        found: Tensor = opened().get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    return found


# ----------------------------------------------------------------------------------------------------------------- pickles


def _pickled(path: Path) -> Iterator[tuple[str, Weight]]:
    import torch

    if not path.exists():
        raise FileNotFoundError("it does not exist")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # an old file, which cannot be mapped
        found = torch.load(path, map_location="cpu", weights_only=True)
    entries = {"": found} if _is_state(found) else found if isinstance(found, dict) else {}
    states = {f"{key}/" if key else "": state for key, state in entries.items() if _is_state(state)}
    if not states:
        raise ValueError("it holds no state dict")
    for prefix, state in states.items():
        for name, tensor in state.items():
            full, dtype = f"{prefix}{name}", str(tensor.dtype).removeprefix("torch.")
            yield full, weight(full, tensor.shape, dtype, path.name, partial(_itself, tensor))


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _is_state(found: Any) -> bool:
    import torch

    return (
        isinstance(found, Mapping)
        and bool(found)
        and all(isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items())
    )
