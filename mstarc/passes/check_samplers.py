"""MC013 for a setting of a sampler that no request could draw with. Takes a program; reports what its numbers decide."""

from __future__ import annotations

from math import inf, nextafter

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.text.expressions import shown
from mstarc.passes.ranges import Interval, Ranges

#: what a setting can be, and how that is said
_TAKEN = {
    "temperature": (Interval(0, inf), "at least 0"),
    "top_k": (Interval(0, inf), "at least 0"),
    "top_p": (Interval(0, 1), "in 0..1"),
    "repetition_penalty": (Interval(nextafter(0, 1), inf), "above 0"),
    "min_tokens": (Interval(0, inf), "at least 0"),
}


def check_samplers(program: Program, report: Collector) -> None:
    """Each setting can be in its range."""
    ranges = Ranges(program)
    for sampler in program.samplers:
        for name, value in sampler.settings:
            taken, said = _TAKEN.get(name, (Interval(), ""))
            found = ranges.of(value)
            if found.high < taken.low or found.low > taken.high:
                message = f"`{name}` of sampler `{sampler.name}` is {shown(value)}, and must be {said}"
                help_text = f"a setting that is off is left out; `{name}` is {said}"
                report.report(rules.MC013, message, sampler.span, subject=name, help=help_text)
