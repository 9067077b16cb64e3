"""What a name is, for a hover. Takes a symbol, and the checked program if there is one; gives Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from mstarc.ir.core import Program, Request, Value, Walk
from mstarc.ir.text import print_type
from mstarc.lsp.index import Index, Symbol
from mstarc.lsp.words import DOCS
from mstarc.workspace import Model

LONGEST = 16  # lines of a declaration that are shown


def describe(symbol: Symbol, index: Index, model: Model | None) -> str:
    """The symbol's text in its file, and what the compiler knows about it."""
    title = symbol.kind + (f" of `{symbol.owner}`" if symbol.owner else "")
    parts = [f"**{symbol.name}** ({title})", f"```walk\n{_shown(symbol, index)}\n```"]
    if symbol.kind in ("value", "input") and model is not None and model.program is not None:
        value = _value(symbol, model.program)
        if value is not None:
            parts.insert(1, f"`{print_type(value.type)}`, on the {value.phase}")
    if symbol.kind == "config" and model is not None:
        parts += _configured(symbol, model)
    return "\n\n".join(parts)


def describe_word(word: str) -> str | None:
    """What a word of the language means."""
    return DOCS.get(word)


def _shown(symbol: Symbol, index: Index) -> str:
    data = index.source.text.encode()
    lines = data[symbol.begin : symbol.stop].decode("utf-8", "replace").split("\n")
    return "\n".join(lines[:LONGEST] + (["…"] if len(lines) > LONGEST else []))


def _value(symbol: Symbol, program: Program) -> Value | None:
    """The value that is bound there; one of that name, if the text has changed since it was checked."""
    units: tuple[Walk | Request, ...] = (*program.walks, *program.requests)
    unit = next((u for u in units if u.name == symbol.owner), None)
    values = list(_values(unit))
    exact = (v for v in values if (v.span.start, v.span.end) == (symbol.start, symbol.end))
    return next(exact, None) or next((v for v in values if v.name == symbol.name), None)


def _values(item: Any) -> Iterator[Value]:
    if isinstance(item, Value):
        yield item
    elif is_dataclass(item):
        for field in fields(item):
            yield from _values(getattr(item, field.name))
    elif isinstance(item, tuple):
        for part in item:
            yield from _values(part)


def _configured(symbol: Symbol, model: Model) -> Iterator[str]:
    """The value that the binding gives a config."""
    config = next((c for c in model.program.configs if c.name == symbol.name), None) if model.program else None
    if config is not None and config.path and model.binding is not None:
        value = model.binding.value(config.path)
        if value is not None:
            text = repr(value)
            yield f"`{config.path}` is `{text[:200] + ('…' if len(text) > 200 else '')}`"
