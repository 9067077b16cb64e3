"""How many items a request sends on a stream. Takes a program; gives the most, and the exact number where there is one."""

from __future__ import annotations

from math import inf

from mstarc.ir.core import Block, CallWalk, ForChunks, ForParts, If, Loop, Op, Program, Send, Stop, When
from mstarc.ir.visit import blocks_of, every_op
from mstarc.passes.ranges import Ranges


def most_items(stream: str, program: Program, ranges: Ranges) -> float:
    """Upper bound of the items that one request sends; inf if a part list or a stream drives the sends."""
    return max((_most(r.body, stream, program, ranges) for r in program.requests), default=0)


def exact_items(stream: str, program: Program, ranges: Ranges) -> int | None:
    """The items that every request sends, if that is one number: constant loops only, no condition, no stop, no `where`."""
    declared = next(s for s in program.streams if s.name == stream)
    if declared.where is not None:
        return None
    counts = {_exact(r.body, stream, program, ranges) for r in program.requests}
    counts.discard(0)
    return counts.pop() if len(counts) == 1 else None


def _inner(op: Op, program: Program) -> tuple[Block, ...]:
    """The blocks of an operation, or the body of the walk that it calls."""
    if isinstance(op, CallWalk):
        return tuple(w.body for w in program.walks if w.name == op.walk)
    return blocks_of(op)


def _most(block: Block, stream: str, program: Program, ranges: Ranges) -> float:
    total = 0.0
    for op in block.ops:
        if isinstance(op, Send):
            total += op.stream == stream
            continue
        inner = sum(_most(b, stream, program, ranges) for b in _inner(op, program))
        total += _most_runs(op, ranges) * inner if inner else 0
    return total


def _most_runs(op: Op, ranges: Ranges) -> float:
    if isinstance(op, Loop):
        return ranges.of(op.bound).high
    return inf if isinstance(op, (ForChunks, ForParts)) else 1


def _exact(block: Block, stream: str, program: Program, ranges: Ranges) -> int | None:
    total = 0
    for op in block.ops:
        if isinstance(op, Send):
            total += op.stream == stream
            continue
        for inner in _inner(op, program):
            count = _exact(inner, stream, program, ranges)
            if count == 0:
                continue
            runs = _exact_runs(op, ranges)
            if count is None or runs is None:
                return None
            total += count * runs
    return total


def _exact_runs(op: Op, ranges: Ranges) -> int | None:
    if isinstance(op, Loop):
        stops = any(isinstance(inner, Stop) for inner in every_op(op.body))
        bound = ranges.of(op.bound).exact
        return None if stops or bound is None else int(bound)
    return None if isinstance(op, (When, If, ForParts, ForChunks)) else 1
