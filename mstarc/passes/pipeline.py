"""The one pipeline: every pass on IR by name, in order. Codegen runs its rewrites; `mstarc ir` and `mstarc opt` show any of it.

A pass is pure. A `Rewrite` takes a program and gives a program; an `Analysis` takes a program and gives facts, with a printer that says
them as lines. Passes work on a program with the binding's config values in place (`Model.bound`) that has passed the checks; they may
not assume that another rewrite has run. To add one: write a module in `passes/`, and a row here at its place in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mstarc.ir.core import Program
from mstarc.ir.errors import PassFailed
from mstarc.ir.verify import verify
from mstarc.passes.form_regions import regions_of, say_regions
from mstarc.passes.fuse_horizontal import fuse_horizontal, say_fusions
from mstarc.passes.fuse_vertical import say_vertical, vertical_of
from mstarc.passes.leave_out import leave_out
from mstarc.passes.loop_regions import say_whole_loops, whole_loops_of
from mstarc.passes.provenance import provenance_of, say_provenance
from mstarc.passes.speculate import say_speculations, speculations_of
from mstarc.passes.transitions import chains_of, say_chains
from mstarc.plan.verified import plan_alone, say_plan


@dataclass(frozen=True, slots=True)
class Rewrite:
    """program -> program. A pass that finds nothing to do gives back the same object."""

    name: str
    summary: str
    run: Callable[[Program], Program]


@dataclass(frozen=True, slots=True)
class Analysis:
    """program -> facts, of a type that `run` and `say` share. `say` prints the facts as lines for a reader."""

    name: str
    summary: str
    run: Callable[[Program], Any]
    say: Callable[[Program, Any], Iterable[str]]

    def lines(self, program: Program) -> tuple[str, ...]:
        return tuple(self.say(program, self.run(program)))


Pass: TypeAlias = Rewrite | Analysis

PIPELINE: tuple[Pass, ...] = (
    Rewrite("leave-out", "guards on calls of branches that `guide` can leave out", leave_out),
    Analysis("provenance", "which contexts are equal, and which calls need not run", provenance_of, say_provenance),
    Analysis("fuse-horizontal", "which calls go to a node as one batch", fuse_horizontal, say_fusions),
    Analysis("form-regions", "which loops run for many requests at once", regions_of, say_regions),
    Analysis("speculate", "which loops may run ahead of their stop", speculations_of, say_speculations),
    Analysis("fuse-vertical", "which producer loops run with their consumer", vertical_of, say_vertical),
    Analysis("loop-regions", "which static loops are one region", whole_loops_of, say_whole_loops),
    Analysis("transitions", "which walks follow each other without the host", chains_of, say_chains),
    Analysis(
        "verify-plan", "that a plan of it holds: order of steps, tables, launches, cuts back", plan_alone, say_plan
    ),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A program after a pass. `facts`: the lines of an analysis."""

    name: str
    program: Program
    facts: tuple[str, ...] = ()


def find_pass(name: str) -> Pass:
    """The pass of a name. Raises KeyError."""
    return {p.name: p for p in PIPELINE}[name]


def run_pass(chosen: Pass, program: Program, verified: bool = False) -> Step:
    """One pass. `verified`: hold the result of a rewrite against the rules of the IR. Raises PassFailed for whatever goes wrong."""
    try:
        if isinstance(chosen, Analysis):
            return Step(chosen.name, program, chosen.lines(program))
        result = chosen.run(program)
        if verified:
            verify(result)
    except Exception as error:
        raise PassFailed(chosen.name, error, program) from error
    return Step(chosen.name, result)


def run_passes(program: Program, passes: Sequence[Pass], verified: bool = False) -> Iterator[Step]:
    """Passes in the order given, each on what the rewrites before it made."""
    for chosen in passes:
        step = run_pass(chosen, program, verified)
        program = step.program
        yield step


def rewritten(program: Program) -> Program:
    """The program after every rewrite of the pipeline: what code is generated from. Raises PassFailed."""
    for step in run_passes(program, [p for p in PIPELINE if isinstance(p, Rewrite)]):
        program = step.program
    return program
