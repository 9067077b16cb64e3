"""Value ids dense again after a rewrite, in the order of definition. Takes a program or a walk of one; gives the same with new ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mstarc.ir.core import Output, Phi, Program, Request, Value, Walk
from mstarc.ir.types import ValueId, Var
from mstarc.ir.verify_sites import Unit, definitions

_IDS = {(Value, "id"), (Var, "id"), (Phi, "inner"), (Output, "value")}


def renumbered(program: Program) -> Program:
    """Every walk and request. A use of a value that nothing defines keeps an id of its own."""
    walks = tuple(_renumbered(program, walk) for walk in program.walks)
    return replace(program, walks=walks, requests=tuple(_renumbered(program, request) for request in program.requests))


def _renumbered(program: Program, unit: Walk | Request) -> Any:
    ids: dict[int, int] = {}
    for value in definitions(Unit(program, unit)):
        ids.setdefault(value.id, len(ids))
    free = len(ids) + 1000
    return _mapped(unit, lambda old: ValueId(ids.get(old, free + old)))


def _mapped(node: Any, of: Callable[[int], ValueId]) -> Any:
    """A tree of the IR with every value id mapped."""
    if isinstance(node, tuple):
        return tuple(_mapped(item, of) for item in node)
    if not is_dataclass(node):
        return node
    changed: dict[str, Any] = {}
    for field in fields(node):
        held = getattr(node, field.name)
        if isinstance(held, int) and (type(node), field.name) in _IDS:
            changed[field.name] = of(held)
        elif field.name != "span":
            changed[field.name] = _mapped(held, of)
    return replace(node, **changed)  # type: ignore[type-var]
