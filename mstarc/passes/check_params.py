"""Params: MC508 default-out-of-range. Takes a program; reports defaults that the param itself would refuse, and empty ranges."""

from __future__ import annotations

from math import inf

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.declarations import Param
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Enum, Expr, Lit, Ref, Scalar
from mstarc.passes.ranges import Interval, Ranges, leaves


def check_params(program: Program, report: Collector) -> None:
    """A default, on each of its branches, lies in the param's range or is one of its members; a range is not empty."""
    ranges = Ranges(program)
    for param in program.params:
        if not _range_is_empty(param, ranges, report) and param.default is not None:
            for leaf in leaves(param.default):
                _check_default(param, leaf, ranges, report)


def _range_is_empty(param: Param, ranges: Ranges, report: Collector) -> bool:
    if param.low is None or param.high is None:
        return False
    low, high = ranges.of(param.low), ranges.of(param.high)
    if low.low <= high.high:
        return False
    message = f"the range of `{param.name}` is empty: {shown(param.low)} is above {shown(param.high)}"
    report.report(rules.MC508, message, param.span, "no value can be given", subject=param.name)
    return True


def _check_default(param: Param, leaf: Expr, ranges: Ranges, report: Collector) -> None:
    if isinstance(param.type, Enum):
        if isinstance(leaf, Ref) and leaf.scope == "member" and leaf.name not in param.type.members:
            text = f"the default of `{param.name}` is `{leaf.name}`, which is not one of its members"
            report.report(
                rules.MC508, text, param.span, subject=param.name, help="members: " + ", ".join(param.type.members)
            )
        return
    if not isinstance(param.type, Scalar) or param.low is None or param.high is None:
        return
    allowed = Interval(ranges.of(param.low).low, ranges.of(param.high).high)
    found = ranges.of(leaf)
    if -inf in (found.low, allowed.low) or inf in (found.high, allowed.high):
        return
    if allowed.low <= found.low and found.high <= allowed.high:
        return
    value = shown(leaf) if isinstance(leaf, Lit) or found.exact is None else str(found.exact)
    may = "is" if found.exact is not None else f"can be {found.low}..{found.high} and is"
    report.report(
        rules.MC508,
        f"the default {value} of `{param.name}` {may} outside {allowed.low}..{allowed.high}",
        param.span,
        "a request that leaves it out would be refused",
        subject=param.name,
        help="widen the range or move the default into it",
    )
