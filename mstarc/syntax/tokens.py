"""Splits text into tokens and tokens into declarations. Takes a source file; never fails, whatever the text is.

A declaration begins at its keyword. Those words are reserved and stand nowhere else in a model, so a slip in one declaration
leaves the others intact, even if it is a missing `}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate

from msgspec import Struct

from mstarc.source import SourceFile

DECLARATIONS = frozenset(
    ("config", "param", "let", "type", "extern", "cache", "context", "sampler", "node", "stream", "walk", "request")
)

_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
      | (?P<number>[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"[^"\n]*")
      | (?P<open>"[^"\n]*)
      | (?P<mark>->|\.\.|==|!=|<=|>=|//|[{}()\[\]<>=+\-*/%,:.?|])
      | (?P<bad>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {")": "(", "]": "[", "}": "{"}


class Token(Struct, frozen=True):
    """kind: number word string mark, or `open` (a string without its end) or `bad`. Offsets are bytes.

    fresh: first on its line. flush: and not indented.
    """

    kind: str
    text: str
    start: int
    end: int
    fresh: bool
    flush: bool


class Segment(Struct, frozen=True):
    """The tokens of one declaration; `end` is where the next one begins. The first segment of a file is its header."""

    tokens: tuple[Token, ...]
    end: int
    last: bool


def tokenize(source: SourceFile) -> tuple[Token, ...]:
    """All tokens but spaces and comments."""
    return tuple(_tokens(source.text))


def _tokens(text: str) -> Iterator[Token]:
    at = list(accumulate((len(c.encode("utf-8")) for c in text), initial=0)) if not text.isascii() else None
    fresh = flush = True
    for match in _TOKEN.finditer(text):
        kind, found = str(match.lastgroup), match.group()
        if kind == "space":
            fresh = fresh or "\n" in found
            flush = fresh and found.endswith("\n")
            continue
        start, end = match.span() if at is None else (at[match.start()], at[match.end()])
        yield Token(kind, found, start, end, fresh, flush)
        fresh = flush = False


def segments(tokens: tuple[Token, ...], size: int) -> Iterator[Segment]:
    """The header, then one segment a declaration. `size` is the length of the file in bytes."""
    begins = [0, *_begins(tokens)]
    for i, begin in enumerate(begins):
        last = i + 1 == len(begins)
        stop = len(tokens) if last else begins[i + 1]
        yield Segment(tokens[begin:stop], size if last else tokens[stop].start, last)


def _begins(tokens: tuple[Token, ...]) -> Iterator[int]:
    """Where declarations begin: inside of brackets only where a line begins with one unindented: a bracket is missing."""
    depth = 0
    for i, token in enumerate(tokens):
        follows = tokens[i + 1] if i + 1 < len(tokens) else None
        named = follows is not None and (follows.kind == "word" or (token.text == "config" and follows.text == "{"))
        begins = (named and (depth == 0 or token.flush)) or (depth == 0 and token.fresh)
        if i and token.kind == "word" and token.text in DECLARATIONS and begins:
            depth = 0
            yield i
        elif token.kind == "mark" and token.text in "{([":
            depth += 1
        elif token.kind == "mark" and token.text in "})]":
            depth = max(0, depth - 1)


def unclosed(tokens: tuple[Token, ...]) -> tuple[Token | None, int]:
    """(the innermost bracket that is never closed, the deepest nesting)."""
    stack: list[Token] = []
    deepest = 0
    for token in tokens:
        if token.kind != "mark":
            continue
        if token.text in "{([":
            stack.append(token)
            deepest = max(deepest, len(stack))
        elif token.text in _CLOSES and stack and stack[-1].text == _CLOSES[token.text]:
            stack.pop()
    return (stack[-1] if stack else None), deepest
