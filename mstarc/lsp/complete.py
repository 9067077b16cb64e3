"""What can be written at a place. Takes an index and a byte offset; gives names and words with what they are.

Which words can follow, the parser says; which names, the word before decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mstarc.ir.types import DTYPES, MODALITIES, SCALARS
from mstarc.lsp.index import UNITS, Index, Symbol
from mstarc.lsp.words import BUILTINS, DECLARATIONS, DOCS, POLICIES
from mstarc.syntax.machine import machine
from mstarc.syntax.parser import due
from mstarc.syntax.tokens import Segment, Token, unclosed

#: the word before -> kinds of declarations that can be named there
_AFTER = {
    **dict.fromkeys(("reads", "writes", "drop", "fork", "from", "over"), ("context",)),
    "on": ("cache",),
    "case": ("type",),
    "of": ("node",),
    "samples": ("sampler",),
}
_WORDS_AFTER = {
    "by": POLICIES,
    "as": MODALITIES,
    "attend": ("causal", "full"),
    "at_end": ("drop", "partial", "pad"),
    "after_end": ("empty",),
    "overlap": ("ok",),
    "async": ("off",),
}


@dataclass(frozen=True, slots=True)
class Offer:
    """kind: a symbol's kind, or `word`. detail: what it is, in a line."""

    name: str
    kind: str
    detail: str = ""


def offers(index: Index, offset: int) -> list[Offer]:
    """Everything that makes sense at a place, each name once."""
    part = index.segment_at(offset)
    tokens = _before(part, offset)
    found = _declarations() if part is None or not tokens else _in(index, part, tokens, offset)
    return list({offer.name: offer for offer in found}.values())


def _before(part: Segment | None, offset: int) -> tuple[Token, ...]:
    """The tokens before the word that is being written."""
    tokens = tuple(t for t in part.tokens if t.start < offset) if part is not None else ()
    return tokens[:-1] if tokens and tokens[-1].kind == "word" and tokens[-1].end >= offset else tokens


def _declarations() -> Iterator[Offer]:
    return (Offer(word, "word", text) for word, text in DECLARATIONS.items())


def _in(index: Index, part: Segment, tokens: Sequence[Token], offset: int) -> Iterator[Offer]:
    last = tokens[-1].text
    body = part.tokens[0].text in UNITS and any(t.text == "{" for t in tokens)
    if last == ".":
        yield from map(_offer, index.ops(tokens[-2].text) if len(tokens) > 1 else ())
        return
    if last in _AFTER or last in _WORDS_AFTER:
        yield from map(_offer, index.declared(*_AFTER.get(last, ())))
        yield from (Offer(word, "word", DOCS.get(word, "")) for word in _WORDS_AFTER.get(last, ()))
        return
    if body and last in ("->", "in"):
        yield from map(_offer, index.declared("stream"))
        if last == "->" or part.tokens[0].text == "walk":
            return
    if last == ":" and not body:
        yield from (Offer(name, "word") for name in dict.fromkeys((*DTYPES, *SCALARS, *MODALITIES)))
        yield from map(_offer, index.declared("type"))
    can = due(tokens)
    if can == {"$END"} or (not can and unclosed(tuple(tokens))[0] is None):
        yield from _declarations()
        return
    if "$END" in can:
        yield from _declarations()
    if body and (not can or "NAME" in can):
        yield from map(_offer, index.local(part, offset))
        yield from map(_offer, _callable(index, part))
        yield from (Offer(name, "builtin", text) for name, text in BUILTINS.items())
    elif "NAME" in can and last != ":":
        yield from map(_offer, index.declared("config", "param", "let"))
    yield from _words(can)


def _callable(index: Index, part: Segment) -> list[Symbol]:
    """The declarations that expressions and statements of a walk or request can name."""
    own = ("walk", "extern") if part.tokens[0].text == "request" else ("node", "extern", "sampler")
    return index.declared(*own, "config", "param", "let")


def _words(can: Iterable[str]) -> Iterator[Offer]:
    texts = machine().texts
    for terminal in sorted(can):
        text = texts.get(terminal, "")
        if text.isidentifier():
            yield Offer(text, "word", DOCS.get(text, ""))


def _offer(symbol: Symbol) -> Offer:
    return Offer(symbol.name, symbol.kind, f"{symbol.kind} of {symbol.owner}" if symbol.owner else symbol.kind)
