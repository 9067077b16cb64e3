"""What crosses between ranks, for a reader: route, bytes, how often. Takes plan, placement and link; gives rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from mstarc.ir.fold import fold
from mstarc.passes.ranges import value_names
from mstarc.plan.evaluate import ConfigScope, UsualScope, parse_expr
from mstarc.plan.layout import Layout, layouts_of
from mstarc.plan.model import Plan
from mstarc.plan.moves import Move, moves_of
from mstarc.plan.placement import Placement
from mstarc.plan.sizes import Size, bytes_text, kv_bytes, size_of, usual_size
from mstarc_runtime.abi.linked import Linked


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One move. per: `step` of its loop, `run` of its walk. number, factors: its bytes to one rank (see `Size`).

    usual: the same in bytes, for the defaults of the params and what the `cost` section says; null if that is not enough.
    """

    where: str  # walk, or walk.loop
    per: str
    what: str
    verb: str
    source: int
    sinks: list[int]
    bytes: str
    number: int
    factors: list[str] = []
    usual: int | None = None
    when: str = ""


def move_rows(
    plan: Plan, placement: Placement, linked: Linked, overrides: Mapping[str, Any] | None = None
) -> list[MoveRow]:
    """Every move, in the order of the walks. overrides: as for `link`."""
    layouts, scope = layouts_of(plan, placement), ConfigScope(plan, overrides or {})
    usual = {name: UsualScope(plan, overrides or {}, layout.walk) for name, layout in layouts.items()}
    return [_row(move, layouts[move.walk], linked, scope, usual[move.walk]) for move in moves_of(layouts)]


def _row(move: Move, layout: Layout, linked: Linked, scope: ConfigScope, usual: UsualScope) -> MoveRow:
    size, text = _size(move, layout, linked, scope)
    example = usual_size(move.value.type, usual) if move.value is not None and size.factors else None
    if example is not None:
        text += f" = {bytes_text(example)}{_for(size, usual)}"
    return MoveRow(
        where=f"{move.walk}.{move.loop}" if move.loop else move.walk,
        per="step" if move.loop else "run",
        what={"kv": f"keys and values of {move.what}", "exit": "whether it stops"}.get(move.kind, move.what),
        verb=move.verb,
        source=move.source,
        sinks=list(move.sinks),
        bytes=text,
        number=size.number,
        factors=list(size.factors),
        usual=example,
        when=move.when,
    )


def _for(size: Size, usual: UsualScope) -> str:
    """` for h = 1024, w = 1024`: the parameters that the factors name."""
    named = [name for name in usual.known if any(re.search(rf"\b{name}\b", factor) for factor in size.factors)]
    shown = [f"{name} = {fold(parse_expr(usual.known[name]), usual)}" for name in named]
    return f" for {', '.join(shown)}" if shown else ""


def _size(move: Move, layout: Layout, linked: Linked, scope: ConfigScope) -> tuple[Size, str]:
    if move.kind == "exit":
        return Size(1), bytes_text(1)
    if move.value is not None:
        size = size_of(move.value.type, scope, value_names(layout.walk.body, layout.walk.params))
        return size, size.text
    context = {c.name: c for c in linked.contexts}[move.what]
    cache = {c.name: c for c in linked.caches}[context.cache]
    entry = kv_bytes(cache, linked.ranks[move.source].device)
    if move.loop:
        return Size(entry, ("new entries",)), f"{bytes_text(entry)} * new entries"
    size = Size(entry, ("entries",))
    return size, f"{size.text}, at most {bytes_text(entry * context.max)}" if context.max else size.text
