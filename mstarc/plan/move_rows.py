"""What crosses between ranks, for a reader: route, bytes, how often. Takes plan, placement and link; gives rows."""

from __future__ import annotations

import msgspec

from mstarc.passes.ranges import value_names
from mstarc.plan.evaluate import ConfigScope
from mstarc.plan.layout import Layout, layouts_of
from mstarc.plan.model import Plan
from mstarc.plan.moves import Move, moves_of
from mstarc.plan.placement import Placement
from mstarc.plan.sizes import Size, bytes_text, kv_bytes, size_of
from mstarc_runtime.abi.linked import Linked


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One move. per: `step` of its loop, `run` of its walk. number, factors: its bytes to one rank (see `Size`)."""

    where: str  # walk, or walk.loop
    per: str
    what: str
    verb: str
    source: int
    sinks: list[int]
    bytes: str
    number: int
    factors: list[str] = []
    when: str = ""


def move_rows(plan: Plan, placement: Placement, linked: Linked, scope: ConfigScope) -> list[MoveRow]:
    """Every move, in the order of the walks."""
    layouts = layouts_of(plan, placement)
    return [_row(move, layouts[move.walk], linked, scope) for move in moves_of(layouts)]


def _row(move: Move, layout: Layout, linked: Linked, scope: ConfigScope) -> MoveRow:
    size, text = _size(move, layout, linked, scope)
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
        when=move.when,
    )


def _size(move: Move, layout: Layout, linked: Linked, scope: ConfigScope) -> tuple[Size, str]:
    if move.kind == "exit":
        return Size(1), bytes_text(1)
    if move.value is not None:
        size = size_of(move.value.type, scope, value_names(layout.walk.body, layout.walk.params))
        return size, size.text
    context = next(c for c in linked.contexts if c.name == move.what)
    cache = next(c for c in linked.caches if c.name == context.cache)
    entry = kv_bytes(cache, linked.ranks[move.source].device)
    if move.loop:
        return Size(entry, ("new entries",)), f"{bytes_text(entry)} * new entries"
    size = Size(entry, ("entries",))
    return size, f"{size.text}, at most {bytes_text(entry * context.max)}" if context.max else size.text
