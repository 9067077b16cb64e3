"""Sizes by the numbers that the model and its binding give: MC517 cache-geometry, MC007 for a dim below 0. Takes a program; reports.

What the numbers do not decide (a length, a param, a checkpoint's own config) is left to link and to the request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Noise, Program
from mstarc.ir.declarations import Cache
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr, Lit, Ref, Struct, Tensor, Type
from mstarc.ir.visit import every_op
from mstarc.passes.ranges import Ranges
from mstarc.source import Span


@dataclass(frozen=True, slots=True)
class Size:
    """An expression that is to be a whole number of at least `least`, and what it is the size of."""

    what: str
    expr: Expr
    span: Span
    least: int = 0


def check_sizes(program: Program, report: Collector) -> None:
    """Each size that is a number already, and heads that groups of keys divide."""
    ranges, bound = Ranges(program), {Ref("config", config.name) for config in program.configs if config.path}
    for size in sizes_of(program):
        found = ranges.of(size.expr)
        if found.high < size.least and size.expr not in bound:  # that one is told at the binding
            rule = rules.MC517 if size.least else rules.MC007
            is_ = f" is {found.high:g}" if found.low == found.high and not isinstance(size.expr, Lit) else ""
            message = f"{size.what} is at least {size.least}, and `{shown(size.expr)}`{is_ or ' is not'}"
            report.report(
                rule, message, size.span, subject=size.what, help=f"give it a number of at least {size.least}"
            )
    for cache in program.caches:
        _check_heads(cache, ranges, report)


def _check_heads(cache: Cache, ranges: Ranges, report: Collector) -> None:
    heads, groups = ranges.of(cache.heads), ranges.of(cache.kv_heads)
    if heads.low == heads.high and groups.low == groups.high >= 1 and heads.high % groups.high:
        message = f"cache `{cache.name}` has {heads.high:g} heads and {groups.high:g} of keys and values, which do not divide them"
        report.report(
            rules.MC517, message, cache.span, subject=cache.name, help="as many heads share each of keys and values"
        )


def sizes_of(program: Program) -> Iterator[Size]:
    """The numbers of caches, the bounds of contexts, and every dim."""
    for cache in program.caches:
        for name in ("layers", "heads", "kv_heads", "head_dim"):
            yield Size(f"`{name}` of cache `{cache.name}`", getattr(cache, name), cache.span, 1)
    for context in program.contexts:
        if context.max is not None:
            yield Size(f"the `max` of context `{context.name}`", context.max, context.span, 1)
    for node in program.nodes:
        for op in node.ops:
            for port in (*op.params, *op.results):
                yield from _dims(f"`{port.name}` of op `{node.name}.{op.name}`", port.type, op.span)
    for extern in program.externs:
        for port in (*extern.params, *extern.results):
            yield from _dims(f"`{port.name}` of extern `{extern.name}`", port.type, extern.span)
    for stream in program.streams:
        yield from _dims(f"an item of stream `{stream.name}`", stream.item, stream.span)
    for request in program.requests:
        for value in request.inputs:
            yield from _dims(f"input `{value.name}` of request `{request.name}`", value.type, value.span)
    for walk in program.walks:
        for op_ in every_op(walk.body):
            if isinstance(op_, Noise):
                yield from _dims(f"noise `{op_.site}` of walk `{walk.name}`", op_.result.type, op_.span)


def _dims(what: str, kind: Type, span: Span) -> Iterator[Size]:
    if isinstance(kind, Tensor):
        for dim in kind.dims:
            yield Size(f"a dim of {what}", dim, span)
    elif isinstance(kind, Struct):
        for _, field in kind.fields:
            yield from _dims(what, field, span)
