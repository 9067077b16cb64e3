"""The parser that the grammar gives: tables, and which terminals a piece of text can be. Built once a process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from lark import Lark
from lark.lexer import PatternStr

from mstarc.syntax.tables import load_lark

_OPERATORS = {"CMP": ("==", "!=", "<=", ">=", "<", ">"), "ADD": ("+", "-"), "MUL": ("*", "//", "/", "%")}
_KINDS = {"number": ("NUMBER",), "string": ("STRING",)}


@dataclass(frozen=True, slots=True)
class Machine:
    """`lark` parses `header` and `decl`. `terminals`: what a word or mark can be, the most special first."""

    lark: Lark
    terminals: dict[str, tuple[str, ...]]
    reserved: frozenset[str]
    texts: dict[str, str]  # terminal -> how the author writes it

    def candidates(self, kind: str, text: str) -> tuple[str, ...]:
        """The terminals that a token can be; which one, the state of the parser decides."""
        if kind in _KINDS:
            return _KINDS[kind]
        return self.terminals.get(text, ("NAME",) if kind == "word" else ())


@cache
def machine() -> Machine:
    """The machine of `walk.lark`."""
    lark = load_lark()
    reserved: frozenset[str] = frozenset()
    terminals: dict[str, tuple[str, ...]] = {}
    texts = {}
    for terminal in lark.terminals:
        pattern = terminal.pattern
        if terminal.name == "NAME":
            words = re.search(r"\(\?:([a-z|]+)\)", pattern.value)
            assert words is not None, "the pattern of NAME lists the reserved words"
            reserved = frozenset(words[1].split("|"))
        elif isinstance(pattern, PatternStr):
            terminals[pattern.value] = (terminal.name,)
            texts[terminal.name] = pattern.value
    for word, names in terminals.items():
        if word.isidentifier() and word not in reserved:
            terminals[word] = (*names, "NAME")
    for name, marks in _OPERATORS.items():
        for mark in marks:
            terminals[mark] = (*terminals.get(mark, ()), name)
    return Machine(lark, terminals, reserved, texts)
