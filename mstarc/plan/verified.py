"""A plan that the independent checker has looked at. Takes what `build_plan` takes; if it does not hold, the compiler is at fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mstarc.binding_file import Binding
from mstarc.ir.core import Program
from mstarc.ir.errors import InternalError
from mstarc.plan.build import build_plan
from mstarc.plan.model import Plan, SpecPlan
from mstarc.plan.verify import Fault, verify_plan
from mstarc.source import SourceFile


class PlanFault(InternalError):
    """A plan says something that the bodies of its walks do not."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        said = (f"{f.rule.code} {f.rule.name}: {f.message}" + (f", in `{f.op}`" if f.op else "") for f in faults)
        super().__init__("the plan does not hold:\n  " + "\n  ".join(said))
        self.faults = tuple(faults)


def verified_plan(program: Program, binding: Binding, spec: SpecPlan, source: SourceFile) -> Plan:
    """The plan, which holds. Raises PlanFault."""
    plan = build_plan(program, binding, spec, source)
    faults = verify_plan(plan)
    if faults:
        raise PlanFault(faults)
    return plan


def plan_alone(program: Program) -> Plan:
    """The plan of a program without spec and binding. Raises PlanFault."""
    return verified_plan(program, Binding(), SpecPlan(path="", binding="", digest=""), SourceFile("", ""))


def say_plan(program: Program, plan: Plan) -> Iterator[str]:
    """One line for each walk: what was derived again and found to be so."""
    for walk in plan.walks:
        launches = [loop.label for loop in walk.loops if loop.region or loop.whole]
        said = f"{len(walk.loops)} loops, launches: {', '.join(launches) or 'none'}" if walk.loops else "no loop"
        yield f"walk {walk.name} holds: {said}"
    for fusion in plan.fusions:
        if not fusion.apart:
            ends = f"{fusion.producer}.{fusion.loop} and {fusion.consumer}"
            yield f"one launch of {ends} holds: {fusion.unroll} steps, {fusion.firings} firings"
