"""Launches of loops under a placement: how many iterations, and which consumers run in them. Takes a plan and ranks; gives `LoopLink`s."""

from __future__ import annotations

from collections.abc import Mapping

from mstarc.plan.model import FusionPlan, LoopPlan, Plan, WalkPlan
from mstarc_runtime.abi.linked import LoopLink


def link_loops(plan: Plan, ranks: Mapping[str, int]) -> list[LoopLink]:
    """Every loop of every walk, in the plan's order. ranks: walk -> rank."""
    return [_loop(walk, loop, fused_with(plan, walk, loop, ranks)) for walk in plan.walks for loop in walk.loops]


def fused_with(plan: Plan, walk: WalkPlan, loop: LoopPlan, ranks: Mapping[str, int]) -> list[FusionPlan]:
    """The fusions of a loop that are legal and whose two ends are on one rank.

    Several consumers run in one launch if they take the same number of iterations; else the first one sets the number, and the
    others stay apart.
    """
    found = [
        fusion
        for fusion in plan.fusions
        if (fusion.producer, fusion.loop) == (walk.name, loop.label)
        and not fusion.apart
        and ranks[fusion.consumer] == ranks[walk.name]
    ]
    return [fusion for fusion in found if fusion.unroll == found[0].unroll]


def _loop(walk: WalkPlan, loop: LoopPlan, fused: list[FusionPlan]) -> LoopLink:
    return LoopLink(
        walk=walk.name,
        label=loop.label,
        kind=loop.kind,
        region=loop.region,
        unroll=0 if loop.whole else fused[0].unroll if fused else 1,
        fused=[fusion.stream for fusion in fused],
        ahead=loop.ahead,
        rollback=loop.rollback,
    )
