"""Lowering: syntax tree to IR. Names, types, phases and structure are checked on the way; every mistake is reported once."""

from __future__ import annotations

from dataclasses import replace

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core
from mstarc.ir.types import Phase
from mstarc.passes.lowering.declarations import Declarations
from mstarc.passes.lowering.finish import finish
from mstarc.passes.lowering.requests import RequestBody
from mstarc.passes.lowering.symbols import Symbols
from mstarc.passes.lowering.walks import WalkBody
from mstarc.syntax import ast

__all__ = ["lower"]


def lower(model: ast.Model, report: Collector) -> core.Program | None:
    """The model as IR; None if there were errors. Requests come first: they say which walk parameters are host values."""
    symbols = Symbols(report, model.complete)
    declarations = Declarations(model, symbols, report)
    declarations.declare_all()
    program = declarations.lower()
    _check_lets(program, report)
    phases: dict[str, dict[str, Phase]] = {}
    requests: list[core.Request] = []
    for request in declarations.of(ast.Request):
        lowering = RequestBody(program, symbols, declarations, report, request, phases)
        lowered = lowering.lower()
        if not report.failed:  # after an error values may be used that nothing defines
            requests.append(finish(lowered, lowering.temporary, report))
    walks: list[core.Walk] = []
    for walk in declarations.of(ast.Walk):
        body = WalkBody(program, symbols, declarations, report, walk)
        made = body.lower(phases.get(walk.name.text, {}))
        if not report.failed:
            walks.append(finish(made, body.temporary, report))
    if report.failed or not model.complete:
        return None
    return replace(program, walks=tuple(walks), requests=tuple(requests))


def _check_lets(program: core.Program, report: Collector) -> None:
    """Lets, defaults and configs may refer to each other, but not in a circle."""
    from mstarc.ir.types import Ref
    from mstarc.ir.visit import every_expr

    needs: dict[str, tuple[set[str], core.Let | core.Param]] = {}
    for let in program.lets:
        needs[let.name] = (
            {e.name for e in every_expr(let.expr) if isinstance(e, Ref) and e.scope in ("let", "param")},
            let,
        )
    for param in program.params:
        if param.default is not None:
            refs = {e.name for e in every_expr(param.default) if isinstance(e, Ref) and e.scope in ("let", "param")}
            needs[param.name] = (refs, param)
    done: set[str] = set()
    while ready := [name for name, (refs, _) in needs.items() if name not in done and not (refs & needs.keys()) - done]:
        done.update(ready)
    for name in sorted(needs.keys() - done):
        report.report(
            rules.MC101,
            f"the value of `{name}` depends on itself",
            needs[name][1].span,
            "in a circle",
            subject=name,
        )
        return
