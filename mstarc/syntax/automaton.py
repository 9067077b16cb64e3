"""The LALR(1) automaton of the parse tables: takes terminals one by one, makes nodes, and says what could come next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, cast

from mstarc.syntax.tables import END, Rule, kept_whole, load
from mstarc.syntax.tokens import Token


class Node:
    """What a rule made: its name, children (None where an optional part is absent), and the bytes from `start` to `end`."""

    __slots__ = ("children", "end", "rule", "start")

    def __init__(self, rule: str, children: list[Part], start: int, end: int) -> None:
        self.rule = rule
        self.children = children
        self.start = start
        self.end = end


Part: TypeAlias = Node | Token | None
_Value: TypeAlias = "Part | list[Part]"


@dataclass(frozen=True, slots=True)
class _Program:
    """rules: (origin, size of its expansion, rule, whether it keeps all values) of each rule."""

    states: tuple[dict[str, int], ...]
    rules: tuple[tuple[str, int, Rule, bool], ...]


@cache
def _program() -> _Program:
    tables = load()
    return _Program(tables.states, tuple((r.origin, len(r.expansion), r, kept_whole(r)) for r in tables.rules))


class Automaton:
    """The state of one parse. `depth` symbols are on its stack."""

    def __init__(self, start: str) -> None:
        """start: "header" or "decl"."""
        self._program = _program()
        self._last = load().end[start]
        self._states = [load().start[start]]
        self._values: list[_Value] = []
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def depth(self) -> int:
        return len(self._values)

    def choices(self) -> Mapping[str, int]:
        """The symbols with an entry in the present state. Its states are merged ones, so not every terminal here can be shifted."""
        return self._program.states[self._states[-1]]

    def feed(self, terminal: str, token: Token) -> bool:
        """Take a token as a terminal. False: it cannot stand here; what could be reduced before it may have been."""
        if not self._reduce(terminal):
            return False
        self._states.append(self._program.states[self._states[-1]][terminal])
        self._values.append(token)
        self._starts.append(token.start)
        self._ends.append(token.end)
        return True

    def finish(self) -> Node | None:
        """The node of the whole; None if it cannot end here."""
        if self._reduce(END):
            return cast(Node, self._values[-1])
        return None

    def _reduce(self, terminal: str) -> bool:
        """Reduce until the terminal can be shifted (for END: until the whole is one node). False if that never happens."""
        states, values, starts, ends = self._states, self._values, self._starts, self._ends
        table, rules = self._program.states, self._program.rules
        while True:
            step = table[states[-1]].get(terminal)
            if step is None:
                return False
            if step >= 0:
                return True
            origin, size, rule, whole = rules[~step]
            children = values[-size:]
            start, end = starts[-size], ends[-1]
            del states[-size:], values[-size:], starts[-size:], ends[-size:]
            states.append(table[states[-1]][origin])
            values.append(_made(rule, children if whole else _taken(rule, children), start, end))
            starts.append(start)
            ends.append(end)
            if terminal == END and states[-1] == self._last:
                return True

    def can_shift(self, terminal: str) -> bool:
        """Whether a terminal can stand here: the reductions before it are run on the states alone."""
        table, rules = self._program.states, self._program.rules
        states = list(self._states)
        while True:
            step = table[states[-1]].get(terminal)
            if step is None:
                return False
            if step >= 0:
                return True
            origin, size, _, _ = rules[~step]
            del states[-size:]
            states.append(table[states[-1]][origin])
            if terminal == END and states[-1] == self._last:
                return True

    def accepts(self) -> set[str]:
        """The terminals that can stand here."""
        return {name for name in self.choices() if name.isupper() and self.can_shift(name)}

    def copy(self) -> Automaton:
        """Another one in the same state; nodes are shared."""
        other = object.__new__(Automaton)
        other._program, other._last = self._program, self._last
        other._states, other._values = list(self._states), list(self._values)
        other._starts, other._ends = list(self._starts), list(self._ends)
        return other


def _taken(rule: Rule, values: list[_Value]) -> list[_Value]:
    taken: list[_Value] = []
    for absent, index, spread in rule.takes:
        if absent:
            taken += [None] * absent
        if spread:
            taken += cast("list[_Value]", values[index])
        else:
            taken.append(values[index])
    return taken + [None] * rule.absent if rule.absent else taken


def _made(rule: Rule, children: list[_Value], start: int, end: int) -> _Value:
    if rule.single and len(children) == 1:
        return children[0]
    parts = cast("list[Part]", children)
    return Node(rule.node, parts, start, end) if rule.node else parts
