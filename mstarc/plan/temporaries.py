"""The most that the values of one walk take at once on a rank, and the two operations that make that peak. Takes a layout; gives a `Peak`.

Values that have a size when a model is linked count, from the operation that makes them to the last one that reads them; what a loop reads
from outside lives until the loop ends. It is a floor: what a loop carries or takes is another name of a value, what is collected or sent
counts there, and copies inside of ops are not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstarc.ir.core import Block, Collect, Compute, ForChunks, Invoke, Loop, Noise, Op, Sample, Send, Value
from mstarc.ir.types import ValueId
from mstarc.ir.visit import blocks_of, every_op, exprs_of, results_of, vars_of
from mstarc.passes.liveness import reads_of_block
from mstarc.plan.evaluate import ConfigScope
from mstarc.plan.layout import Layout
from mstarc.plan.sizes import usual_size


@dataclass(frozen=True, slots=True)
class Peak:
    """bytes: of all values that live at once. made: the operation that makes the last of them; held: the one of the largest other."""

    bytes: int
    walk: str
    made: str
    held: str

    @property
    def text(self) -> str:
        """Where it is, in words."""
        beside = f" while {self.held} is held" if self.held else ""
        return f"walk `{self.walk}`, when it makes {self.made}{beside}"


@dataclass(slots=True)
class _Live:
    """One value: its bytes, what makes it, and the first and the last step at which it is there."""

    size: int
    by: str
    first: int
    last: int


def peak_of(layout: Layout, rank: int, most: ConfigScope) -> Peak | None:
    """The peak of one walk on a rank; None if no value of it has a size there."""
    lives = _Lives(layout, rank, most)
    best: Peak | None = None
    for live in lives.found.values():
        there = [other for other in lives.found.values() if other.first <= live.first <= other.last]
        total = sum(other.size for other in there)
        if best is None or total > best.bytes:
            others = [other for other in there if other is not live]
            held = max(others, key=lambda other: other.size).by if others else ""
            best = Peak(total, layout.walk.name, live.by, held)
    return best


class _Lives:
    """The sized values of a walk on one rank, by one pass over its steps."""

    def __init__(self, layout: Layout, rank: int, most: ConfigScope) -> None:
        self.layout, self.rank, self.most = layout, rank, most
        self.found: dict[ValueId, _Live] = {}
        self.step = 0
        ops = every_op(layout.walk.body)
        self.elsewhere = {i for op in ops if isinstance(op, (Collect, Send)) for i in vars_of(op.value)}
        if rank == layout.home:
            for value in layout.walk.params:
                self._make(value, f"`{value.name}`, which it is given")
        self._block(layout.walk.body)
        for output in layout.walk.outputs:
            self._read(output.value)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._op(op)

    def _op(self, op: Op) -> None:
        self.step += 1
        for expr in exprs_of(op):
            for ident in vars_of(expr):
                self._read(ident)
        for inner in blocks_of(op):
            self._block(inner)
        if isinstance(op, (Loop, ForChunks)):
            for ident in reads_of_block(op.body):
                self._read(ident)
        if isinstance(op, Loop):
            for ident in (i for carry in op.carries for i in vars_of(carry.next)):
                self._read(ident)
        elif isinstance(op, (Compute, Invoke, Noise, Sample)) and self.rank == self.layout.rank_of(op):
            for value in results_of(op):
                self._make(value, f"`{value.name}` by {_said(op)}")

    def _make(self, value: Value, by: str) -> None:
        counts = value.phase == "device" and value.id not in self.elsewhere
        size = usual_size(value.type, self.most) if counts else None
        if size:
            self.found.setdefault(value.id, _Live(size, by, self.step, self.step))

    def _read(self, ident: ValueId) -> None:
        if ident in self.found:
            self.found[ident].last = self.step


def _said(op: Op) -> str:
    return f"`{op.node}.{op.op}`" if isinstance(op, Invoke) else f"a `{type(op).__name__.lower()}`"


def largest_peak(layouts: Iterator[Layout], rank: int, most: ConfigScope) -> Peak | None:
    """The largest peak of the walks of a rank: walks follow each other."""
    peaks = [peak for layout in layouts if rank in layout.ranks and (peak := peak_of(layout, rank, most)) is not None]
    return max(peaks, key=lambda peak: peak.bytes, default=None)
