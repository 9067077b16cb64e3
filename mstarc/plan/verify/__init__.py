"""The independent checker (`verify-plan`): what a plan says, derived again from the bodies of its walks.

Takes a plan, and under a placement what is to move between ranks; gives `Fault`s. It shares no code with the passes and the planner, so
that one mistake is not made twice, and a plan that somebody edited, or that an older compiler wrote, is refused with a code. `compile`
runs it on every plan that it makes, `mstarc opt` as the pass `verify-plan`, and a link on what it reads and on what it moves.

A plan has no memory offsets and no release points, so nothing is said of those here: values of the host language free themselves.
"""

from mstarc.plan.verify.fault import Fault
from mstarc.plan.verify.linked import verify_linked
from mstarc.plan.verify.moves import verify_moves
from mstarc.plan.verify.plan import verify_plan

__all__ = ["Fault", "verify_linked", "verify_moves", "verify_plan"]
