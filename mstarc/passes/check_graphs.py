"""MC703 bucket-gap: the batch sizes that an op is captured for. Takes a program; reports to the collector."""

from __future__ import annotations

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.declarations import OpDecl
from mstarc.ir.text.expressions import shown
from mstarc.passes.ranges import Ranges


def check_graphs(program: Program, report: Collector) -> None:
    """`graph NAME low..high` of each op: it begins at 1 or more, ascends, and reaches the op's largest batch."""
    ranges = Ranges(program)
    for node in program.nodes:
        for op in node.ops:
            _check(f"{node.name}.{op.name}", op, ranges, report)


def _check(title: str, op: OpDecl, ranges: Ranges, report: Collector) -> None:
    attrs = op.attrs
    if attrs.graph_low is None or attrs.graph_high is None:
        return
    low, high = ranges.of(attrs.graph_low), ranges.of(attrs.graph_high)
    text = f"`{shown(attrs.graph_low)}..{shown(attrs.graph_high)}`"
    if low.low < 1:
        message = f"the graph sizes {text} of op `{title}` begin at {low.low}, and a batch has at least 1 request"
        report.report(rules.MC703, message, op.span, subject=title, help="begin at 1")
    elif low.high > high.low:
        message = f"the graph sizes {text} of op `{title}` do not ascend, so no batch is captured"
        report.report(rules.MC703, message, op.span, subject=title, help="write the smaller number first")
    elif attrs.batch_max is not None and ranges.of(attrs.batch_max).high > high.low:
        most = ranges.of(attrs.batch_max).high
        message = f"the graph sizes {text} of op `{title}` end at {high.low}, below its largest batch {most}"
        note = "a batch above the last size is not replayed: it misses its deadline under load only"
        report.report(rules.MC703, message, op.span, subject=title, notes=(note,), help=f"end at {most}")
