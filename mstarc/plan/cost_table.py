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

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from mstarc.plan.formulas import parse_formula

_MODEL = ConfigDict(strict=True, extra="forbid", frozen=True)


def _formula(text: str | int | float) -> str | int | float:
    parse_formula(text)
    return text


Formula = Annotated[str | int | float, AfterValidator(_formula)]


class OpCost(BaseModel):
    """One op. active: numbers of the weights that act on one row; reads: those that one call reads; flops: of one call."""

    model_config = _MODEL

    active: Formula | None = None
    reads: Formula | None = None
    flops: Formula | None = None


class NodeCost(BaseModel):
    """One node. params: numbers of its weights."""

    model_config = _MODEL

    params: Formula | None = None
    ops: dict[str, OpCost] = {}


class Cost(BaseModel):
    """What `mstarc plan` counts with: which modality brings a part, typical sizes of free dims, what externs give, costs of nodes."""

    model_config = _MODEL

    parts: dict[str, str | list[str]] = {}
    sizes: dict[str, Formula] = {}
    values: dict[str, Formula] = {}
    nodes: dict[str, NodeCost] = {}
