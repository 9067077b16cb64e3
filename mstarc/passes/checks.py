"""The checks in order. Takes a program and a collector; every check reports and goes on.

Checks of a later stage assume what an earlier one proved, so a stage with errors is the last one that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.errors import PassFailed
from mstarc.passes.check_asked import check_asked
from mstarc.passes.check_contexts import check_contexts
from mstarc.passes.check_control import check_control
from mstarc.passes.check_graphs import check_graphs
from mstarc.passes.check_loops import check_loops
from mstarc.passes.check_overlap import check_overlap
from mstarc.passes.check_params import check_params
from mstarc.passes.check_requests import check_requests
from mstarc.passes.check_samplers import check_samplers
from mstarc.passes.check_schedule import check_schedule
from mstarc.passes.check_sizes import check_sizes
from mstarc.passes.check_streams import check_streams
from mstarc.passes.check_use import check_use

Check: TypeAlias = Callable[[Program, Collector], None]

STAGES: tuple[tuple[Check, ...], ...] = (
    (
        check_params,
        check_use,
        check_loops,
        check_control,
        check_contexts,
        check_samplers,
        check_sizes,
        check_streams,
        check_overlap,
        check_requests,
        check_asked,
        check_graphs,
    ),
    (check_schedule,),
)


def run_checks(program: Program, report: Collector) -> None:
    """Run every stage until one finds errors. Raises PassFailed if a check itself fails."""
    for stage in STAGES:
        for check in stage:
            try:
                check(program, report)
            except Exception as error:
                raise PassFailed(check.__name__, error, program) from error
        if report.failed:
            return
