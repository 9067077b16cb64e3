"""The launches of a linked program, for a reader: what is in each, and what keeps it from holding more. Takes plan and link; gives rows.

A launch is what a device runs between two looks of the host. Where regions are not captured (a CPU rank, a loop that is still part of
its walk's coroutine) the same calls run one iteration after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from mstarc.ir.fold import FoldError, fold
from mstarc.ir.text.expressions import shown
from mstarc.plan.evaluate import DefaultScope, parse_expr
from mstarc.plan.model import FusionPlan, LoopPlan, Plan
from mstarc_runtime.abi.linked import Linked, LoopLink, WalkLink


class RegionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One loop, or one phase of a static one. launch: calls of one launch. note: why not more, or how items are counted."""

    loop: str
    rank: int
    runs: str  # region (a method for many requests) | coroutine
    launch: str
    ahead: str = ""
    note: str = ""


def region_rows(plan: Plan, linked: Linked, overrides: Mapping[str, Any] | None = None) -> list[RegionRow]:
    """Every loop in the plan's order."""
    scope = DefaultScope(plan, overrides or {})
    loops = {(walk.name, loop.label): loop for walk in plan.walks for loop in walk.loops}
    walks = {walk.name: walk for walk in linked.walks}
    found: list[RegionRow] = []
    for link in linked.loops:
        found += _rows(plan, loops[link.walk, link.label], link, walks, scope)
    return found


def _rows(
    plan: Plan, loop: LoopPlan, link: LoopLink, walks: Mapping[str, WalkLink], scope: DefaultScope
) -> Iterator[RegionRow]:
    rank = walks[link.walk].rank
    name = f"{link.walk}.{link.label}"
    runs = "region" if link.region else "coroutine"
    fusions = [f for f in plan.fusions if (f.producer, f.loop) == (link.walk, link.label)]
    if link.whole:
        steps = _steps(loop, scope)
        varied = f"a launch for each of {', '.join(loop.variants)} and not" if loop.variants else ""
        if len(loop.phases) == 1:
            launch = f"all {steps}: {_each(loop.phases[0].calls)}"
            yield RegionRow(loop=name, rank=rank, runs=runs, launch=launch, note=varied)
            return
        yield RegionRow(
            loop=name, rank=rank, runs=runs, launch=f"all {steps}, in {len(loop.phases)} phases", note=varied
        )
        for phase in loop.phases:
            said = zip(loop.conditions, phase.holds, strict=True)
            label = "  " + ", ".join(cond if holds else f"not {cond}" for cond, holds in said)
            yield RegionRow(loop=label, rank=rank, runs="", launch=_each(phase.calls))
        return
    fused = [f for f in fusions if f.stream in link.fused]
    yield RegionRow(
        loop=name,
        rank=rank,
        runs=runs,
        launch=_fused(fused) if fused else "1 step",
        ahead=_ahead(loop, link),
        note=_note(loop, link, fusions, walks),
    )


def _steps(loop: LoopPlan, scope: DefaultScope) -> str:
    """`flow_steps steps (10)`: the bound as the spec says it, and its value for the defaults."""
    bound = parse_expr(loop.bound)
    try:
        return f"{shown(bound)} steps ({fold(bound, scope)} by default)"
    except FoldError:
        return f"{shown(bound)} steps"


def _each(calls: list[str]) -> str:
    return " + ".join(calls) or "no call"


def _fused(fused: list[FusionPlan]) -> str:
    """`7 llm.step + 1 snac.decode`."""
    counts: Counter[str] = Counter({call: fused[0].unroll * n for call, n in Counter(fused[0].step_calls).items()})
    for fusion in fused:
        counts.update(fusion.firing_calls * fusion.firings)
    return " + ".join(f"{count} {call}" for call, count in counts.items())


def _ahead(loop: LoopPlan, link: LoopLink) -> str:
    if link.ahead == 0:
        return "no"
    if not loop.checks:
        return ""
    may = "yes" if link.ahead is None else f"at most {link.ahead}"
    return f"{may}: {', '.join(link.rollback)} cut back" if link.rollback else may


def _note(loop: LoopPlan, link: LoopLink, fusions: list[FusionPlan], walks: Mapping[str, WalkLink]) -> str:
    said = list(loop.apart)
    if walks[link.walk].ranks:
        said.append(f"{link.walk} runs on ranks {', '.join(map(str, walks[link.walk].ranks))}")
    for fusion in fusions:
        if fusion.stream in link.fused:
            said += [f"items of {fusion.stream} are counted on the device"] if fusion.compacts else []
        elif fusion.apart:
            said += [reason for reason in fusion.apart[:1] if not any(part in reason for part in loop.apart)]
        elif walks[fusion.consumer].rank != walks[link.walk].rank:
            said.append(f"{fusion.consumer} takes {fusion.stream} on another rank")
    return "; ".join(said)
