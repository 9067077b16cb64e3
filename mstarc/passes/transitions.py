"""Walks that follow each other without a decision of the host: the conductor can start them all, and the worker goes from one to the next.

Takes a program; gives a `Chain` for each run of walk calls that nothing on the host comes between, and for each walk those that may have
run before it in a request. Externs and conditions of a request program read what the request brought, so they are settled at admission;
what waits for a walk to end is an extern, a `require` or a condition that reads a walk's result, and the start and the end of `together`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstarc.ir.core import Block, CallWalk, Extern, ForParts, If, Op, Program, Require, Together
from mstarc.ir.types import ValueId
from mstarc.ir.visit import blocks_of, exprs_of, results_of, vars_of


@dataclass(frozen=True, slots=True)
class Chain:
    """Walk calls of one request, or of an arm of it, in order. A name ends in `*` inside `for`, and in `?` inside `if` or a case."""

    request: str
    arm: str
    walks: tuple[str, ...]


@dataclass
class _Reader:
    """Reads one request program in order."""

    request: str
    chains: list[Chain] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _results: set[ValueId] = field(default_factory=set)  # of walks, and what is made of them

    def block(self, block: Block, arm: str, mark: str) -> None:
        for op in block.ops:
            self.op(op, arm, mark)

    def op(self, op: Op, arm: str, mark: str) -> None:
        waits = any(ident in self._results for expr in exprs_of(op) for ident in vars_of(expr))
        if waits and isinstance(op, (Extern, Require, If, ForParts)):
            self.close(arm)
        match op:
            case CallWalk(walk=walk):
                self._open.append(walk + mark)
                self._results.update(value.id for value in results_of(op))
            case Together():
                self.close(arm)
                for inner in op.arms:
                    self.block(inner.body, inner.label, "")
                    self.close(inner.label)
            case If() | ForParts():
                repeated = "*" if isinstance(op, ForParts) or mark.startswith("*") else ""
                one_of = isinstance(op, If) or len(op.cases) > 1 or mark.endswith("?")
                for inner_block in blocks_of(op):
                    self.block(inner_block, arm, repeated + ("?" if one_of else ""))
            case _ if waits and not isinstance(op, Extern):
                self._results.update(value.id for value in results_of(op))

    def close(self, arm: str) -> None:
        """The host comes in here."""
        if self._open:
            self.chains.append(Chain(self.request, arm, tuple(self._open)))
        self._open = []


def chains_of(program: Program) -> tuple[Chain, ...]:
    """Every chain, request by request in program order."""
    found: list[Chain] = []
    for request in program.requests:
        reader = _Reader(request.name)
        reader.block(request.body, "", "")
        reader.close("")
        found += reader.chains
    return tuple(found)


def walks_before(program: Program) -> dict[str, frozenset[str]]:
    """Walks that may have run, or may be running in another arm, when a walk starts."""
    found: dict[str, frozenset[str]] = {walk.name: frozenset() for walk in program.walks}
    for request in program.requests:
        _before(request.body, frozenset(), found)
    return found


def _before(block: Block, seen: frozenset[str], found: dict[str, frozenset[str]]) -> frozenset[str]:
    """Notes what comes before each call of a block; gives what may have run at its end."""
    for op in block.ops:
        match op:
            case CallWalk(walk=walk):
                found[walk] |= seen
                seen |= {walk}
            case ForParts():
                for _ in range(2):  # a second time for what an earlier part did
                    seen |= frozenset().union(*(_before(case.body, seen, found) for case in op.cases))
            case If():
                seen |= _before(op.then, seen, found) | _before(op.other, seen, found)
            case Together():
                ran = [_before(arm.body, seen, found) for arm in op.arms]
                seen |= frozenset().union(*ran)
            case _:
                pass
    return seen


def say_chains(program: Program, facts: tuple[Chain, ...]) -> Iterator[str]:
    """One line for each chain."""
    for fact in facts:
        where = f"request {fact.request}" + (f", arm {fact.arm}" if fact.arm else "")
        yield f"{where}: {', '.join(fact.walks)}"
