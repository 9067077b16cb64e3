"""Which terminals of the grammar a piece of text can be. Built once a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mstarc.syntax.tables import load, words_of

_OPERATORS = {"CMP": ("==", "!=", "<=", ">=", "<", ">"), "ADD": ("+", "-"), "MUL": ("*", "//", "/", "%")}
_KINDS = {"number": ("NUMBER",), "string": ("STRING",)}


@dataclass(frozen=True, slots=True)
class Machine:
    """terminals: what a word or mark can be, the most special first. texts: terminal -> how the author writes it."""

    terminals: dict[str, tuple[str, ...]]
    reserved: frozenset[str]
    texts: dict[str, str]

    def candidates(self, kind: str, text: str) -> tuple[str, ...]:
        """The terminals that a token can be; which one, the state of the parser decides."""
        if kind in _KINDS:
            return _KINDS[kind]
        return self.terminals.get(text, ("NAME",) if kind == "word" else ())


@cache
def machine() -> Machine:
    """The machine of `walk.lark`."""
    tables = load()
    reserved = frozenset(tables.reserved)
    terminals: dict[str, tuple[str, ...]] = {text: (name,) for text, name in words_of(tables).items()}
    for word, names in terminals.items():
        if word.isidentifier() and word not in reserved:
            terminals[word] = (*names, "NAME")
    for name, marks in _OPERATORS.items():
        for mark in marks:
            terminals[mark] = (*terminals.get(mark, ()), name)
    return Machine(terminals, reserved, tables.texts)
