"""The weight files of a checkpoint folder in the layout of the hub: one file, or several with an index."""

from __future__ import annotations

import json
from pathlib import Path

from mstarc_runtime.errors import LoadError


def shards(folder: Path, others: str = "") -> list[Path]:
    """model.safetensors, or what its index lists. Raises LoadError; `others` names another file that would do as well."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise LoadError(
            f"{folder} has neither {others} nor {single.name}" if others else f"{folder} has no {single.name}"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise LoadError(f"{index} cannot be read: {error}") from error
    return [folder / Path(name).name for name in names]
