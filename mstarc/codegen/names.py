"""Python names for the values of a walk or request. Takes a unit of the IR; gives one safe name per value.

Values that are one variable in the generated code share a name: what a loop carries and its result, what a guarded block binds
and what the code after it sees, the parts of one `for ... case`.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

from mstarc.ir.core import Block, ForParts, Loop, Value, When
from mstarc.ir.types import ValueId
from mstarc.ir.visit import entries_of, every_op, results_of

#: names that generated code uses itself
OWN = frozenset(
    {"self", "walk", "b", "request", "need", "item", "config", "_", "ABSENT", "Any", "Array", "Batch", "Steps"}
)
OWN |= {
    "linspace",
    "shift",
    "Walk",
    "WorkerProgram",
    "ConductorProgram",
    "Entry",
    "Input",
    "Need",
    "Param",
    "RequestRun",
}
_TAKEN = OWN | frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | frozenset(dir(builtins))


def safe(name: str, used: Iterable[str] = ()) -> str:
    """The name, with `_` behind it until it clashes with nothing of Python or of the generated code."""
    taken = set(used)
    while name in _TAKEN or name in taken:
        name += "_"
    return name


def attribute(base: str, name: str) -> str:
    """`base.name`, also for a name that is a word of Python."""
    return f'getattr({base}, "{name}")' if keyword.iskeyword(name) else f"{base}.{name}"


def values_of(inputs: Iterable[Value], body: Block) -> list[Value]:
    """Every value of a unit, in the order of definition."""
    found = list(inputs)

    def visit(block: Block) -> None:
        for op in block.ops:
            for inner, bound in entries_of(op):
                found.extend(bound)
                visit(inner)
            found.extend(results_of(op))

    visit(body)
    return found


def names_of(inputs: Iterable[Value], body: Block, regions: frozenset[str] = frozenset()) -> dict[ValueId, str]:
    """A name per value. `regions`: labels of the loops that are regions (their results are new variables)."""
    parent: dict[ValueId, ValueId] = {}

    def root(ident: ValueId) -> ValueId:
        while ident in parent:
            ident = parent[ident]
        return ident

    def join(a: ValueId, b: ValueId) -> None:
        first, second = sorted((root(a), root(b)))
        if first != second:
            parent[second] = first

    for op in every_op(body):
        match op:
            case Loop() if op.label not in regions:
                for carry in op.carries:
                    join(carry.inner.id, carry.result.id)
            case When():
                for phi in op.results:
                    join(phi.inner, phi.result.id)
            case ForParts():
                for case in op.cases[1:]:
                    join(op.cases[0].item.id, case.item.id)
    values = values_of(inputs, body)
    names: dict[ValueId, str] = {}
    used: set[str] = set()
    for value in values:
        if root(value.id) == value.id:
            names[value.id] = safe(value.name, used)
            used.add(names[value.id])
    return {value.id: names[root(value.id)] for value in values}
