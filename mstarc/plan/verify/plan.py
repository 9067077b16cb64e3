"""Everything that a plan says by itself. Takes a plan; gives faults, in the order of its walks."""

from __future__ import annotations

from mstarc.plan.evaluate import walks_of
from mstarc.plan.model import Plan
from mstarc.plan.verify.bodies import verify_bodies
from mstarc.plan.verify.fault import Fault
from mstarc.plan.verify.fusions import verify_fusions
from mstarc.plan.verify.launches import verify_launches


def verify_plan(plan: Plan) -> tuple[Fault, ...]:
    """What is wrong with a plan; nothing if it holds. Launches are looked at where bodies and tables are right. Raises what reading
    a body raises that is no IR."""
    walks = walks_of(plan)
    found = tuple(verify_bodies(plan, walks))
    return found or (*verify_launches(plan, walks), *verify_fusions(plan, walks))
