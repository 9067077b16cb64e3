"""Which rank runs what of a walk. Takes a plan and a placement; gives a `Layout` per walk.

A call runs where the placement puts it. What is no call (draws, arithmetic, emissions, sends) runs on the walk's *home*: the rank of
the first call in its first loop, or of its first call. A walk without calls is at home where the other end of one of its streams is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstarc.ir.core import Block, ForChunks, Invoke, Loop, Walk
from mstarc.ir.visit import every_op
from mstarc.plan.evaluate import walks_of
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement, Ranks


@dataclass(frozen=True, slots=True)
class Layout:
    """One walk on its ranks. at: id of a call's operation -> its ranks (several: a tensor parallel group)."""

    walk: Walk
    home: int
    at: Mapping[int, Ranks]
    before: tuple[str, ...] = ()  # walks that may have run in a request when this one starts

    @property
    def ranks(self) -> Ranks:
        """Every rank that takes part, in order."""
        return tuple(sorted({self.home, *(rank for group in self.at.values() for rank in group)}))

    @property
    def split(self) -> bool:
        """Whether different calls are on different ranks."""
        return len({group[0] for group in self.at.values()} | {self.home}) > 1

    @property
    def groups(self) -> tuple[Ranks, ...]:
        """Its tensor parallel groups."""
        return tuple(sorted({group for group in self.at.values() if len(group) > 1}))

    def rank_of(self, op: object) -> int:
        """Where one operation of the walk runs."""
        return self.at[id(op)][0] if id(op) in self.at else self.home


def layouts_of(plan: Plan, placement: Placement) -> dict[str, Layout]:
    """The layout of every walk."""
    walks = walks_of(plan)
    placed = {walk.name: _calls_at(walk, placement) for walk in walks}
    homes = {walk.name: home for walk in walks if (home := _home(walk.body, placed[walk.name])) is not None}
    for walk in walks:
        if walk.name not in homes:
            homes[walk.name] = next(iter(_partners(plan, walk.name, homes)), placement.default)
    before = {walk.name: tuple(walk.before) for walk in plan.walks}
    return {w.name: Layout(w, homes[w.name], placed[w.name], before[w.name]) for w in walks}


def _calls_at(walk: Walk, placement: Placement) -> dict[int, Ranks]:
    calls = (op for op in every_op(walk.body) if isinstance(op, Invoke))
    return {id(op): placement.ranks_of(op.node, op.op, walk.name, binds_of(op)) for op in calls}


def binds_of(op: Invoke) -> list[str]:
    """Names of the values that a call binds."""
    return [value.name for value in op.results if value is not None]


def _home(body: Block, at: Mapping[int, Ranks]) -> int | None:
    loops = (op.body for op in every_op(body) if isinstance(op, (Loop, ForChunks)))
    for block in (*loops, body):
        for op in every_op(block):
            if id(op) in at:
                return at[id(op)][0]
    return None


def _partners(plan: Plan, name: str, homes: Mapping[str, int]) -> list[int]:
    """Homes of the walks at the other ends of a walk's streams."""
    walk = {walk.name: walk for walk in plan.walks}[name]
    return [
        homes[other.name]
        for other in plan.walks
        if other.name in homes and (set(walk.sends) & set(other.takes) or set(walk.takes) & set(other.sends))
    ]
