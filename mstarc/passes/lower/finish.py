"""The last step of lowering: unused results are left out, values are numbered and named in order of definition, types are final.

Takes a walk or request with provisional values; gives the same with dense ids, unique names and solved dims. Reports MC006.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Fix
from mstarc.ir import core
from mstarc.ir.types import ValueId, Var
from mstarc.ir.visit import entries_of, every_op, exprs_of, results_of, vars_of
from mstarc.passes.lower.body import Body

Unit = TypeVar("Unit", core.Walk, core.Request)
_CALLS = (core.Invoke, core.Extern, core.CallWalk, core.Next)


def finish(unit: Unit, body: Body) -> Unit:
    """The unit as the IR has it."""
    used = _used(unit)
    _report_unused(unit, used, body)
    trimmed: Unit = replace(unit, body=_trimmed(unit.body, used))
    order = [*(unit.params if isinstance(unit, core.Walk) else unit.inputs), *_definitions(trimmed.body)]
    names = unique_names([value.name for value in order])
    final: dict[int, core.Value] = {}
    for value in order:
        final[value.id] = replace(value, id=ValueId(len(final)), name=names[len(final)])
    settled = {
        ident: replace(value, type=_renumbered(body.values.final_type(old, body.dims), final))
        for (ident, value), old in zip(final.items(), order, strict=True)
    }
    made: Unit = _renumbered(trimmed, settled)
    if isinstance(made, core.Walk):
        outputs = [replace(o, type=_renumbered(body.dims.finished(o.type), settled)) for o in made.outputs]
        return replace(made, outputs=tuple(outputs))
    return made


def unique_names(names: list[str]) -> list[str]:
    """Each name once: a second `token` becomes `token_2`, or the next number that no value is called by."""
    written, taken = set(names), set[str]()
    made: list[str] = []
    for name in names:
        new, count = name, 1
        while new in taken or (count > 1 and new in written):
            count += 1
            new = f"{name}_{count}"
        taken.add(new)
        made.append(new)
    return made


# ----------------------------------------------------------------------------------------------------------------- disuse


def _used(unit: core.Walk | core.Request) -> set[int]:
    """Values that something reads. A result of `when` reads the inner value if it is read itself."""
    found: set[int] = set()
    phis: list[core.Phi] = []
    for op in every_op(unit.body):
        for expr in exprs_of(op):
            found.update(vars_of(expr))
        if isinstance(op, core.Loop):
            for carry in op.carries:
                found.update(vars_of(carry.next))
        elif isinstance(op, core.When):
            phis += op.results
    if isinstance(unit, core.Walk):
        found.update(output.value for output in unit.outputs)
    for phi in reversed(phis):
        if phi.result.id in found:
            found.add(phi.inner)
    return found


def _report_unused(unit: core.Walk | core.Request, used: set[int], body: Body) -> None:
    """MC006 on values that a statement names and nothing reads; not after errors, which leave uses out."""
    if body.report.failed:
        return
    inner = {phi.inner for op in every_op(unit.body) if isinstance(op, core.When) for phi in op.results}
    named: list[core.Value] = []
    of_calls: set[int] = set()
    for op in every_op(unit.body):
        if isinstance(op, core.Loop):
            named += [gather.result for gather in op.gathers]
        else:
            named += results_of(op)
        if isinstance(op, _CALLS):
            of_calls.update(value.id for value in results_of(op))
    for value in named:
        if value.id in used or value.id in inner or value.id in body.values.unnamed:
            continue
        help_text = "bind it to `_`, or leave the statement out"
        message = f"`{value.name}` is never used"
        fix = Fix(f"bind `{value.name}` to `_`", ((value.span, "_"),), "safe") if value.id in of_calls else None
        body.report.report(rules.MC006, message, value.span, help=help_text, subject=value.name, fix=fix)


def _trimmed(block: core.Block, used: set[int]) -> core.Block:
    """Unused results of calls are None; results of `when` and pure values that nobody reads are left out."""
    ops: list[core.Op] = []
    for op in block.ops:
        if isinstance(op, core.Compute) and op.result.id not in used:
            continue
        if isinstance(op, _CALLS):
            kept = tuple(value if value is not None and value.id in used else None for value in op.results)
            op = replace(op, results=kept)
        elif isinstance(op, core.When):
            op = replace(op, results=tuple(phi for phi in op.results if phi.result.id in used))
        ops.append(_inside(op, used))
    return core.Block(tuple(ops))


def _inside(op: core.Op, used: set[int]) -> core.Op:
    """The operation with its blocks trimmed."""
    match op:
        case core.Loop() | core.Par() | core.When() | core.ForChunks():
            return replace(op, body=_trimmed(op.body, used))
        case core.If():
            return replace(op, then=_trimmed(op.then, used), other=_trimmed(op.other, used))
        case core.ForParts():
            return replace(op, cases=tuple(replace(case, body=_trimmed(case.body, used)) for case in op.cases))
        case core.Together():
            return replace(op, arms=tuple(replace(arm, body=_trimmed(arm.body, used)) for arm in op.arms))
        case _:
            return op


# -------------------------------------------------------------------------------------------------------------- numbering


def _definitions(block: core.Block) -> Iterator[core.Value]:
    """Values in order of definition; a loop's and a `when`'s results come after its body."""
    for op in block.ops:
        for inner, bound in entries_of(op):
            yield from bound
            yield from _definitions(inner)
        yield from results_of(op)


def _renumbered(node: Any, final: Mapping[int, core.Value]) -> Any:
    """Every value below `node` as it is in the end."""
    if isinstance(node, core.Value):
        return final[node.id]
    if isinstance(node, Var):
        return Var(final[node.id].id)
    if isinstance(node, tuple):
        return tuple(_renumbered(part, final) for part in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    if isinstance(node, core.Phi):
        return core.Phi(final[node.inner].id, final[node.result.id])
    changed = {}
    for field in fields(node):
        old = getattr(node, field.name)
        if field.name != "span" and (is_dataclass(old) or isinstance(old, tuple)):
            changed[field.name] = _renumbered(old, final)
    if isinstance(node, core.Output):
        changed["value"] = final[node.value].id
    return replace(node, **changed) if changed else node
