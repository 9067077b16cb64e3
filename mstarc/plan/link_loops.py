"""Launches of loops under a placement: how many iterations, which consumers run in them. Takes a plan and layouts; gives `LoopLink`s."""

from __future__ import annotations

from collections.abc import Mapping

from mstarc.ir.fold import FoldError, fold
from mstarc.ir.types import Tensor
from mstarc.plan.evaluate import ConfigScope, DefaultScope, parse_expr, parse_type
from mstarc.plan.layout import Layout
from mstarc.plan.model import FusionPlan, LoopPlan, Plan, WalkPlan
from mstarc.plan.placement import Placement
from mstarc_runtime.abi.linked import LoopLink, ShapeLink


def link_loops(plan: Plan, placement: Placement, layouts: Mapping[str, Layout], scope: DefaultScope) -> list[LoopLink]:
    """Every loop of every walk, in the plan's order. A launch is of one rank, so loops of a split walk go step by step.

    Raises FoldError.
    """
    return [
        _loop(
            walk,
            loop,
            fused_with(plan, walk, loop, layouts),
            layouts[walk.name].split,
            placement.ahead.get(f"{walk.name}.{loop.label}") if loop.ahead else 0,
            scope,
        )
        for walk in plan.walks
        for loop in walk.loops
    ]


def fused_with(plan: Plan, walk: WalkPlan, loop: LoopPlan, layouts: Mapping[str, Layout]) -> list[FusionPlan]:
    """The fusions of a loop that are legal and whose two ends are wholly on one rank.

    Several consumers run in one launch if they take the same number of iterations; else the first one sets the number, and the
    others stay apart.
    """
    found = [
        fusion
        for fusion in plan.fusions
        if (fusion.producer, fusion.loop) == (walk.name, loop.label)
        and not fusion.apart
        and layouts[fusion.consumer].ranks == layouts[walk.name].ranks
        and not layouts[walk.name].split
    ]
    return [fusion for fusion in found if fusion.unroll == found[0].unroll]


def _loop(
    walk: WalkPlan, loop: LoopPlan, fused: list[FusionPlan], split: bool, ahead: int | None, scope: DefaultScope
) -> LoopLink:
    whole = loop.whole and not split
    if fused and ahead is not None and ahead < fused[0].unroll - 1:
        fused = []  # a launch of so many steps begins the last of them before any is checked
    return LoopLink(
        walk=walk.name,
        label=loop.label,
        kind=loop.kind,
        region=loop.region,
        others=loop.others,
        carry=[_shape(text, scope) for text in loop.carry],
        fixed=[_shape(text, scope) for text in loop.fixed],
        unroll=_steps(loop, scope) if whole else fused[0].unroll if fused else 1,
        whole=whole,
        fused=[fusion.stream for fusion in fused],
        ahead=ahead,
        rollback=loop.rollback,
    )


def _steps(loop: LoopPlan, scope: DefaultScope) -> int:
    """Steps of a static loop for the defaults; 1 if the request has to say."""
    try:
        return max(1, int(fold(parse_expr(loop.bound), scope)))
    except FoldError:
        return 1


def _shape(text: str, scope: ConfigScope) -> ShapeLink:
    """A tensor type whose dims are numbers and configs."""
    kind = parse_type(text)
    assert isinstance(kind, Tensor)
    return ShapeLink(dtype=kind.dtype, dims=[int(fold(dim, scope)) for dim in kind.dims])
