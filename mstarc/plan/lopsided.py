"""MC803 lopsided-par: `parallel` statements on ranks of their own that take very different times. Takes estimates; reports.

What reads their values waits for the last of them, and until then the ranks that are done hold what they made.
"""

from __future__ import annotations

from collections.abc import Iterable

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.plan.cost import Estimate
from mstarc.plan.placement import Placement

TIMES = 4  # as long, at least


def report_lopsided(estimates: Iterable[Estimate], placement: Placement, report: Collector) -> None:
    """One info for each `parallel`, whatever the request."""
    done: set[tuple[str, str]] = set()
    for found in estimates:
        for par in found.parallels:
            slow, fast = max(par.calls, key=lambda call: call.seconds), min(par.calls, key=lambda call: call.seconds)
            place = (par.walk, fast.binds)
            if slow.seconds < TIMES * fast.seconds or place in done:
                continue
            done.add(place)
            node, op = fast.op.split(".")
            longer = f"{slow.seconds / fast.seconds:.0f} times as long as `{fast.binds}` on rank {fast.rank}"
            report.report(
                rules.MC803,
                f"`{slow.binds}` on rank {slow.rank} takes {longer}",
                placement.line_of(node, op, par.walk, [fast.binds]),
                f"rank {fast.rank} waits",
                notes=(f"both stand in one `parallel` of walk `{par.walk}`, and what needs both waits for the longer",),
                subject=f"{par.walk}.{fast.binds}",
                help=f"place `{fast.binds}` where it has more to do, or beside `{slow.binds}`",
            )
