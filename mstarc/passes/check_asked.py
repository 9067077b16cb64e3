"""MC514 never-asked: `wants(M)` of an output and `given(M)` of an input that nothing declares, so that the answer is always no.

Takes a program; reports to the collector. What a request says itself must be declared there; what stands in a walk, a `let` or a
context belongs to several requests, and one of them must declare it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Block, Program, Request
from mstarc.ir.types import Apply, Expr, Ref
from mstarc.ir.visit import every_expr, every_op, exprs_of
from mstarc.passes.effects import calls_of
from mstarc.passes.scenario import gives
from mstarc.source import Span


def check_asked(program: Program, report: Collector) -> None:
    """Every `wants` and `given` of a program."""
    for request in program.requests:
        for span, fn, name in _asked(request.body):
            _check(fn, name, span, (request,), f"request `{request.name}`", report)
    for walk in program.walks:
        callers = [r for r in program.requests if any(call.walk == walk.name for call in calls_of(r.body))]
        for span, fn, name in _asked(walk.body):
            _check(fn, name, span, callers, f"any request that calls walk `{walk.name}`", report)
    shared = [(let.expr, let.span) for let in program.lets]
    shared += [(c.when, c.span) for c in program.contexts if c.when is not None]
    for expr, span in shared:
        for fn, name in _of(expr):
            _check(fn, name, span, program.requests, "any request", report)


def _asked(block: Block) -> Iterator[tuple[Span, str, str]]:
    for op in every_op(block):
        for expr in exprs_of(op):
            yield from ((op.span, fn, name) for fn, name in _of(expr))


def _of(expr: Expr) -> Iterator[tuple[str, str]]:
    """(`wants` or `given`, modality) of an expression."""
    for part in every_expr(expr):
        match part:
            case Apply("wants" | "given" as fn, (Ref(name=name),)):
                yield fn, name


def _check(fn: str, name: str, span: Span, requests: Iterable[Request], where: str, report: Collector) -> None:
    asked = list(requests)
    if not asked or any(_declares(request, fn, name) for request in asked):
        return
    what, help_text = (
        ("an output", f"add `{name}?` to the outputs of a request")
        if fn == "wants"
        else ("given by an input", f"add an input that is or may hold `{name}`")
    )
    message = f"`{fn}({name})` is never true: `{name}` is not {what} of {where}"
    report.report(rules.MC514, message, span, subject=f"{fn}({name})", help=help_text)


def _declares(request: Request, fn: str, name: str) -> bool:
    if fn == "wants":
        return any(modality == name for modality, _ in request.outputs)
    return any(gives(value.type, name) for value in request.inputs)
