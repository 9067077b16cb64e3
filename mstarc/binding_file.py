"""The format of the binding file `X.yaml`: what stands under which key, and what each value must be."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct, field

from mstarc.plan.cost_table import COST, Cost
from mstarc.shapes import Path, Problem, Shape, flag, mapping, matching, optional, record, text
from mstarc.weight_rules import weight_rules


class Checkpoint(Struct, frozen=True, omit_defaults=True):
    """Weights: a file inside an installed package, or a path. `sha256` of the file, if it is to be checked."""

    package: str | None = None
    path: str | None = None
    file: str | None = None
    sha256: str | None = None


class Component(Struct, frozen=True, omit_defaults=True):
    """A node's class, and the checkpoint that its weights come from. A bare dotted path is the class alone.

    weights: rules from the tensors of the checkpoint to the parameters of the class (`mstarc_runtime.weights`).
    """

    dotted: str = field(name="class")
    checkpoint: str | None = None
    weights: list[dict[str, Any]] = []


class Chat(Struct, frozen=True):
    """Which request the chat endpoint runs, which of its inputs takes the messages, and whether these may hold audio."""

    request: str
    input: str
    audio_input: bool = False


class Binding(Struct, frozen=True):
    """One binding file. config: numbers, texts, bools and lists of these by section and key."""

    config: dict[str, dict[str, Any]] = {}
    checkpoints: dict[str, Checkpoint] = {}
    components: dict[str, Component] = {}
    externs: dict[str, str] = {}
    modalities: dict[str, Any] = {}
    chat: Chat | None = None
    cost: Cost = Cost()

    def value(self, path: str) -> Any:
        """The config value at `section.key`, or None."""
        section, _, key = path.partition(".")
        return self.config.get(section, {}).get(key)


def _plain_value(value: Any, path: Path, problems: list[Problem]) -> Any:
    """A number, a text, a bool, or a list of these. What is wrong is told at the item."""
    if isinstance(value, list):
        for position, item in enumerate(value):
            _plain_value(item, (*path, str(position)), problems)
    elif not isinstance(value, (bool, int, float, str)):
        problems.append(Problem(path, "is neither a number, a text, a bool nor a list of these"))
    elif isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(path, "is not a finite number"))
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        problems.append(Problem(path, "does not fit into 64 bits"))
    return value


def _plain_tree(value: Any, path: Path, problems: list[Problem]) -> Any:
    """The same with mappings by text, and nulls."""
    if isinstance(value, dict):
        return mapping(_plain_tree)(value, path, problems)
    if isinstance(value, list):
        return [_plain_tree(item, (*path, str(position)), problems) for position, item in enumerate(value)]
    return None if value is None else _plain_value(value, path, problems)


def _rate(value: Any, path: Path, problems: list[Problem]) -> Any:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        problems.append(Problem(path, "is not a rate in Hz, a whole number of at least 1"))
    return value


def _texts(value: Any, path: Path, problems: list[Problem]) -> Any:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        problems.append(Problem(path, "is not a list of texts"))
    return value


def _component(value: Any, path: Path, problems: list[Problem]) -> Any:
    return _COMPONENT({"class": value} if isinstance(value, str) else value, path, problems)


def _places(checkpoint: Checkpoint) -> str:
    one = (checkpoint.package is None) != (checkpoint.path is None)
    return "" if one else "has exactly one of `package` and `path`"


def _modality(value: Any, path: Path, problems: list[Problem]) -> Any:
    """How a modality is served. Of one that no endpoint shows by itself nothing is read."""
    return {} if value is None else _MODALITIES.get(path[-1], mapping(_plain_tree))(value, path, problems)


_ACTION = ("observe", "units", "robot")
_DOTTED = matching(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", "is not a dotted Python path, such as `package.module.Name`")
_SHA256 = matching(r"[0-9a-f]{64}", "is not a sha256 in 64 hex digits")
_COMPONENT = record(
    Component,
    {"class": _DOTTED, "checkpoint": optional(text), "weights": weight_rules},
    ("class",),
    {"class": "dotted"},
)
_MODALITIES: dict[str, Shape] = {
    "text": record(dict, {"decoder": _DOTTED, "finish": text, "usage": text}),
    "audio": record(
        dict,
        {"rate": _rate, "voices": _texts, **dict.fromkeys(("request", "input", "voice", "finish", "usage"), text)},
    ),
    "action": record(dict, {"request": text, **dict.fromkeys(_ACTION, _DOTTED)}, ("request", *_ACTION)),
}
_CHECKPOINT = record(
    Checkpoint,
    {"package": optional(text), "path": optional(text), "file": optional(text), "sha256": optional(_SHA256)},
    rule=_places,
)
BINDING: Shape = record(
    Binding,
    {
        "config": mapping(mapping(_plain_value)),
        "checkpoints": mapping(_CHECKPOINT),
        "components": mapping(_component),
        "externs": mapping(_DOTTED),
        "modalities": mapping(_modality),
        "chat": optional(record(Chat, {"request": text, "input": text, "audio_input": flag}, ("request", "input"))),
        "cost": COST,
    },
)
