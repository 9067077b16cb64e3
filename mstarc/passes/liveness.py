"""Which values code still reads. Takes operations; gives sets of value ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mstarc.ir.core import Block, Loop, Op, Output, When
from mstarc.ir.types import Ref, Tensor, ValueId
from mstarc.ir.visit import blocks_of, every_expr, exprs_of, vars_of


def reads_of(op: Op) -> Iterator[ValueId]:
    """Every value that the operation reads, inside its blocks too. What its blocks define themselves is among them."""
    for expr in exprs_of(op):
        yield from vars_of(expr)
    for block in blocks_of(op):
        yield from reads_of_block(block)
    match op:
        case Loop():
            for carry in op.carries:
                yield from vars_of(carry.next)
        case When():
            yield from (phi.inner for phi in op.results)


def reads_of_block(block: Block) -> Iterator[ValueId]:
    """Every value that a block reads."""
    for op in block.ops:
        yield from reads_of(op)


def read_after(ops: Sequence[Op], position: int, ends: Iterable[ValueId] = ()) -> frozenset[ValueId]:
    """The values that the operations after `ops[position]` read, and those that are due at the end."""
    return frozenset(ident for op in ops[position + 1 :] for ident in reads_of(op)) | frozenset(ends)


def read_in_walk(body: Block, outputs: Iterable[Output]) -> frozenset[ValueId]:
    """Every value of a walk that anything reads, its outputs included."""
    return frozenset(reads_of_block(body)) | frozenset(output.value for output in outputs)


def dims_of(kind: object) -> frozenset[str]:
    """Names of the free dims in a type."""
    if not isinstance(kind, Tensor):
        return frozenset()
    parts = (part for dim in kind.dims for part in every_expr(dim))
    return frozenset(part.name for part in parts if isinstance(part, Ref) and part.scope == "dim")
