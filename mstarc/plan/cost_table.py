"""The `cost:` section of a binding file: what `mstarc plan` counts with and no walk says. Every number is a formula.

cost:
  parts: {text_part: text}                      # which modality, or which of several, brings a part
  sizes: {T: 64}                                # free dims of a typical request, by name
  values: {canvas.h: height}                    # what externs give, by name
  nodes:
    llm:
      params: 14.6e9                            # numbers of the node's weights
      ops: {velocity: {active: 6.5e9}}          # of an op; a transformer's are closed forms of its config if left out
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mstarc.plan.formulas import parse_formula
from mstarc.shapes import Path, Problem, checked, mapping, optional, record

Formula = str | int | float


class OpCost(Struct, frozen=True):
    """One op. active: numbers of the weights that act on one row; reads: those that one call reads; flops: of one call."""

    active: Formula | None = None
    reads: Formula | None = None
    flops: Formula | None = None


class NodeCost(Struct, frozen=True):
    """One node. params: numbers of its weights."""

    params: Formula | None = None
    ops: dict[str, OpCost] = {}


class Cost(Struct, frozen=True):
    """What `mstarc plan` counts with: which modality brings a part, typical sizes of free dims, what externs give, costs of nodes."""

    parts: dict[str, str | list[str]] = {}
    sizes: dict[str, Formula] = {}
    values: dict[str, Formula] = {}
    nodes: dict[str, NodeCost] = {}


def _check_formula(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("is neither a number nor a formula")
    parse_formula(value)


def _part(value: Any, path: Path, problems: list[Problem]) -> Any:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(x, str) for x in value)):
        problems.append(Problem(path, "is neither a modality nor a list of them"))
    return value


_FORMULA = checked(_check_formula)
_OP = record(OpCost, dict.fromkeys(("active", "reads", "flops"), optional(_FORMULA)))
_NODE = record(NodeCost, {"params": optional(_FORMULA), "ops": mapping(_OP)})
COST = record(
    Cost, {"parts": mapping(_part), "sizes": mapping(_FORMULA), "values": mapping(_FORMULA), "nodes": mapping(_NODE)}
)
