"""Walks that follow each other without a decision of the host: the conductor starts them ahead, and the worker goes from one to the next.

Takes a program; gives the calls that the host does not wait for, a `Chain` for each run of calls that nothing on the host comes between,
and for each walk those that may have run before it in a request. Externs and conditions of a request program read what the request
brought, so they do not wait for walks. The host waits for a walk whose results it reads, and for the last ones of a request or an arm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mstarc.ir.core import Block, CallWalk, ForParts, If, Op, Program, Request, Together, When
from mstarc.ir.visit import blocks_of, results_of
from mstarc.passes.liveness import reads_of_block


@dataclass(frozen=True, slots=True)
class Chain:
    """Walk calls of one request, or of an arm of it, in order. A name ends in `*` inside `for`, and in `?` inside `if` or a case.

    The last may be `together`: its arms begin without the host too.
    """

    request: str
    arm: str
    walks: tuple[str, ...]


class Ahead:
    """The calls of a request program that the host goes on after at once, because a walk or a `together` may follow.

    `call in Ahead(request)`; calls are told apart by identity, as equal ones may stand at several places.
    """

    def __init__(self, request: Request) -> None:
        self._read = frozenset(reads_of_block(request.body))
        self._calls: set[int] = set()
        self._before(request.body, False)

    def __contains__(self, call: CallWalk) -> bool:
        return id(call) in self._calls

    def waits(self, call: CallWalk) -> bool:
        """Whether the host reads a result of the call."""
        return any(value.id in self._read for value in results_of(call))

    def _before(self, block: Block, follows: bool) -> bool:
        """Whether a walk may follow the point before a block, where `follows` says it of the point after it."""
        for op in reversed(block.ops):
            follows = self._before_op(op, follows)
        return follows

    def _before_op(self, op: Op, follows: bool) -> bool:
        match op:
            case CallWalk():
                if follows and not self.waits(op):
                    self._calls.add(id(op))
                return True
            case Together():
                for arm in op.arms:
                    self._before(arm.body, False)
                return True
            case ForParts():
                for _ in range(2):  # a second time for what follows in the next turn
                    follows |= True in {self._before(case.body, follows) for case in op.cases}
                return follows
            case If():
                return True in {self._before(inner, follows) for inner in blocks_of(op)}
            case When():
                return self._before(op.body, follows) or follows
            case _:
                return follows


@dataclass
class _Reader:
    """Reads one request program in order."""

    request: str
    ahead: Ahead
    chains: list[Chain] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def block(self, block: Block, arm: str, mark: str) -> None:
        for op in block.ops:
            self.op(op, arm, mark)

    def op(self, op: Op, arm: str, mark: str) -> None:
        match op:
            case CallWalk(walk=walk):
                self._open.append(walk + mark)
                if self.ahead.waits(op):
                    self.close(arm)
            case Together():
                if self._open:
                    self._open.append("together" + mark)
                self.close(arm)
                for inner in op.arms:
                    self.block(inner.body, inner.label, "")
                    self.close(inner.label)
            case If() | ForParts() | When():
                repeated = "*" if isinstance(op, ForParts) or mark.startswith("*") else ""
                one_of = isinstance(op, (If, When)) or len(blocks_of(op)) > 1 or mark.endswith("?")
                for inner_block in blocks_of(op):
                    self.block(inner_block, arm, repeated + ("?" if one_of else ""))

    def close(self, arm: str) -> None:
        """The host comes in here."""
        if self._open:
            self.chains.append(Chain(self.request, arm, tuple(self._open)))
        self._open = []


def chains_of(program: Program) -> tuple[Chain, ...]:
    """Every chain, request by request in program order."""
    found: list[Chain] = []
    for request in program.requests:
        reader = _Reader(request.name, Ahead(request))
        reader.block(request.body, "", "")
        reader.close("")
        found += reader.chains
    return tuple(found)


def walks_before(program: Program) -> dict[str, frozenset[str]]:
    """Walks that may have run when a walk starts: not those of the other arms, which share no context with it."""
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
            case When():
                seen |= _before(op.body, seen, found)
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
