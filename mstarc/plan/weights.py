"""Bytes of a checkpoint from its own headers, without reading weights or importing anything of theirs.

A safetensors file begins with the length of its header (u64, little-endian) and the header, JSON of name -> dtype, shape, offsets.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mstarc_runtime.abi.linked import CheckpointLink

LARGEST_HEADER = 100 << 20


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of weights as they are stored, and where that number comes from."""

    bytes: int
    source: str


def stored_bytes(link: CheckpointLink) -> Stored | None:
    """What a checkpoint holds: the sum over safetensors headers, else the size of its file; None if it is not there."""
    path = _locate(link)
    if path is None or not path.exists():
        return None
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.suffix == ".safetensors" else []
    try:
        if files:
            return Stored(sum(_tensor_bytes(file) for file in files), f"safetensors headers of {link.name}")
        return Stored(path.stat().st_size, f"size of {path.name}") if path.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _locate(link: CheckpointLink) -> Path | None:
    root: Path | None = Path(link.path) if link.path else None
    if link.package:
        try:
            spec = importlib.util.find_spec(link.package)
        except (ImportError, ValueError):
            return None
        places: Iterable[str] = (spec.submodule_search_locations if spec is not None else None) or ()
        root = next((Path(place) for place in places), None)
    return root / link.file if root is not None and link.file else root


def _tensor_bytes(file: Path) -> int:
    """Raises ValueError for a file that is no safetensors file."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 0 < size <= LARGEST_HEADER:
            raise ValueError(f"{file} has a header of {size} bytes")
        header = json.loads(stream.read(size))
    return sum(
        tensor["data_offsets"][1] - tensor["data_offsets"][0]
        for name, tensor in header.items()
        if name != "__metadata__"
    )
