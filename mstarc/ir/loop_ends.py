"""How a loop's `stop when` counts as the loop's end: by itself (`stop`), or as reaching the bound (`max`)."""

from __future__ import annotations

from typing import Literal

from mstarc.ir.core import Loop, Stop
from mstarc.ir.types import Binary, Expr, Lit, Ref


def cause_of(stop: Stop, loop: Loop) -> Literal["stop", "max"]:
    """`max` where the condition says just that this is the last body that the bound allows: `iter + 1 == bound`.

    Such a stop leaves out the rest of the last body; what ended the loop is still its bound, and a client is told so.
    """
    if not isinstance(stop.cond, Binary) or stop.cond.op not in ("==", ">="):
        return "stop"
    (counted, ahead), (most, less), (bound, more) = (_plus(e) for e in (stop.cond.a, stop.cond.b, loop.bound))
    last = counted == Ref("iter", loop.label) and most == bound and ahead - less == 1 - more
    return "max" if last else "stop"


def _plus(expr: Expr) -> tuple[Expr | None, int]:
    """An expression as something and a whole number that is added to it; None = only a number."""
    match expr:
        case Lit(value) if isinstance(value, int) and not isinstance(value, bool):
            return None, value
        case Binary("+" | "-" as sign, a, Lit(value)) if isinstance(value, int):
            inner, more = _plus(a)
            return inner, more + (value if sign == "+" else -value)
        case _:
            return expr, 0
