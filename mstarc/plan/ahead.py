"""MC208 unsafe-speculation: what `[ahead]` of a placement asks of loops. Takes a plan and a placement; reports findings.

A worker runs ahead by whole iterations. So a loop that is told to may have no effect that nothing undoes: above the check of its end
(MC208), where an iteration too many would have it; and, as workers are built today, below it neither (MC607).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.plan.model import BarPlan, LoopPlan, Plan
from mstarc.plan.placement import Placement
from mstarc.plan.rules import MC606, MC607
from mstarc.plan.spec_lines import spec_source, trimmed
from mstarc.source import Span


def report_ahead(plan: Plan, placement: Placement, spec: Path, report: Collector) -> None:
    """Every loop that `[ahead]` names and that may not run ahead, or has nothing to run ahead of."""
    for walk in plan.walks:
        for loop in walk.loops:
            name = f"{walk.name}.{loop.label}"
            if name in placement.ahead:
                _of_loop(plan, loop, name, placement.ahead[name], placement.where(name, "ahead"), spec, report)


def _of_loop(plan: Plan, loop: LoopPlan, name: str, ahead: int, at: Span, spec: Path, report: Collector) -> None:
    early = [bar for bar in loop.bars if bar.early]
    places, notes = _where(plan, early or loop.bars, spec) if ahead else ((), ())
    if not loop.checks:
        message = f"loop `{name}` has no `stop when` on a device value: its end is known before it starts"
        report.report(MC606, message, at, subject=name, help="leave the line out: such a loop runs without a check")
    elif ahead and early:
        report.report(
            rules.MC208,
            f"loop `{name}` may not begin {_iterations(ahead)} before it is known that it has ended: {early[0].text}",
            at,
            subject=name,
            secondary=places,
            notes=notes,
            help="say 0, or move what cannot be undone out of the loop",
        )
    elif ahead and loop.bars:
        report.report(
            MC607,
            f"loop `{name}` may begin {_iterations(ahead)} ahead of its check, but only what stands above the check",
            at,
            subject=name,
            secondary=places,
            notes=notes,
            help="not built yet: running ahead by less than an iteration; say 0",
        )


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{count} iterations"


def _where(plan: Plan, bars: Sequence[BarPlan], spec: Path) -> tuple[tuple[Label, ...], tuple[str, ...]]:
    """The effects as labels in the spec, if the package was made from it as it is now; else as notes."""
    source = spec_source(plan, spec)
    if source is not None:
        return tuple(Label(trimmed(source, bar.line), bar.text) for bar in bars), ()
    return (), tuple(f"line {bar.line} of {spec.name}: {bar.text}" for bar in bars)
