"""What crosses between ranks because walks are split or contexts are used in several places. Takes layouts; gives `Move`s.

Every rank of a split walk runs the same walk (SPMD): host values are everywhere, a device value is where its operation ran. A value that
an operation on another rank reads is sent once each time that it is made; keys and values of a context follow the calls that touch it;
and the rank that tests `stop when` tells the others. Keys and values that a frozen op reads are copied, and the copy stays good until
somebody writes the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from mstarc.ir.core import Block, Drop, ForChunks, Fork, Invoke, Loop, Op, Stop, Value, When
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Expr, ValueId
from mstarc.ir.visit import blocks_of, entries_of, every_op, exprs_of, results_of, vars_of
from mstarc.passes.form_regions import values_of
from mstarc.passes.ranges import value_names
from mstarc.plan.layout import Layout

Kind: TypeAlias = Literal["value", "kv", "exit"]
Holder: TypeAlias = int | str  # a rank, or the context whose rank at the walk's start it shares


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that goes from a rank to others. loop: once in each of its iterations; "" = once in a run of the walk.

    value: the value that goes (kind `value`). what: its name, or the context's. verb: fan-out (to several ranks), join (an operation
    reads values that several ranks made), or send. when: it goes only if this host condition holds.
    """

    walk: str
    loop: str
    kind: Kind
    what: str
    source: int
    sinks: tuple[int, ...]
    value: Value | None = None
    verb: Literal["send", "fan-out", "join"] = "send"
    when: str = ""


def moves_of(layouts: Mapping[str, Layout]) -> list[Move]:
    """Every move of a model, walk by walk in program order; keys and values that come from an earlier walk before the rest."""
    traced = {name: _Trace(layout) for name, layout in layouts.items()}
    found: list[Move] = []
    for name, trace in traced.items():
        for context, source, rank in trace.needs:
            found += [
                Move(name, "", "kv", context, holder, (rank,))
                for holder in sorted(_holders(source, [traced[w].held for w in layouts[name].before], frozenset()))
                if holder != rank
            ]
        found += trace.planned()
    return [_verbed(move) for move in _merged(found)]


def _holders(context: str, ends: list[dict[str, Holder]], seen: frozenset[str]) -> set[int]:
    """The ranks that may hold a context when a walk starts: where the walks before it that changed it left it."""
    found: set[int] = set()
    for held in ends:
        holder = held.get(context)
        if isinstance(holder, int):
            found.add(holder)
        elif holder is not None and holder not in seen and holder != context:
            found |= _holders(holder, ends, seen | {context})
    return found


def _merged(moves: Iterable[Move]) -> Iterator[Move]:
    """Moves of one thing at one time to several ranks as one."""
    grouped: dict[Move, list[int]] = {}
    for move in moves:
        grouped.setdefault(replace(move, sinks=()), []).extend(move.sinks)
    return (replace(move, sinks=tuple(sorted(set(sinks)))) for move, sinks in grouped.items())


def _verbed(move: Move) -> Move:
    return replace(move, verb="fan-out") if len(move.sinks) > 1 else move


@dataclass
class _Trace:
    """One walk, run in mind once, its loops four times: what moves in the third round or the fourth moves in every iteration."""

    layout: Layout
    moves: list[Move] = field(default_factory=list)
    held: dict[str, Holder] = field(default_factory=dict)  # context that the walk changes -> where it is at the end
    # context, its source at the start, where used
    needs: dict[tuple[str, str, int], None] = field(default_factory=dict)
    _at: dict[str, Holder] = field(default_factory=dict)
    _copies: dict[str, set[int]] = field(default_factory=dict)
    _made: dict[ValueId, tuple[int, str, str]] = field(default_factory=dict)  # value -> rank, loop, condition
    _sent: dict[tuple[ValueId, int], str] = field(default_factory=dict)  # value, rank -> when it goes there
    _alias: dict[ValueId, ValueId] = field(default_factory=dict)
    _inside: dict[str, set[int]] = field(default_factory=dict)  # loop -> ranks that run something in it

    def __post_init__(self) -> None:
        walk = self.layout.walk
        self._values = {value.id: value for value in values_of(walk)}
        self._words = value_names(walk.body, walk.params)
        self._block(walk.body, "", "")

    def planned(self) -> Iterator[Move]:
        """The moves in order; what several operations of a rank read goes whenever one of them may run."""
        for move in self.moves:
            yield replace(move, when=self._sent[move.value.id, move.sinks[0]]) if move.value is not None else move

    def _block(self, block: Block, loop: str, when: str) -> None:
        for op in block.ops:
            self._op(op, loop, when)

    def _op(self, op: Op, loop: str, when: str) -> None:
        rank = self.layout.rank_of(op)
        self._read(exprs_of(op), rank, when)
        match op:
            case Invoke():
                for context in op.reads:
                    self._touch(context, rank, loop, writes=False)
                for context in op.writes:
                    self._touch(context, rank, loop, writes=True)
            case Fork(target=target, source=source):
                self._at[target] = self.held[target] = self._at.get(source, source)
                self._copies.pop(target, None)
            case Drop(contexts=contexts):
                for context in contexts:
                    self._at[context] = self.held[context] = self.layout.home
                    self._copies[context] = set(self.layout.ranks)  # of nothing
            case Stop(cond=cond) if any(self._values[i].phase == "device" for i in vars_of(cond)):
                self._exit(loop)
            case Loop() | ForChunks():
                self._rounds(op, loop)
            case When():
                words = shown(op.cond, self._words)
                self._block(op.body, loop, f"{when} and {words}" if when else words)
                self._alias.update({phi.result.id: phi.inner for phi in op.results})
            case _:
                for inner in blocks_of(op):
                    self._block(inner, loop, when)
        for value in results_of(op):
            if value.phase == "device" and value.id not in self._alias:
                self._made[value.id] = (rank, loop, when)

    def _rounds(self, op: Loop | ForChunks, around: str) -> None:
        label = op.label if isinstance(op, Loop) else op.streams[0]
        for _, values in entries_of(op):
            self._made.update({value.id: (self.layout.home, label, "") for value in values})
        self._inside[label] = {self.layout.rank_of(inner) for inner in every_op(op.body)}
        first = self._round(op, label)
        ends = (
            self._moved(lambda: self._read((c.next for c in op.carries), self.layout.home, ""))
            if isinstance(op, Loop)
            else []
        )
        second = self._round(op, label)
        later = [
            *self._round(op, label),
            *self._round(op, label),
        ]  # two forks in a row come back in the round after the next
        once = [replace(m, loop=around) if m.kind == "kv" and m not in later else m for m in (*first, *second)]
        self.moves += dict.fromkeys((*once[: len(first)], *ends, *once[len(first) :], *later))

    def _round(self, op: Loop | ForChunks, label: str) -> list[Move]:
        """The moves of one iteration."""
        return self._moved(lambda: self._block(op.body, label, ""))

    def _moved(self, step: Callable[[], None]) -> list[Move]:
        """The moves of a step, taken off the list again."""
        before = len(self.moves)
        step()
        found, self.moves = self.moves[before:], self.moves[:before]
        return found

    def _read(self, exprs: Iterable[Expr], rank: int, when: str) -> None:
        """Values that an operation on `rank` reads."""
        read = {self._alias.get(i, i) for expr in exprs for i in vars_of(expr)}
        made = {i: self._made[i] for i in sorted(read) if i in self._made}
        several = len({source for source, _, _ in made.values()}) > 1
        for ident, (source, loop, made_when) in made.items():
            if source == rank:
                continue
            if (ident, rank) not in self._sent:
                value, walk = self._values[ident], self.layout.walk.name
                verb: Literal["send", "join"] = "join" if several else "send"
                self.moves.append(Move(walk, loop, "value", value.name, source, (rank,), value, verb))
                self._sent[ident, rank] = when or made_when
            elif self._sent[ident, rank] != when:
                self._sent[ident, rank] = made_when

    def _touch(self, context: str, rank: int, loop: str, writes: bool) -> None:
        at = self._at.get(context, context)
        copies = self._copies.setdefault(context, set())
        if rank in copies:
            pass
        elif isinstance(at, str):
            self.needs[context, at, rank] = None
        elif at != rank:
            self.moves.append(Move(self.layout.walk.name, loop, "kv", context, at, (rank,)))
        if writes:
            self._at[context] = self.held[context] = rank
            copies.clear()
        else:
            self._at[context] = at
            copies.add(rank)

    def _exit(self, loop: str) -> None:
        """The rank that tests the condition tells those that run calls of the loop."""
        home = self.layout.home
        others = tuple(sorted(self._inside.get(loop, set()) - {home}))
        move = Move(self.layout.walk.name, loop, "exit", "stop", home, others)
        if others and move not in self.moves:
            self.moves.append(move)
