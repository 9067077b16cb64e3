"""What crosses between ranks: each receive has its send, and each send its receive. Takes layouts and the planned moves; gives faults.

Every rank of a walk runs the same walk. A device value is where the operation ran that made it, so it is sent to every other rank that
reads it, once; keys and values of a context are where they were written last, so they are sent to whoever touches them next; and whoever
runs calls of a loop that ends on a device value is told by the walk's home, where the check stands (MC602).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mstarc.diagnostics import rules
from mstarc.ir.core import Block, Drop, ForChunks, Fork, Invoke, Loop, Op, Phi, Stop, Value, When
from mstarc.ir.types import Expr, ValueId
from mstarc.ir.visit import blocks_of, entries_of, every_op, exprs_of, results_of, vars_of
from mstarc.plan.rules import MC610
from mstarc.plan.verify.fault import Fault

if TYPE_CHECKING:
    from mstarc.plan.layout import Layout
    from mstarc.plan.moves import Move

#: ranks that hold the last version of a context; before a walk has changed it, the context whose version at its start it has
Held: TypeAlias = frozenset[int] | str


def verify_moves(layouts: Mapping[str, Layout], moves: Iterable[Move]) -> Iterator[Fault]:
    """All walks. One that is wholly on a rank of its own can still get keys and values from another."""
    planned: dict[tuple[str, str], list[Move]] = {}
    for move in moves:
        planned.setdefault((move.walk, move.kind), []).append(move)
    reaches = {name: _Contexts(layout) for name, layout in layouts.items()}
    for name, layout in layouts.items():
        yield from _Values(layout, planned.get((name, "value"), ())).faults()
        yield from _exits(layout, planned.get((name, "exit"), ()))
        yield from _kept(name, reaches, planned.get((name, "kv"), ()))


# ----------------------------------------------------------------------------------------------------------------- values


@dataclass(frozen=True, slots=True)
class _Made:
    """Where a device value is made: its rank, the loop around, the host conditions between that loop and it."""

    rank: int
    loop: str
    conds: frozenset[Expr]


class _Values:
    """The device values of one walk, and who reads them where."""

    def __init__(self, layout: Layout, moves: Iterable[Move]) -> None:
        self.layout, self.moves = layout, list(moves)
        self.made: dict[ValueId, _Made] = {}
        self.words: dict[ValueId, str] = {}
        self.inner: dict[ValueId, ValueId] = {}  # what a `when` hands on -> the value in it
        self.read: dict[tuple[ValueId, int], list[frozenset[Expr]]] = {}  # value, rank -> the conditions of each read
        self._block(layout.walk.body, "", frozenset())

    def _block(self, block: Block, loop: str, conds: frozenset[Expr]) -> None:
        for op in block.ops:
            rank = self.layout.rank_of(op)
            self._reads(exprs_of(op), rank, conds)
            label = op.label if isinstance(op, Loop) else op.streams[0] if isinstance(op, ForChunks) else loop
            within = frozenset() if label != loop else conds | {op.cond} if isinstance(op, When) else conds
            for inner, entering in entries_of(op):
                for value in entering:
                    self._makes(value, _Made(self.layout.home, label, frozenset()))
                self._block(inner, label, within)
            if isinstance(op, Loop):
                self._reads((carry.next for carry in op.carries), self.layout.home, within)
            phis: tuple[Phi, ...] = op.results if isinstance(op, When) else ()
            self.inner.update({phi.result.id: phi.inner for phi in phis})
            for value in results_of(op):
                if value.id not in self.inner:
                    self._makes(value, _Made(rank, loop, conds))

    def _makes(self, value: Value, made: _Made) -> None:
        if value.phase == "device":
            self.made[value.id] = made
            self.words[value.id] = value.name

    def _reads(self, exprs: Iterable[Expr], rank: int, conds: frozenset[Expr]) -> None:
        for ident in dict.fromkeys(i for expr in exprs for i in vars_of(expr)):
            while ident in self.inner:
                ident = self.inner[ident]
            if ident in self.made and self.made[ident].rank != rank:
                self.read.setdefault((ident, rank), []).append(conds)

    def faults(self) -> Iterator[Fault]:
        walk = self.layout.walk.name
        sent = Counter((move.value.id, sink) for move in self.moves if move.value is not None for sink in move.sinks)
        for ident, sink in dict.fromkeys((*self.read, *sent)):
            due = (ident, sink) in self.read
            if sent[ident, sink] != due:
                name = self.words.get(ident, f"%{ident}")
                what = (
                    f"rank {sink} reads `{name}`, and it is"
                    if due
                    else f"`{name}` is, and rank {sink} does not read it,"
                )
                yield Fault(MC610, f"walk `{walk}`: {what} sent there {sent[ident, sink]} times", walk)
        for move in self.moves:
            yield from self._of_move(move)

    def _of_move(self, move: Move) -> Iterator[Fault]:
        walk = self.layout.walk.name
        made = self.made.get(move.value.id) if move.value is not None else None
        if made is None:
            yield Fault(MC610, f"walk `{walk}`: `{move.what}` is sent, and no step makes it", walk)
            return
        if (move.source, move.loop) != (made.rank, made.loop):
            where = f"rank {made.rank}" + (f" in loop `{made.loop}`" if made.loop else "")
            yield Fault(
                MC610, f"walk `{walk}`: `{move.what}` is sent from elsewhere than {where}, where it is made", walk
            )
        for sink in move.sinks:
            reads = self.read.get((move.value.id, sink), []) if move.value is not None else []
            always = not made.conds and (frozenset() in reads or len(set(reads)) > 1)
            if always and move.when:
                text = (
                    f"walk `{walk}`: rank {sink} reads `{move.what}` in any case, and it is sent only when {move.when}"
                )
                yield Fault(MC610, text, walk)


# ------------------------------------------------------------------------------------------------------------------- exits


def _exits(layout: Layout, moves: Iterable[Move]) -> Iterator[Fault]:
    """Every rank with calls in a loop that ends on a device value is told once an iteration."""
    walk, told = layout.walk.name, Counter[tuple[str, int]]()
    for move in moves:
        told.update((move.loop, sink) for sink in move.sinks)
        if move.source != layout.home:
            message = f"the end of loop `{walk}.{move.loop}` is told by rank {move.source}, and known on {layout.home}"
            yield Fault(rules.MC602, message, walk, move.loop)
    values = (*layout.walk.params, *(value for op in every_op(layout.walk.body) for value in _values(op)))
    device = {value.id for value in values if value.phase == "device"}
    due: set[tuple[str, int]] = set()
    for loop in every_op(layout.walk.body):
        if isinstance(loop, Loop) and any(device & set(vars_of(stop.cond)) for stop in _own_stops(loop.body)):
            due |= {(loop.label, layout.rank_of(op)) for op in every_op(loop.body)}
    due = {(label, rank) for label, rank in due if rank != layout.home}
    for label, rank in sorted(due | set(told)):
        if told[label, rank] != ((label, rank) in due):
            message = f"rank {rank} runs calls of loop `{walk}.{label}`, and is told {told[label, rank]} times that it has ended"
            if (label, rank) not in due:
                message = f"rank {rank} is told that loop `{walk}.{label}` has ended, and runs nothing of it"
            yield Fault(rules.MC602, message, walk, label)


def _values(op: Op) -> Iterator[Value]:
    yield from results_of(op)
    yield from (value for _, values in entries_of(op) for value in values)


def _own_stops(block: Block) -> Iterator[Stop]:
    for op in block.ops:
        if isinstance(op, Stop):
            yield op
        elif not isinstance(op, Loop):
            for inner in blocks_of(op):
                yield from _own_stops(inner)


# --------------------------------------------------------------------------------------------------------- keys and values


@dataclass(frozen=True, slots=True)
class _Need:
    """Keys and values that one rank lacks. holders: who has them; a name: whoever has that context when the walk starts.

    loops: where they may be sent, from the outermost in: the innermost loop in which they are lacking again in a later iteration, and the
    loops in it around the call; before these "" if they are lacking once in a run.
    """

    context: str
    holders: Held
    rank: int
    loops: tuple[str, ...]


class _Contexts:
    """One walk in mind, each loop four times: where the last version of each context is, and who has to get it."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.held: dict[str, Held] = {}  # of those that the walk has changed
        self.needs: dict[_Need, None] = {}
        self.touched: set[tuple[str, int]] = set()
        self._got: set[tuple[str, int]] = set()  # what a context was at the start, and a rank that has got it
        self._around: list[str] = [""]  # loops around
        self._again = 0  # the innermost of them that has had two rounds
        self._block(layout.walk.body)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case Invoke():
                    for context in (*op.reads, *op.writes):
                        self._touch(context, self.layout.rank_of(op), context in op.writes)
                case Fork(target=target, source=source):
                    self.held[target] = self.held.get(source, source)
                case Drop(contexts=contexts):
                    for context in contexts:
                        self.held[context] = frozenset(self.layout.ranks)  # each knows that it is empty
                case Loop() | ForChunks():
                    self._rounds(op)
                case _:
                    for inner in blocks_of(op):
                        self._block(inner)

    def _rounds(self, op: Loop | ForChunks) -> None:
        """What is lacking in the third round or the fourth is lacking in each; forks can make the second a round of its own."""
        again = self._again
        self._around.append(op.label if isinstance(op, Loop) else op.streams[0])
        self._block(op.body)
        self._block(op.body)
        self._again = len(self._around) - 1
        self._block(op.body)
        self._block(op.body)
        self._around.pop()
        self._again = again

    def _touch(self, context: str, rank: int, writes: bool) -> None:
        at = self.held.get(context, context)
        self.touched.add((context, rank))
        lacks = (at, rank) not in self._got if isinstance(at, str) else rank not in at
        if lacks:
            self.needs[_Need(context, at, rank, tuple(self._around[self._again :]))] = None
        if writes:
            self.held[context] = frozenset({rank})
        elif isinstance(at, str):
            self._got.add((at, rank))
        else:
            self.held[context] = at | {rank}


def _kept(walk: str, reaches: Mapping[str, _Contexts], moves: Iterable[Move]) -> Iterator[Fault]:
    """Keys and values of one walk: what it lacks is sent, and what is sent is used."""
    mine, planned = reaches[walk], list(moves)
    sent = [(move.what, move.source, sink, move.loop) for move in planned for sink in move.sinks]
    for need in mine.needs:
        for holders in _holders(need, walk, reaches):
            ways = [
                loop
                for what, source, sink, loop in sent
                if (what, sink) == (need.context, need.rank) and source in holders
            ]
            if need.rank not in holders and not set(ways) & set(need.loops):
                often = f" in each iteration of `{need.loops[0]}`" if need.loops[0] else ""
                where = " or ".join(map(str, sorted(holders)))
                text = f"rank {need.rank} needs keys and values of `{need.context}` from rank {where}{often}, and is sent none"
                yield Fault(MC610, f"walk `{walk}`: {text}", walk, need.loops[0])
    for what, source, sink, _ in sent:
        if (what, sink) not in mine.touched or source == sink:
            text = f"keys and values of `{what}` are sent to rank {sink}, which does nothing with them"
            yield Fault(MC610, f"walk `{walk}`: {text}", walk)


def _holders(need: _Need, walk: str, reaches: Mapping[str, _Contexts]) -> list[frozenset[int]]:
    """Who may have what is needed; several: it depends on the walks that ran before."""
    if not isinstance(need.holders, str):
        return [need.holders]
    before = [reaches[name].held for name in reaches[walk].layout.before]
    found, todo, seen = dict[frozenset[int], None](), [need.holders], set[str]()
    while todo:
        context = todo.pop()
        seen.add(context)
        for held in before:
            at = held.get(context)
            if isinstance(at, str):
                todo += [at] if at not in seen else []
            elif at is not None:
                found[at] = None
    return list(found)
