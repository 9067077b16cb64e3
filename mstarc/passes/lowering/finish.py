"""The last step of lowering: results that nobody uses are left out, and values are numbered in order of definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir import core
from mstarc.ir.types import ValueId, Var
from mstarc.ir.visit import every_op, exprs_of, vars_of

Unit = TypeVar("Unit", core.Walk, core.Request)


def finish(unit: Unit, temporary: Iterable[int], report: Collector) -> Unit:
    """The unit with unused call results as None and dense ids; reports values that nothing uses."""
    used = _used(unit)
    hidden = set(temporary)
    for value in _named(unit):
        if value.id not in used and value.id not in hidden:
            report.report(
                rules.MC006,
                f"`{value.name}` is never used",
                value.span,
                help="bind it to `_`, or leave the statement out",
                subject=value.name,
            )
    trimmed = _trim(unit, used)
    order: dict[int, int] = {}
    for value in _definitions(trimmed):
        order.setdefault(value.id, len(order))
    renumbered: Unit = _renumber(trimmed, order)
    return renumbered


def _used(unit: core.Walk | core.Request) -> set[int]:
    found: set[int] = set()
    for op in every_op(unit.body):
        for expr in exprs_of(op):
            found.update(vars_of(expr))
        if isinstance(op, core.Loop):
            for carry in op.carries:
                found.update(vars_of(carry.next))
                found.add(carry.inner.id)
                found.add(carry.result.id)
        if isinstance(op, core.When):
            found.update(phi.inner for phi in op.results)
        if isinstance(op, core.ForChunks):
            found.update(item.id for item in op.items)
        if isinstance(op, core.ForParts):
            found.update(case.item.id for case in op.cases)
    if isinstance(unit, core.Walk):
        found.update(output.value for output in unit.outputs)
    return found


def _named(unit: core.Walk | core.Request) -> list[core.Value]:
    """Values that a statement binds by name, where disuse is worth a word."""
    found: list[core.Value] = []
    for op in every_op(unit.body):
        match op:
            case core.Compute() | core.Sample() | core.Noise():
                found.append(op.result)
            case core.Invoke() | core.Extern() | core.CallWalk() | core.Next():
                found.extend(value for value in op.results if value is not None)
            case core.Loop():
                found.extend(gather.result for gather in op.gathers)
            case core.When():
                found.extend(phi.result for phi in op.results)
            case _:
                pass
    return found


def _trim(node: Any, used: set[int]) -> Any:
    """Unused results of calls become None, everywhere below `node`."""

    def change(item: Any) -> Any:
        item = _map(item, change)
        if isinstance(item, core.Invoke | core.Extern | core.CallWalk | core.Next):
            kept = tuple(value if value is not None and value.id in used else None for value in item.results)
            return replace(item, results=kept)
        return item

    return change(node)


def _definitions(unit: core.Walk | core.Request) -> Iterable[core.Value]:
    """Values in order of definition; a loop's and a `when`'s results come after its body."""
    yield from unit.params if isinstance(unit, core.Walk) else unit.inputs
    yield from _block_definitions(unit.body)


def _block_definitions(block: core.Block) -> Iterable[core.Value]:
    for op in block.ops:
        match op:
            case core.Compute() | core.Sample() | core.Noise():
                yield op.result
            case core.Invoke() | core.Extern() | core.CallWalk() | core.Next():
                yield from (value for value in op.results if value is not None)
            case core.Loop():
                yield from (carry.inner for carry in op.carries)
                yield from _block_definitions(op.body)
                yield from (carry.result for carry in op.carries)
                yield from (gather.result for gather in op.gathers)
            case core.When():
                yield from _block_definitions(op.body)
                yield from (phi.result for phi in op.results)
            case core.Par():
                yield from _block_definitions(op.body)
            case core.ForChunks():
                yield from op.items
                yield from _block_definitions(op.body)
            case core.If():
                yield from _block_definitions(op.then)
                yield from _block_definitions(op.other)
            case core.ForParts():
                for case in op.cases:
                    yield case.item
                    yield from _block_definitions(case.body)
            case core.Together():
                for arm in op.arms:
                    yield from _block_definitions(arm.body)
            case _:
                pass


def _renumber(node: Any, order: Mapping[int, int]) -> Any:
    """Every id below `node` in the new numbering."""

    def change(item: Any) -> Any:
        if isinstance(item, Var):
            return Var(ValueId(order[item.id]))
        item = _map(item, change)
        if isinstance(item, core.Value):
            return replace(item, id=ValueId(order[item.id]))
        if isinstance(item, core.Phi):
            return replace(item, inner=ValueId(order[item.inner]))
        if isinstance(item, core.Output):
            return replace(item, value=ValueId(order[item.value]))
        return item

    return change(node)


def _map(item: Any, change: Any) -> Any:
    """The item with its parts changed: dataclasses field by field, tuples element by element."""
    if isinstance(item, tuple):
        return tuple(change(part) for part in item)
    if not is_dataclass(item) or isinstance(item, type):
        return item
    changed = {}
    for field in fields(item):
        old = getattr(item, field.name)
        if field.name != "span" and (is_dataclass(old) or isinstance(old, tuple)):
            new = change(old)
            if new is not old:
                changed[field.name] = new
    return replace(item, **changed) if changed else item
