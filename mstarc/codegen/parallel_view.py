"""A `parallel` whose statements are calls as one `yield walk.parallel(...)`: the calls of one op are rows of one batch.

v, a = yield walk.parallel(
    walk.call("llm.velocity", x, t, reads=("main",)),
    walk.call("llm.velocity", x, t, reads=("no_text",)) if on else ABSENT,
)
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from mstarc.codegen.calls import call_of
from mstarc.codegen.expressions import Place, text
from mstarc.codegen.layout import INDENT, WIDTH, Call, Choice, Part, flat
from mstarc.codegen.source import bind
from mstarc.ir.core import Block, Invoke, Op, When
from mstarc.ir.types import Apply, ValueId
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names


def parallel_of(body: Block, names: Names, place: Place, read: Container[ValueId], depth: int) -> Part | None:
    """The statement, or None where the block holds something else, one call needs another's result, or a line would be too long: then
    one after the other will do.
    """
    items: list[Call | Choice] = []
    targets: list[str | None] = []
    defined = {value.id for op in every_op(body) for value in results_of(op)}
    if any(ident in defined for op in every_op(body) for expr in exprs_of(op) for ident in vars_of(expr)):
        return None
    for op in body.ops:
        call = _call_in(op)
        if call is None or not _simple(call, names) or _guides(op):
            return None
        value = next((v for v in call.results if v is not None), None)
        phi = next((p.result for p in op.results), value) if isinstance(op, When) else value
        bound = phi is not None and value is not None and (phi.id in read or value.id in read)
        made = call_of(call, names, replace(place, span=call.span), read, "walk.call")
        cond = text(op.cond, replace(place, span=op.span)) if isinstance(op, When) else ""
        if len(INDENT) * (depth + 1) + max(len(flat(made)), len(f"if {cond}")) >= WIDTH:
            return None
        items.append(Choice(made, cond, "ABSENT") if cond else made)
        targets.append(place.names[phi.id] if bound and phi is not None else None)
    if len(items) < 2:
        return None
    return bind(targets, Call("yield walk.parallel", tuple(items)), several=True)


def _call_in(op: Op) -> Invoke | None:
    """The one call that a statement of a `parallel` is."""
    if isinstance(op, Invoke):
        return op
    inner = op.body.ops if isinstance(op, When) else ()
    return inner[0] if len(inner) == 1 and isinstance(inner[0], Invoke) else None


def _simple(call: Invoke, names: Names) -> bool:
    """Whether a call has one result at most and draws nothing: draws keep the order in which the program says them."""
    decl = names.op(call)
    return decl is not None and len(decl.results) <= 1 and not decl.attrs.random and not decl.attrs.samples


def _guides(op: Op) -> bool:
    """Whether an argument needs a statement of its own."""
    ops = (op, *op.body.ops) if isinstance(op, When) else (op,)
    return any(
        isinstance(part, Apply) and part.fn == "guide" for o in ops for expr in exprs_of(o) for part in every_expr(expr)
    )
