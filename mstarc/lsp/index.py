"""What the names of a `.walk` text are and where they are made known. Takes a text in any state; gives symbols.

It reads tokens, not the syntax tree: a declaration that is being written has no tree, and its names are wanted all the same. It adds no
analysis: types come from the checked program, and a name that this page does not find has no symbol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mstarc.source import SourceFile
from mstarc.syntax.tokens import Segment, Token, segments, tokenize

UNITS = ("walk", "request")
_OPENED_BY = {"}": "{", ")": "(", "]": "["}
_LISTED = {"let": "=", "context": "on"}  # declarations of several names, and what ends the list


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name where it is made known; byte offsets. kind: a declaration's keyword, `op`, `state`, `input`, `value` or `label`.

    owner: the node of an op, the walk or request of a value. `begin`, `stop`: the text that says what it is.
    """

    name: str
    kind: str
    start: int
    end: int
    begin: int
    stop: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """A text's declarations, each with its inner symbols, in order."""

    source: SourceFile
    parts: tuple[Segment, ...]
    symbols: tuple[Symbol, ...]

    def segment_at(self, offset: int) -> Segment | None:
        """The declaration around a place."""
        found = [part for part in self.parts if part.tokens and part.tokens[0].start <= offset]
        return found[-1] if found else None

    def word_at(self, offset: int) -> tuple[Segment, int] | None:
        """The word at a place, or that ends there: its declaration and its number in it."""
        part = self.segment_at(offset)
        for number, token in enumerate(part.tokens if part else ()):
            if part is not None and token.kind == "word" and token.start <= offset <= token.end:
                return part, number
        return None

    def declared(self, *kinds: str) -> list[Symbol]:
        """Declarations of some kinds."""
        return [s for s in self.symbols if s.kind in kinds]

    def ops(self, node: str) -> list[Symbol]:
        return [s for s in self.symbols if s.kind == "op" and s.owner == node]

    def local(self, part: Segment, before: int) -> list[Symbol]:
        """The values and inputs of a walk or request that are known at a place, the latest first."""
        inner = [s for s in self.symbols if s.kind in ("input", "value") and part.tokens[0].start <= s.start < part.end]
        return [s for s in reversed(inner) if s.start <= before]

    def config_path(self, part: Segment, number: int) -> tuple[str, ...] | None:
        """The section, or section and key, of the binding that a word of a `config` declaration names."""
        tokens = part.tokens
        near = [tokens[i].text if 0 <= i < len(tokens) else "" for i in (number - 2, number - 1, number + 1)]
        if tokens[0].text != "config" or "." not in near[1:]:
            return None
        return (near[0], tokens[number].text) if near[1] == "." else (tokens[number].text,)

    def resolve(self, part: Segment, number: int) -> Symbol | None:
        """What the word is: an op behind its node, a value of its walk, or a declaration."""
        token = part.tokens[number]
        if number >= 2 and part.tokens[number - 1].text == ".":
            return next((s for s in self.ops(part.tokens[number - 2].text) if s.name == token.text), None)
        exact = next((s for s in self.symbols if s.start == token.start), None)
        if exact is not None:
            return exact
        local = next((s for s in self.local(part, token.start) if s.name == token.text), None)
        globally = (s for s in self.symbols if s.name == token.text and s.kind not in ("op", "input", "value", "label"))
        return local or next(globally, None)


def index(source: SourceFile) -> Index:
    """The index of a text."""
    _, *parts = segments(tokenize(source), len(source.text.encode()))
    return Index(source, tuple(parts), tuple(symbol for part in parts for symbol in _symbols(part)))


def _symbols(part: Segment) -> Iterator[Symbol]:
    tokens = part.tokens
    kind, stop = tokens[0].text, tokens[-1].end

    def symbol(token: Token, kind: str, owner: str = "", begin: Token | None = None, stop: int = stop) -> Symbol:
        return Symbol(token.text, kind, token.start, token.end, (begin or tokens[0]).start, stop, owner)

    if kind == "config":
        for i in _assigned(tokens, 1):
            yield symbol(tokens[i], "config", "", tokens[i], _end_of_entry(tokens, i))
        return
    if kind in _LISTED:
        for token in _names(tokens, 1):
            yield symbol(token, kind)
        return
    if len(tokens) < 2 or tokens[1].kind != "word":
        return
    name = tokens[1].text
    yield symbol(tokens[1], kind)
    if kind == "node":
        yield from _inner(tokens, name)
    elif kind in UNITS:
        for token, what, begin, end in _bound(tokens):
            yield symbol(token, what, name, begin, end)


def _names(tokens: Sequence[Token], at: int) -> Iterator[Token]:
    """`a, b, c` from a place on."""
    while at < len(tokens) and tokens[at].kind == "word":
        yield tokens[at]
        if at + 1 >= len(tokens) or tokens[at + 1].text != ",":
            return
        at += 2


def _assigned(tokens: Sequence[Token], braces: int) -> Iterator[int]:
    """Words before `=` that stand in at least that many braces and in no parentheses."""
    opened = {"{": 0, "(": 0, "[": 0}
    for i, token in enumerate(tokens):
        if token.kind == "mark" and token.text in opened:
            opened[token.text] += 1
        elif token.kind == "mark" and token.text in _OPENED_BY:
            opened[_OPENED_BY[token.text]] -= 1
        elif token.text == "=" and i and tokens[i - 1].kind == "word" and _within(opened, braces):
            yield i - 1


def _within(opened: Mapping[str, int], braces: int) -> bool:
    return opened["{"] >= braces and max(opened["("], opened["["]) <= 0


def _end_of_entry(tokens: Sequence[Token], at: int) -> int:
    """Where a config's entry ends: before the next entry or the brace."""
    later = [i for i in _assigned(tokens, 1) if i > at]
    last = later[0] - 1 if later else len(tokens) - (2 if tokens[-1].text == "}" else 1)
    return tokens[max(at, last)].end


def _inner(tokens: Sequence[Token], node: str) -> Iterator[Symbol]:
    """Ops and states of a node."""
    starts = [
        i
        for i, t in enumerate(tokens)
        if i > 1 and t.text in ("op", "state") and tokens[i + 1 : i + 2] and _opens(tokens, i)
    ]
    for i, following in pairwise([*starts, len(tokens)]):
        last = tokens[following - 1]
        if following == len(tokens) and last.text == "}" and following - 1 > i + 1:
            last = tokens[following - 2]
        name = tokens[i + 1]
        yield Symbol(name.text, tokens[i].text, name.start, name.end, tokens[i].start, last.end, node)


def _opens(tokens: Sequence[Token], i: int) -> bool:
    """Whether an op or a state begins here: `op NAME (`, `state NAME :`."""
    follows = tokens[i + 2].text if i + 2 < len(tokens) else ""
    return tokens[i + 1].kind == "word" and follows in (("(",) if tokens[i].text == "op" else (":",))


def _bound(tokens: Sequence[Token]) -> Iterator[tuple[Token, str, Token, int]]:
    """(name, kind, first token and end of what binds it) in a walk or request."""
    assigned = set(_assigned(tokens, 1))
    depth = braces = 0
    collects = False
    for i, token in enumerate(tokens):
        follows = tokens[i + 1].text if i + 1 < len(tokens) else ""
        if token.kind == "mark":
            depth += (token.text == "(") - (token.text == ")")
            braces += (token.text == "{") - (token.text == "}")
            continue
        if token.kind != "word":
            continue
        before = tokens[i - 1].text if i else ""
        line = _line(tokens, i)
        collects = token.text == "collect" or (collects and before != "as")
        if follows == ":" and braces == 0 and depth == 1:
            yield token, "input", token, _end_of_type(tokens, i + 2)
        elif follows == ":" and braces and depth == 0:
            yield token, "label", token, token.end
        elif before == "loop":
            yield token, "label", tokens[i - 1], token.end
        elif before == "for" or (before == "carry" and i not in assigned) or (before == "as" and collects):
            for name in _names(tokens, i) if before == "for" else (token,):
                yield name, "value", *line
        elif i in assigned:
            first = i
            while first >= 2 and tokens[first - 1].text == "," and tokens[first - 2].kind == "word":
                first -= 2
            if tokens[first - 1].text == "carry":
                first = i
            for name in _names(tokens[: i + 1], first):
                yield name, "value", *line


def _line(tokens: Sequence[Token], i: int) -> tuple[Token, int]:
    """The first token and the end of the line around a token."""
    first = i
    while first and not tokens[first].fresh:
        first -= 1
    last = i
    while last + 1 < len(tokens) and not tokens[last + 1].fresh:
        last += 1
    return tokens[first], tokens[last].end


def _end_of_type(tokens: Sequence[Token], at: int) -> int:
    """Where the type of a parameter ends: at its `,` or `)`."""
    depth = 0
    end = tokens[min(at, len(tokens)) - 1].end
    for token in tokens[at:]:
        depth += (token.text in "([") - (token.text in ")]") if token.kind == "mark" else 0
        if depth < 0 or (depth == 0 and token.text == ","):
            break
        end = token.end
    return end
