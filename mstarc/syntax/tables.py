"""The parse tables of `walk.lark`, worked out beforehand by Lark: a check needs no Lark then.

`walk.tables` holds them as compressed JSON under the digest of the grammar. A digest that differs, or no file, means that the tables
are built from the grammar, which needs Lark. `python -m mstarc.syntax.tables` writes the file anew: the same bytes for one grammar.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from lark.grammar import Rule as LarkRule

NAME = "walk.tables"
STARTS = ("header", "decl")
END = "$END"


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """`origin: expansion`, and what it makes of the values of its expansion.

    takes: (how many None before it, index in the expansion, whether it is a list whose items are taken) of each value that is kept;
    absent: how many None after them. node: the name of the node, "" if the rule makes a bare list, for another rule to take.
    single: one child stands for the node.
    """

    origin: str
    expansion: tuple[str, ...]
    node: str
    single: bool
    takes: tuple[tuple[int, int, bool], ...]
    absent: int


class Tables(msgspec.Struct, frozen=True):
    """states: symbol -> the state after it (>= 0), or ~k to reduce by rule k. start, end: states by what is parsed.

    texts: how the author writes a terminal that has one form. reserved: the words that are no names.
    """

    digest: str
    rules: tuple[Rule, ...]
    states: tuple[dict[str, int], ...]
    start: dict[str, int]
    end: dict[str, int]
    texts: dict[str, str]
    reserved: tuple[str, ...]


@cache
def load() -> Tables:
    """The tables of the grammar: the stored ones, if they are its tables."""
    grammar = grammar_text()
    try:
        found = unpacked(files("mstarc.syntax").joinpath(NAME).read_bytes())
    except OSError:
        found = None
    return found if found is not None and found.digest == digest(grammar) else build(grammar)


def grammar_text() -> str:
    """The text of `walk.lark`."""
    return files("mstarc.syntax").joinpath("walk.lark").read_text(encoding="utf-8")


def digest(grammar: str) -> str:
    """What the tables depend on, in short."""
    return hashlib.sha256(grammar.encode()).hexdigest()


def packed(tables: Tables) -> bytes:
    """Tables as bytes."""
    return zlib.compress(msgspec.json.encode(tables), 9)


def unpacked(stored: bytes) -> Tables | None:
    """What `packed` wrote; None if it is damaged."""
    try:
        return msgspec.json.decode(zlib.decompress(stored), type=Tables)
    except (ValueError, zlib.error):
        return None


# -------------------------------------------------------------------------------------------------------------- building


def build(grammar: str) -> Tables:
    """The tables from the grammar itself. Rules and states are numbered by the grammar's order, not by Lark's, which varies."""
    from lark import Lark
    from lark.lexer import PatternStr
    from lark.parsers.lalr_analysis import Shift

    parser = Lark(grammar, start=list(STARTS), parser="lalr", lexer="basic")
    found: Any = parser.parser.parser
    table = found._parse_table
    rules = {rule: number for number, rule in enumerate(parser.rules)}
    numbers: dict[int, int] = {}
    queue = [table.start_states[start] for start in STARTS]
    for state in queue:  # grows while it is walked
        if state in numbers:
            continue
        numbers[state] = len(numbers)
        queue += [to for _, (action, to) in sorted(table.states[state].items()) if action is Shift]

    def step(action: Any, to: Any) -> int:
        return numbers[to] if action is Shift else ~rules[to]

    texts = {str(t.name): t.pattern.value for t in parser.terminals if isinstance(t.pattern, PatternStr)}
    names = next((t.pattern.value for t in parser.terminals if t.name == "NAME"), "")
    words = re.search(r"\(\?:([a-z|]+)\)", names)  # the pattern of NAME excludes the reserved words
    return Tables(
        digest(grammar),
        tuple(_rule(rule) for rule in rules),
        tuple({str(name): step(*to) for name, to in sorted(table.states[state].items())} for state in numbers),
        {start: numbers[table.start_states[start]] for start in STARTS},
        {start: numbers[table.end_states[start]] for start in STARTS},
        dict(sorted(texts.items())),
        tuple(sorted(words[1].split("|"))) if words else (),
    )


def _rule(rule: LarkRule) -> Rule:
    """What Lark makes of a rule: unnamed marks and words are left out, `[x]` that is absent is None, `_x` is spread."""
    assert rule.expansion, f"no rule of the grammar may be empty: {rule}"
    gaps = "".join("1" if absent else "0" for absent in rule.options.empty_indices)
    before = [len(ones) for ones in gaps.split("0")] if gaps else [0] * (len(rule.expansion) + 1)
    takes = []
    nones = 0
    for index, symbol in enumerate(rule.expansion):
        nones += before[index]
        if symbol.is_term and getattr(symbol, "filter_out", False) and not rule.options.keep_all_tokens:
            continue
        takes.append((nones, index, not symbol.is_term and symbol.name.startswith("_")))
        nones = 0
    origin = str(rule.origin.name)
    node = "" if origin.startswith("_") else str(rule.alias or origin)
    single = rule.options.expand1 and not rule.alias
    return Rule(
        origin,
        tuple(str(s.name) for s in rule.expansion),
        node,
        single,
        tuple(takes),
        nones + before[len(rule.expansion)],
    )


def kept_whole(rule: Rule) -> bool:
    """Whether the children of a rule are the values of its expansion, as they are."""
    return not rule.absent and rule.takes == tuple((0, index, False) for index in range(len(rule.expansion)))


def words_of(tables: Tables) -> Mapping[str, str]:
    """text -> terminal, of terminals that have one form."""
    return {text: name for name, text in tables.texts.items()}


if __name__ == "__main__":
    Path(str(files("mstarc.syntax").joinpath(NAME))).write_bytes(packed(build(grammar_text())))
