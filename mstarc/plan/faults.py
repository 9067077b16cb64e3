"""What the independent checker found in a package's plan, as findings at the lines of `plan.json`. Takes faults; reports.

The spec's line of the walk stands beside it, if the package was made from the spec as it is now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from mstarc import __version__
from mstarc.diagnostics.core import Collector, Label
from mstarc.plan.model import NAME, Plan
from mstarc.plan.spec_lines import spec_source, trimmed
from mstarc.plan.verify import Fault
from mstarc.source import Span


def report_faults(faults: Iterable[Fault], plan: Plan, package: Path, spec: Path, report: Collector) -> None:
    """One finding for each fault. package: the folder of the plan."""
    found = list(faults)
    if not found:
        return
    path = package / NAME
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    source = spec_source(plan, spec)
    lines = {walk.name: walk.line for walk in plan.walks}
    older = () if plan.compiler == __version__ else (f"mstarc {plan.compiler} wrote it, and this is {__version__}",)
    for fault in found:
        beside = source is not None and 1 <= lines.get(fault.walk, 0) <= source.text.count("\n") + 1
        label = (Label(trimmed(source, lines[fault.walk]), "the walk"),) if beside and source is not None else ()
        at, said = _place(str(path), text, fault)
        report.report(
            fault.rule,
            fault.message,
            at,
            secondary=label,
            notes=(*((f"in `{fault.op}`",) if fault.op and not said else ()), *older),
            help=f"write the package anew: mstarc compile {spec} -o {package}",
            subject=fault.subject,
        )


def _place(path: str, text: str, fault: Fault) -> tuple[Span, bool]:
    """The line of the walk's body that a fault is about, and whether it is the operation's own."""
    start = text.find(f'"walk {fault.walk}(')
    wanted = (json.dumps(fault.op, ensure_ascii=False)[1:-1], f"loop {fault.loop} ", "walk ")
    for words, given in zip(wanted, (fault.op, fault.loop, fault.walk), strict=True):
        at = text.find(words, start) if start >= 0 and given else -1
        if at >= 0:
            begin = len(text[:at].encode())
            end = text.find("\n", at)
            return Span(path, begin, begin + len(text[at:end].rstrip('",').encode())), words == wanted[0]
    return Span(path, 0, 0), False
