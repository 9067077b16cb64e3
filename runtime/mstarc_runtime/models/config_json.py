"""Values of a model's configuration: of JSON files, or of a node's section. What is wrong is a LoadError that names file and key.

where: what the values are of; it begins every message.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mstarc_runtime.errors import LoadError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LoadError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise LoadError(f"{path} is not a JSON object")
    return found


def agree(values: Mapping[str, Any], section: Mapping[str, Any], where: str) -> None:
    """A node's section may repeat the checkpoint's values, not change them."""
    for key in sorted(values.keys() & section.keys()):
        if values[key] != section[key]:
            raise LoadError(f"`{key}` is {section[key]!r} in the binding, {values[key]!r} in {where}")


def count(values: Mapping[str, Any], key: str, where: str) -> int:
    """A whole number, 1 or more."""
    found = values.get(key)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise LoadError(f"{where}: `{key}` is {found!r}, not a positive count")
    return found


def counts(values: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
    """A list of whole numbers, each 1 or more."""
    found = values.get(key)
    if not isinstance(found, list | tuple) or not found:
        raise LoadError(f"{where}: `{key}` is {found!r}, not a list of counts")
    return tuple(count({key: each}, key, where) for each in found)


def number(values: Mapping[str, Any], key: str, where: str) -> float:
    """A finite number above 0."""
    found = values.get(key)
    if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < math.inf:
        raise LoadError(f"{where}: `{key}` is {found!r}, not a positive number")
    return float(found)


def flag(values: Mapping[str, Any], key: str, where: str) -> bool:
    """true or false."""
    found = values.get(key)
    if not isinstance(found, bool):
        raise LoadError(f"{where}: `{key}` is {found!r}, neither true nor false")
    return found
