"""The rules that every program of the IR keeps, as a table; `verify` raises `VerifyError` with all violations.

A violation is a fault of the compiler, not of the user: checks report users' mistakes before. The verifier runs after the front
end and after each rewrite in tests, and on IR that was read from text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mstarc.ir import verify_ops, verify_structure
from mstarc.ir.core import Program
from mstarc.ir.errors import VerifyError
from mstarc.ir.verify_sites import Site, Unit, sites_of, units_of

#: name, what holds, and the check of one operation at its place
OP_RULES: tuple[tuple[str, str, Callable[[Site], Iterator[str]]], ...] = (
    ("visible", "a value is used only where its definition dominates the use", verify_ops.visible),
    ("place", "an operation of walks stands in a walk, one of request programs in a request", verify_ops.place),
    ("declared", "every node, op, context, stream, sampler, extern and walk is declared", verify_ops.declared),
    ("arity", "arguments and results are as many as declared; only an optional argument is left out", verify_ops.arity),
    ("phase", "host control reads host values; results have the phase of what made them", verify_ops.phase),
    ("contexts", "writes and reads fit the op's effects and the cache of its node", verify_ops.contexts),
    ("loop", "`stop`, `collect` and `iter` belong to an enclosing loop and fit its carried names", verify_ops.loops),
    ("draws", "a draw is made from a row of logits", verify_ops.draws),
    ("carries", "a carried name has one type inside and after its loop", verify_ops.carries),
    ("phi", "a `when` result is optional and its inner value is defined in the block", verify_ops.phis),
)
UNIT_RULES: tuple[tuple[str, str, Callable[[Unit], Iterator[str]]], ...] = (
    ("dense", "value ids count from 0 in the order of definition", verify_structure.dense),
    ("names", "value names are unique in a walk or request, loop labels and arm labels too", verify_structure.names),
    ("outputs", "an output of a walk is a value at its top level", verify_structure.outputs),
)
PROGRAM_RULES: tuple[tuple[str, str, Callable[[Program], Iterator[str]]], ...] = (
    ("unique", "declared names are unique", verify_structure.unique),
    ("kinds", "nodes and contexts are on declared caches, samplers over declared contexts", verify_structure.kinds),
    ("policies", "a stream has the arguments of its policy and a known end rule", verify_structure.policies),
    ("sources", "a config has a path or an expression", verify_structure.sources),
)


def violations(program: Program) -> Iterator[str]:
    """Every violation as `where: what (rule: the rule's text)`."""
    for name, text, of_program in PROGRAM_RULES:
        yield from (f"{found} ({name}: {text})" for found in of_program(program))
    for unit in units_of(program):
        for name, text, of_unit in UNIT_RULES:
            yield from (f"{unit.title}: {found} ({name}: {text})" for found in of_unit(unit))
        for site in sites_of(unit):
            for name, text, of_op in OP_RULES:
                yield from (f"{site.title}: {found} ({name}: {text})" for found in of_op(site))


def verify(program: Program) -> None:
    """Raises `VerifyError` if the program breaks a rule of the IR."""
    found = tuple(violations(program))
    if found:
        raise VerifyError(found)
