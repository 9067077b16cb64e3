"""Which ends of streams a piece of program may still touch: what decides when a stream ends and when its consumer has.

An end is ("send", stream) or ("take", stream). The answer is structural: it does not look at values.
"""

from __future__ import annotations

from typing import TypeAlias

from mstarc.ir.core import Block, CallWalk, ForChunks, Next, Op, Program, Send
from mstarc.ir.visit import blocks_of

Ends: TypeAlias = frozenset[tuple[str, str]]
NOTHING: Ends = frozenset()


class Reach:
    """Answers for one program, remembered per block (the program outlives this)."""

    def __init__(self, program: Program) -> None:
        self._walks = {walk.name: walk.body for walk in program.walks}
        self._from: dict[int, tuple[Ends, ...]] = {}

    def of_op(self, op: Op) -> Ends:
        """What the operation and its blocks may touch."""
        match op:
            case Send(stream=stream):
                own: Ends = frozenset({("send", stream)})
            case Next(streams=streams) | ForChunks(streams=streams):
                own = frozenset(("take", stream) for stream in streams)
            case CallWalk(walk=walk):
                own = self.of_block(self._walks[walk])
            case _:
                own = NOTHING
        return own.union(*(self.of_block(block) for block in blocks_of(op)))

    def of_block(self, block: Block) -> Ends:
        return self.suffixes(block)[0]

    def suffixes(self, block: Block) -> tuple[Ends, ...]:
        """For i in 0..len: what operations i and later of the block may touch."""
        known = self._from.get(id(block))
        if known is None:
            found = [NOTHING]
            for op in reversed(block.ops):
                found.append(found[-1] | self.of_op(op))
            known = self._from[id(block)] = tuple(reversed(found))
        return known
