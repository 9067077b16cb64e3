"""The rules of the shipped bindings, for tests that load a component without a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mstarc.binding import read_binding
from mstarc.binding_file import Binding
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc_runtime.engines.component import Checkpoint

SPECS = Path(__file__).parents[1] / "specs"
Made = TypeVar("Made")
Load = Callable[..., Any]


@cache
def binding(model: str) -> Binding:
    """The shipped binding of a model."""
    path = SPECS / f"{model}.yaml"
    bound = read_binding(SourceFile(str(path), path.read_text(encoding="utf-8")), Collector())
    assert bound is not None
    return bound.binding


def rules_of(model: str) -> dict[str, list[dict[str, Any]]]:
    """The rules of each node."""
    return {node: component.weights for node, component in binding(model).components.items()}


def ruled(model: str, component: type, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with the rules of the node that is bound to this class."""
    name = f"{component.__module__}.{component.__qualname__}"
    (rules,) = (each.weights for each in binding(model).components.values() if each.dotted == name and each.weights)
    return replace(checkpoint, rules=tuple(rules))


def loader(*models: str) -> Load:
    """`load(component, checkpoint, config, device)` with the rules of the first of these models that binds the class."""

    def load(component: type[Made], checkpoint: Checkpoint, config: Mapping[str, Any], device: str = "cpu") -> Made:
        name = f"{component.__module__}.{component.__qualname__}"
        bound = (m for m in models if any(each.dotted == name for each in binding(m).components.values()))
        made: Made = component.load(ruled(next(bound), component, checkpoint), config, device)  # type: ignore[attr-defined]
        return made

    return load
