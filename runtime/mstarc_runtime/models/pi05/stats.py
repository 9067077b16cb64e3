"""Statistics of a robot's data beside a checkpoint -> quantiles of its states and actions. No torch.

Two layouts are read: openpi's `norm_stats.json`, in the folder or in `assets/*/`, and the `*normalizer_processor.safetensors` files of
LeRobot's processors. A checkpoint without either knows no units: states come normalised, actions leave so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.numpy import load_file

from mstarc_runtime.errors import LoadError

Quantiles: TypeAlias = "tuple[list[float], list[float]]"  # 1 % and 99 %, as many as the robot has numbers


@dataclass(frozen=True, slots=True)
class Stats:
    """Quantiles, where they are known."""

    state: Quantiles | None = None
    action: Quantiles | None = None


def read_stats(folder: Path | None, node: Mapping[str, Any]) -> Stats:
    """Of a checkpoint's folder; `state_q01`, `state_q99`, `action_q01`, `action_q99` of the node's section win. Raises LoadError."""
    found = Stats() if folder is None else _openpi(folder) or _lerobot(folder) or Stats()
    return Stats(_given(node, "state") or found.state, _given(node, "action") or found.action)


def _given(node: Mapping[str, Any], kind: str) -> Quantiles | None:
    low, high = node.get(f"{kind}_q01"), node.get(f"{kind}_q99")
    return None if low is None and high is None else _pair(low, high, f"`{kind}_q01` and `{kind}_q99`")


def _openpi(folder: Path) -> Stats | None:
    paths = [
        path
        for path in (folder / "norm_stats.json", *sorted(folder.glob("assets/**/norm_stats.json")))
        if path.is_file()
    ]
    if not paths:
        return None
    if len(paths) > 1:
        raise LoadError(f"pi0.5: {folder} holds statistics of several robots; keep one of {', '.join(map(str, paths))}")
    try:
        groups = json.loads(paths[0].read_text(encoding="utf-8"))["norm_stats"]
        return Stats(*(_of_group(groups[name], f"{paths[0]}: `{name}`") for name in ("state", "actions")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"pi0.5: {paths[0]} cannot be read: {type(error).__name__}: {error}") from error


def _of_group(group: Mapping[str, Any], what: str) -> Quantiles | None:
    return None if group.get("q01") is None else _pair(group["q01"], group.get("q99"), what)


def _lerobot(folder: Path) -> Stats | None:
    tensors: dict[str, Any] = {}
    for path in sorted(folder.glob("*normalizer_processor.safetensors")):
        try:
            tensors |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise LoadError(f"pi0.5: {path} cannot be read: {error}") from error
    found = {}
    for kind, feature in (("state", "observation.state"), ("action", "action")):
        low, high = (tensors.get(f"{feature}.{name}") for name in ("q01", "q99"))
        if low is not None and high is not None:
            found[kind] = _pair(low.tolist(), high.tolist(), f"`{feature}` in {folder}")
    return Stats(**found) if found else None


def _pair(low: Any, high: Any, what: str) -> Quantiles:
    for values in (low, high):
        if not isinstance(values, list) or not values or not all(isinstance(value, int | float) for value in values):
            raise LoadError(f"pi0.5: {what} must be two lists of numbers")
    if len(low) != len(high):
        raise LoadError(f"pi0.5: {what} differ in length")
    return low, high
