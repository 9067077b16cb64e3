"""A text that parses, as the formatter sees it: words with their comments, and items that hold words and blocks of items.

Takes a source file and its syntax tree; gives the items of the file. Nothing here decides how anything looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from mstarc.source import SourceFile
from mstarc.syntax import ast
from mstarc.syntax.tokens import DECLARATIONS, Token, tokenize

LISTS = frozenset(("config", "node", "together"))  # their blocks hold lists, not sequences of statements


@dataclass(frozen=True, slots=True)
class Comment:
    """From its `#`. `column` is where it stood, in characters; `blank`: an empty line was above it."""

    text: str
    column: int
    blank: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """A token. `lead`: comments on lines of their own above it; `trail`: the comment after it on its line.

    `column`, `space`: where it stood and how far after the token before it, in characters. `blank`: an empty line is above it, and
    below its `lead`.
    """

    text: str
    kind: str
    start: int
    end: int
    column: int
    space: int
    fresh: bool
    blank: bool
    lead: tuple[Comment, ...]
    trail: Comment | None


@dataclass(frozen=True, slots=True)
class Block:
    """`{ items }`. `kind`: the word that says what it holds (`config`, `node`, `together`), else "". `spread`: the author put
    the items on lines of their own.
    """

    open: Word
    items: tuple[Item, ...]
    close: Word
    kind: str
    spread: bool


@dataclass(frozen=True, slots=True)
class Item:
    """A declaration, a statement, or an entry, op, case or branch. `kind`: its keyword, `entry`, or `stmt`."""

    parts: tuple[Word | Block, ...]
    kind: str

    @property
    def first(self) -> Word:
        """The word it begins with."""
        head = self.parts[0]
        return head if isinstance(head, Word) else head.open


@dataclass(frozen=True, slots=True)
class Marks:
    """Places, as byte offsets: where items and op attributes begin, what is called or indexed ends, `-` is a sign, `:` is in a slice."""

    items: frozenset[int]
    attrs: frozenset[int]
    owners: frozenset[int]
    signs: frozenset[int]
    slices: frozenset[int]


@dataclass(frozen=True, slots=True)
class Tree:
    """A whole file. `last`: the comments after everything."""

    items: tuple[Item, ...]
    last: tuple[Comment, ...]
    marks: Marks


def read_tree(source: SourceFile, model: ast.Model) -> Tree:
    """The items of a text. `model` is what the text parses to, complete."""
    words, last = _words(source)
    marks = _marks(source, model, words)
    return Tree(_Reader(words, marks).items(""), last, marks)


def comments_of(source: SourceFile) -> list[str]:
    """The comments of a text in order, without spaces at their ends."""
    words, last = _words(source)
    found = []
    for word in words:
        found += [comment.text for comment in word.lead]
        found += [word.trail.text] if word.trail is not None else []
    return found + [comment.text for comment in last]


# ------------------------------------------------------------------------------------------------------------- words


def _words(source: SourceFile) -> tuple[list[Word], tuple[Comment, ...]]:
    tokens = tokenize(source)
    data = source.text.encode("utf-8")
    gaps = _gaps(tokens, data)
    words = []
    column = 0
    for i, token in enumerate(tokens):
        gap = gaps[i].split("\n")
        text = token.text
        column = column + len(gap[0]) if len(gap) == 1 else len(gap[-1])
        lead, blank = _own_lines(gap[:-1] if i == 0 else gap[1:-1])
        after = gaps[i + 1].split("\n")[0]
        trail = Comment(after.strip(), column + len(text) + after.index("#")) if "#" in after else None
        space = len(gap[-1]) if len(gap) == 1 else 0
        fresh = i == 0 or len(gap) > 1
        words.append(Word(text, token.kind, token.start, token.end, column, space, fresh, blank, lead, trail))
        column += len(text)
    last, _ = _own_lines(gaps[-1].split("\n")[1:] if tokens else gaps[-1].split("\n"))
    return words, last


def _gaps(tokens: tuple[Token, ...], data: bytes) -> list[str]:
    """The text before each token, and that after the last."""
    ends = [0, *(token.end for token in tokens)]
    starts = [*(token.start for token in tokens), len(data)]
    return [data[a:b].decode("utf-8") for a, b in zip(ends, starts, strict=True)]


def _own_lines(lines: list[str]) -> tuple[tuple[Comment, ...], bool]:
    """(comments, whether an empty line follows the last of them)."""
    found = []
    blank = False
    for line in lines:
        if "#" in line:
            found.append(Comment(line.strip(), line.index("#"), blank))
            blank = False
        else:
            blank = blank or not line.strip()
    return tuple(found), blank


# ------------------------------------------------------------------------------------------------------------- marks


def _marks(source: SourceFile, model: ast.Model, words: list[Word]) -> Marks:
    data = source.text.encode("utf-8")
    items: set[int] = {model.span.start}
    attrs: set[int] = set()
    owners: set[int] = set()
    signs: set[int] = set()
    for node in _nodes(model):
        match node:
            case ast.Model(decls=decls):
                items |= {decl.span.start for decl in decls}
            case ast.Config(entries=entries):
                items |= {entry.span.start for entry in entries}
            case ast.Together(branches=branches):
                items |= {branch.span.start for branch in branches}
            case ast.Node(ops=ops, states=states):
                items |= {op.span.start for op in ops} | {state.span.start for state in states}
            case ast.For(cases=cases):
                items |= {case.span.start for case in cases}
            case ast.Block(stmts=stmts, span=span) if data[span.start : span.start + 1] == b"{":
                items |= {stmt.span.start for stmt in stmts}
            case ast.Op(attrs=every):
                attrs |= {attr.span.start for attr in every}
            case ast.Call(callee=callee):
                owners.add(callee.span.end)
            case ast.Sub(base=base):
                owners.add(base.span.end)
            case ast.Unary(op="-", span=span):
                signs.add(span.start)
    return Marks(frozenset(items), frozenset(attrs), frozenset(owners), frozenset(signs), frozenset(_slices(words)))


def _slices(words: list[Word]) -> Iterator[int]:
    """The `:` right inside of square brackets."""
    around = [""]
    for word in words:
        if word.kind != "mark":
            continue
        if word.text in ("(", "[", "{"):
            around.append(word.text)
        elif word.text in (")", "]", "}"):
            around.pop()
        elif word.text == ":" and around[-1] == "[":
            yield word.start


def _nodes(node: Any) -> Iterator[Any]:
    """Every node of the syntax tree."""
    if isinstance(node, tuple):
        for child in node:
            yield from _nodes(child)
    elif isinstance(node, Struct):
        yield node
        for name in node.__struct_fields__:
            yield from _nodes(getattr(node, name))


# ------------------------------------------------------------------------------------------------------------- items


class _Reader:
    def __init__(self, words: list[Word], marks: Marks) -> None:
        self._words = words
        self._marks = marks
        self._at = 0

    def items(self, holder: str) -> tuple[Item, ...]:
        """Items up to the `}` that ends them, or the end of the text."""
        found = []
        while self._at < len(self._words) and self._words[self._at].text != "}":
            found.append(self._item(holder))
        return tuple(found)

    def _item(self, holder: str) -> Item:
        parts: list[Word | Block] = []
        first = self._words[self._at]
        inside = 0  # braces of samplers and op attributes
        while self._at < len(self._words):
            word = self._words[self._at]
            if parts and not inside and (word.text == "}" or word.start in self._marks.items):
                break
            if word.text == "{" and self._holds_items():
                parts.append(self._block(parts))
                continue
            inside += (word.text == "{") - (word.text == "}")
            parts.append(word)
            self._at += 1
        return Item(tuple(parts), _kind(first, holder))

    def _holds_items(self) -> bool:
        after = self._words[self._at + 1]
        return after.text == "}" or after.start in self._marks.items

    def _block(self, before: list[Word | Block]) -> Block:
        words = [part for part in before if isinstance(part, Word)]
        named = words[0].text if words and words[0].text in LISTS else ""
        kind = "together" if words and words[-1].text == "together" else named
        opening = self._words[self._at]
        self._at += 1
        items = self.items(kind)
        closing = self._words[self._at]
        self._at += 1
        return Block(opening, items, closing, kind, any(item.first.fresh for item in items))


def _kind(first: Word, holder: str) -> str:
    if holder == "config":
        return "entry"
    if first.text in DECLARATIONS or first.text in ("model", "case"):
        return first.text
    return first.text if holder == "node" else "stmt"
