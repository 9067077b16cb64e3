"""What blocks touch besides values: contexts, states, samplers, drawing sites, modalities, streams. Takes a program; gives sets.

Everything here is about *may*: an effect counts even if a condition guards it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Drop,
    Emit,
    ForChunks,
    Fork,
    Invoke,
    Next,
    Noise,
    Op,
    Program,
    Sample,
    Send,
    Walk,
)
from mstarc.ir.declarations import Node, OpDecl
from mstarc.ir.visit import every_op
from mstarc.source import Span

Kind: TypeAlias = Literal["context", "state", "sampler", "site", "modality", "send", "take"]


Ends: TypeAlias = frozenset[tuple[Kind, str]]


@dataclass(frozen=True, slots=True)
class Effect:
    """One touch. `reads`: it changes nothing. `walk`: where it is written ("" = the request itself)."""

    kind: Kind
    name: str
    span: Span
    reads: bool = False
    walk: str = ""


class Names:
    """Declarations of a program by name."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.walks: dict[str, Walk] = {w.name: w for w in program.walks}
        self.nodes: dict[str, Node] = {n.name: n for n in program.nodes}
        self.streams = {s.name: s for s in program.streams}
        self.contexts = {c.name: c for c in program.contexts}

    def op(self, invoke: Invoke) -> OpDecl | None:
        """The op that a call names."""
        node = self.nodes.get(invoke.node)
        return next((o for o in node.ops if o.name == invoke.op), None) if node else None


def effects_of(block: Block, names: Names, walk: str = "") -> Iterator[Effect]:
    """All effects of a block, those of the walks it calls included, in program order."""
    for op in every_op(block):
        yield from _own(op, names, walk)
        if isinstance(op, CallWalk) and op.walk in names.walks and op.walk != walk:
            called = names.walks[op.walk]
            yield from effects_of(called.body, names, called.name)


def effects_of_op(op: Op, names: Names, walk: str = "") -> Iterator[Effect]:
    """All effects of one operation and what it holds."""
    return effects_of(Block((op,)), names, walk)


def _own(op: Op, names: Names, walk: str) -> Iterator[Effect]:
    span = op.span
    match op:
        case Invoke():
            yield from _invoke(op, names, walk)
        case Sample():
            yield Effect("sampler", op.sampler, span, walk=walk)
            yield Effect("site", f"{walk}.{op.site}", span, walk=walk)
        case Noise():
            yield Effect("site", f"{walk}.{op.site}", span, walk=walk)
        case Emit():
            yield Effect("modality", op.modality, span, walk=walk)
        case Send():
            yield Effect("send", op.stream, span, walk=walk)
        case Next() | ForChunks():
            for stream in op.streams:
                yield Effect("take", stream, span, walk=walk)
        case Fork():
            yield Effect("context", op.source, span, reads=True, walk=walk)
            yield Effect("context", op.target, span, walk=walk)
        case Drop():
            for context in op.contexts:
                yield Effect("context", context, span, walk=walk)


def _invoke(op: Invoke, names: Names, walk: str) -> Iterator[Effect]:
    for context in op.reads:
        yield Effect("context", context, op.span, reads=True, walk=walk)
    for context in op.writes:
        yield Effect("context", context, op.span, walk=walk)
    node, declared = names.nodes.get(op.node), names.op(op)
    for state in node.states if node else ():
        yield Effect("state", f"{op.node}.{state.name}", op.span, walk=walk)
    if declared is not None and declared.attrs.samples:
        yield Effect("sampler", declared.attrs.samples, op.span, walk=walk)
    if declared is not None and (declared.attrs.random or declared.attrs.samples):
        yield Effect("site", f"{walk}.{op.node}.{op.op}", op.span, walk=walk)


def calls_of(block: Block) -> Iterator[CallWalk]:
    """The walk calls of a request's block, in program order."""
    return (op for op in every_op(block) if isinstance(op, CallWalk))


class StreamEnds:
    """Which ends of streams operations may touch, as (`send` or `take`, stream); remembered by operation, which outlives this."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._known: dict[int, Ends] = {}

    def of(self, block: Block, start: int = 0) -> Ends:
        """What a block, from its operation `start` on, may touch."""
        return frozenset().union(*(self._of(op) for op in block.ops[start:]))

    def _of(self, op: Op) -> Ends:
        if id(op) not in self._known:
            touched = effects_of_op(op, self._names)
            self._known[id(op)] = frozenset((e.kind, e.name) for e in touched if e.kind in ("send", "take"))
        return self._known[id(op)]
