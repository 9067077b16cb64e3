"""Lowering: syntax tree to IR. Names, types, phases and structure are checked on the way; every mistake is reported once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mstarc.diagnostics.core import Collector
from mstarc.ir import core
from mstarc.passes.lower.declarations import Declarations
from mstarc.passes.lower.finish import finish
from mstarc.passes.lower.known import Given
from mstarc.passes.lower.requests import Phases, RequestBody
from mstarc.passes.lower.symbols import Symbols
from mstarc.passes.lower.walks import WalkBody
from mstarc.syntax import ast

__all__ = ["lower"]


def lower(model: ast.Model, collector: Collector, given: Mapping[str, Given] | None = None) -> core.Program | None:
    """The model as IR; None if there were errors. Requests come first: they say which walk parameters are host values.

    given: config path -> its value, with which dims are compared; the IR keeps the names.
    """
    symbols = Symbols(collector, model.lost)
    declarations = Declarations(model, symbols, collector, given)
    declarations.declare_all()
    program = declarations.lower()
    phases: Phases = {}
    requests: list[tuple[core.Request, RequestBody]] = []
    for tree in declarations.of(ast.Request):
        request = RequestBody(program, symbols, declarations, collector, tree, phases)
        requests.append((request.lower(), request))
    walks: list[tuple[core.Walk, WalkBody]] = []
    for written in declarations.of(ast.Walk):
        walk = WalkBody(program, symbols, declarations, collector, written)
        walks.append((walk.lower(phases.get(written.name.text, {})), walk))
    if collector.failed or not model.complete:
        return None
    return replace(
        program,
        walks=tuple(finish(walk, body) for walk, body in walks),
        requests=tuple(finish(request, body) for request, body in requests),
    )
