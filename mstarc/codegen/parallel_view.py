"""A `parallel` whose statements are calls as one statement: the calls of one op are rows of one batch. In a walk's coroutine

v, a = yield walk.parallel(
    walk.call("llm.velocity", x, t, reads=("main",)),
    walk.call("llm.velocity", x, t, reads=("no_text",)) if on else ABSENT,
)

and in a region

v, a = b.parallel(
    b.arm("llm.velocity", x, t, reads=("main",)),
    b.arm("llm.velocity", x, t, reads=("no_text",)),
)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from mstarc.codegen.calls import argument_of, call_of
from mstarc.codegen.expressions import Place, text
from mstarc.codegen.layout import INDENT, WIDTH, Call, Choice, Part, flat
from mstarc.codegen.source import bind
from mstarc.ir.core import Block, Invoke, Op, When
from mstarc.ir.types import Apply, Lit, ValueId, Var
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names


def parallel_of(body: Block, names: Names, place: Place, read: Container[ValueId], depth: int) -> Part | None:
    """The statement of a coroutine, or None where the block holds something else, one call needs another's result, or a line would be
    too long: then one after the other will do.
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


def arms_of(
    body: Block, names: Names, place: Place, read: Container[ValueId], fresh: Callable[[str], str]
) -> tuple[Part, ...] | None:
    """The statements of a region, or None where a call has several results or draws. What several calls are given is computed once and
    named (`fresh` makes the name), so that calls that are the same are known to be: they are run once on contexts that are equal.
    """
    calls = [op for op in body.ops if isinstance(op, Invoke) and _simple(op, names) and not _guides(op)]
    if len(calls) < len(body.ops):
        return None
    given = Counter(argument for call in calls for argument, _ in _computed(call, names, place))
    named: dict[str, str] = {}
    for call in calls:
        for argument, port in _computed(call, names, place):
            if given[argument] > 1 and argument not in named:
                named[argument] = fresh(port)
    items: list[str | Call] = []
    targets: list[str | None] = []
    for call in calls:
        made = call_of(call, names, replace(place, span=call.span), read, "b.arm")
        args = tuple(named.get(item, item) if isinstance(item, str) else item for item in made.items)
        items.append(replace(made, items=args))
        value = next((v for v in call.results if v is not None), None)
        targets.append(place.names[value.id] if value is not None and value.id in read else None)
    before = tuple(f"{name} = {argument}" for argument, name in named.items())
    return (*before, bind(targets, Call("b.parallel", tuple(items)), several=True))


def _computed(call: Invoke, names: Names, place: Place) -> Iterator[tuple[str, str]]:
    """(text, name of the parameter) of the arguments that are computed."""
    decl = names.op(call)
    assert decl is not None, "the verifier knows every op"
    for arg, port in zip(call.args, decl.params, strict=True):
        if arg is not None and not isinstance(arg, Var | Lit):
            yield argument_of(arg, port, place), port.name


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
