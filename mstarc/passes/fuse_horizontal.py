"""Which calls go to a node together, as one batch: those of one `parallel`, and those of one op in several walks.

Takes a program; gives `Fusion` facts. Calls of one `parallel` do not depend on each other, so a request hands all those of one op to
the node at once: k branches are k rows of one batch, and the weights are read once for all. Calls of one op from several walks meet
in one queue of their node, whichever walk and request they come from; nodes that share weights are named as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mstarc.ir.core import Block, Invoke, Par, Program, Walk
from mstarc.ir.visit import every_op
from mstarc.passes.provenance import guarded_calls, name_of


@dataclass(frozen=True, slots=True)
class Fusion:
    """One batch. kind `parallel`: rows of one request; `walks`: rows of requests that may be in different walks.

    calls: `walk.result` of each, in program order.
    """

    kind: Literal["parallel", "walks"]
    op: str
    calls: tuple[str, ...]


Facts: TypeAlias = tuple[Fusion, ...]


def fuse_horizontal(program: Program) -> Facts:
    """The batches of a program: those of each `parallel` in program order, then those of ops that several walks call."""
    return (*_parallels(program), *_across(program))


def batches_of(body: Block) -> dict[str, list[Invoke]]:
    """The calls that stand directly in a `parallel`, by op, for ops that are called twice or more."""
    found: dict[str, list[Invoke]] = {}
    for call, _ in guarded_calls(body):
        found.setdefault(f"{call.node}.{call.op}", []).append(call)
    return {op: calls for op, calls in found.items() if len(calls) > 1}


def _parallels(program: Program) -> Iterator[Fusion]:
    for walk in program.walks:
        for par in (op for op in every_op(walk.body) if isinstance(op, Par)):
            for op, calls in batches_of(par.body).items():
                yield Fusion("parallel", op, tuple(f"{walk.name}.{name_of(call)}" for call in calls))


def _across(program: Program) -> Iterator[Fusion]:
    """Ops by the node that owns their weights: `weights of` names the same parameters."""
    owner = {node.name: node.weights or node.name for node in program.nodes}
    sites: dict[str, list[tuple[Walk, Invoke]]] = {}
    for walk in program.walks:
        for op in every_op(walk.body):
            if isinstance(op, Invoke):
                sites.setdefault(f"{owner[op.node]}.{op.op}", []).append((walk, op))
    for name, calls in sites.items():
        if len({walk.name for walk, _ in calls}) > 1:
            yield Fusion("walks", name, tuple(f"{walk.name}.{name_of(call)}" for walk, call in calls))


def say_fusions(program: Program, facts: Facts) -> Iterator[str]:
    """A line for each batch."""
    for fusion in facts:
        calls = ", ".join(fusion.calls)
        if fusion.kind == "parallel":
            yield f"{calls}: {len(fusion.calls)} rows of one call of {fusion.op} for each request"
        else:
            yield f"{calls}: one queue of {fusion.op}"
