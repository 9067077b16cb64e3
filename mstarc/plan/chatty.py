"""MC603 chatty-cut: what each step of a loop sends to and from a rank, against the rank's `link`. Takes a linked program; reports.

A floor: values whose size only a request says count with what the binding's `cost` section takes for usual, else not at all, and of keys
and values one entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Loop, Send, Walk
from mstarc.ir.visit import every_op
from mstarc.plan.evaluate import DefaultScope, parse_type
from mstarc.plan.layout import Layout
from mstarc.plan.model import Plan
from mstarc.plan.move_rows import MoveRow
from mstarc.plan.placement import Placement
from mstarc.plan.sizes import bytes_text, usual_size
from mstarc_runtime.abi.linked import Linked


@dataclass(frozen=True, slots=True)
class _Sent:
    """Bytes of one thing that each step of a loop sends from a rank to another."""

    loop: str
    what: str
    source: int
    sink: int
    bytes: int


def report_chatty(
    plan: Plan,
    placement: Placement,
    linked: Linked,
    layouts: Mapping[str, Layout],
    moves: Sequence[MoveRow],
    scope: DefaultScope,
    report: Collector,
) -> None:
    """One warning for each loop and rank whose steps go beyond the rank's `link`."""
    sent = [*_moved(moves), *_streamed(plan, linked, layouts, scope)]
    for rank, place in enumerate(placement.ranks):
        for loop in dict.fromkeys(one.loop for one in sent):
            mine = [one for one in sent if one.loop == loop and rank in (one.source, one.sink)]
            total = sum(one.bytes for one in mine)
            if place.link and total > place.link:
                link = bytes_text(place.link)
                parts = "; ".join(
                    f"{one.what}: {bytes_text(one.bytes)} from {one.source} to {one.sink}" for one in mine
                )
                report.report(
                    rules.MC603,
                    f"a step of loop `{loop}` sends {bytes_text(total)} to and from rank {rank}, whose `link` is {link}",
                    placement.where("link", f"ranks.{rank}"),
                    notes=(parts,),
                    subject=f"{loop} {rank}",
                    help="place what they read and what makes them on one rank, or send less",
                )


def _moved(moves: Sequence[MoveRow]) -> Iterator[_Sent]:
    for move in moves:
        if move.per == "step":
            known = move.number if not move.factors or move.what.startswith("keys and values") else move.usual
            if known is not None:
                yield from (_Sent(move.where, move.what, move.source, sink, known) for sink in move.sinks)


def _streamed(plan: Plan, linked: Linked, layouts: Mapping[str, Layout], scope: DefaultScope) -> Iterator[_Sent]:
    """Items of streams that cross ranks."""
    items = {stream.name: usual_size(parse_type(stream.item), scope) for stream in plan.streams}
    ends = {stream.name: (stream.source, stream.sink) for stream in linked.streams}
    for layout in layouts.values():
        for loop, stream, count in _sends(layout.walk):
            source, sink = ends[stream]
            size = items[stream]
            if source != sink and size is not None:
                what = f"{count} items of {stream}" if count > 1 else f"an item of {stream}"
                yield _Sent(f"{layout.walk.name}.{loop.label}", what, source, sink, count * size)


def _sends(walk: Walk) -> Iterator[tuple[Loop, str, int]]:
    """Loops with the streams that they send on, and how often in one step; what stands in loops inside is theirs."""
    for loop in every_op(walk.body):
        if isinstance(loop, Loop):
            inner = {id(op) for other in every_op(loop.body) if isinstance(other, Loop) for op in every_op(other.body)}
            sent = [op.stream for op in every_op(loop.body) if isinstance(op, Send) and id(op) not in inner]
            yield from ((loop, stream, sent.count(stream)) for stream in dict.fromkeys(sent))
