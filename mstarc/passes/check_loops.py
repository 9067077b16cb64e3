"""Loops: MC201 loop-bound, MC204 stale-body, MC205 an exit that cannot change. Takes a program; reports to the collector."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Block, ForChunks, Invoke, Loop, Next, Noise, Op, Program, Sample, Stop
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr, Ref, ValueId
from mstarc.ir.visit import blocks_of, entries_of, every_expr, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names
from mstarc.passes.ranges import Interval, Ranges, definitions, value_names, walk_ranges


def check_loops(program: Program, report: Collector) -> None:
    """Every loop of every walk and request."""
    names = Names(program)
    for walk in program.walks:
        words = value_names(walk.body, walk.params)
        _Unit(walk_ranges(program, walk), names, words, report).block(walk.body)
    for request in program.requests:
        words = value_names(request.body, request.inputs)
        _Unit(Ranges(program, definitions(request.body)), names, words, report).block(request.body)


@dataclass
class _Unit:
    """One walk or request. `words`: names of its values."""

    ranges: Ranges
    names: Names
    words: dict[int, str]
    report: Collector

    def block(self, block: Block) -> None:
        for op in block.ops:
            if not isinstance(op, Loop):
                for inner in blocks_of(op):
                    self.block(inner)
                continue
            text = shown(op.bound, self.words)
            bound = _check_bound(op, text, self.ranges, self.report)
            _check_change(op, text, self.names, self.report)
            self.ranges.iters[op.label] = Interval(0, max(0, bound.high - 1))
            self.block(op.body)
            self.ranges.iters.pop(op.label, None)


def _check_bound(loop: Loop, text: str, ranges: Ranges, report: Collector) -> Interval:
    """MC201: `max` is at least 1, `times` is at least 0 and not the literal 0, and both have an upper end."""
    bound = ranges.of(loop.bound)
    least = 1 if loop.kind == "max" else 0
    if bound.exact == 0:
        message = f"loop `{loop.label}` never runs: its bound `{text}` is 0"
        _bound_error(loop, message, "a bound is at least 1", report)
    elif bound.low == -inf or (bound.high == inf and not bound.sized):
        message = f"the bound `{text}` of loop `{loop.label}` has no provable range"
        help_text = "use a constant, a param with a range (`param n : int in 1..100 = 10`), or a config value that the YAML gives"
        _bound_error(loop, message, help_text, report)
    elif bound.low < least:
        message = f"the bound `{text}` of loop `{loop.label}` can be {bound.low}, below {least}"
        _bound_error(loop, message, f"raise the low end of the range to give at least {least}", report)
    return bound


def _bound_error(loop: Loop, message: str, help_text: str, report: Collector) -> None:
    report.report(rules.MC201, message, loop.span, subject=loop.label, help=help_text)


def _check_change(loop: Loop, bound: str, names: Names, report: Collector) -> None:
    """MC204 if no iteration can differ from the first; else MC205 for each stop whose flag cannot change."""
    moving: set[ValueId] = {c.inner.id for c in loop.carries}
    if not _spread(loop.body, loop.label, moving, names):
        message = f"each iteration of loop `{loop.label}` repeats the first"
        note = "the body reads no carried value, loop counter, stream, context, state or random draw"
        report.report(rules.MC204, message, loop.span, subject=loop.label, notes=(note,), help=_carry_help(loop))
        return
    for op in _own_stops(loop.body):
        if not _reads(op.cond, moving, loop.label) and ranges_matter(op.cond):
            message = f"the flag of `stop when` in loop `{loop.label}` is the same in every iteration"
            note = f"`{loop.label}` stops in its first iteration or never before its bound `{bound}`"
            report.report(rules.MC205, message, op.span, subject=loop.label, notes=(note,))


def ranges_matter(cond: Expr) -> bool:
    """Whether the flag reads a value at all: a flag over params alone is a switch, and may stand in a loop."""
    return any(True for _ in vars_of(cond))


def _carry_help(loop: Loop) -> str:
    if loop.carries:
        names = ", ".join(f"`{c.inner.name}`" for c in loop.carries)
        return f"read {names} in the body, or do the work once before the loop"
    return "add `carry` for the value that should move on"


def _own_stops(block: Block) -> list[Stop]:
    """The stops of a loop's body that end this loop."""
    out: list[Stop] = []
    for op in block.ops:
        if isinstance(op, Stop):
            out.append(op)
        elif not isinstance(op, Loop):
            for inner in blocks_of(op):
                out += _own_stops(inner)
    return out


def _spread(block: Block, label: str, moving: set[ValueId], names: Names) -> bool:
    """Add to `moving` every value of the block that can change between iterations; whether anything reads a moving one."""
    moved = False
    for op in block.ops:
        if isinstance(op, Loop):
            here = _spread_loop(op, label, moving, names)
        else:
            here = _source(op, names) or any(_reads(e, moving, label) for e in exprs_of(op))
            if here:
                moving.update(_bound_inside(op))
            for inner in blocks_of(op):
                here = _spread(inner, label, moving, names) or here
        if here:
            moving.update(v.id for v in results_of(op))
        moved = moved or here
    return moved


def _spread_loop(op: Loop, label: str, moving: set[ValueId], names: Names) -> bool:
    """A loop inside: its own counter and carries run alike in each outer iteration, unless something moving enters them."""
    here = any(_reads(e, moving, label) for e in exprs_of(op))
    while True:
        entering = [c.inner.id for c in op.carries if _reads(c.init, moving, label) or _reads(c.next, moving, label)]
        known = len(moving)
        moving.update(entering)
        here = _spread(op.body, label, moving, names) or here
        if len(moving) == known:
            return here


def _bound_inside(op: Op) -> list[ValueId]:
    return [value.id for _, values in entries_of(op) for value in values]


def _source(op: Op, names: Names) -> bool:
    """Whether the operation itself can give something else each time: it draws, takes, or reads what it or another writes."""
    match op:
        case Sample() | Noise() | Next() | ForChunks():
            return True
        case Invoke():
            declared, node = names.op(op), names.nodes.get(op.node)
            draws = declared is not None and (declared.attrs.random or bool(declared.attrs.samples))
            return bool(op.writes) or draws or bool(node and node.states)
        case _:
            return False


def _reads(expr: Expr, moving: set[ValueId], label: str) -> bool:
    if any(ident in moving for ident in vars_of(expr)):
        return True
    return any(part == Ref("iter", label) for part in every_expr(expr))
