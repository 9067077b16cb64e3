"""Draws a `Picture` as one HTML page that needs nothing else: no network, no script.

Three columns: requests, walks, contexts. Calls run from a request's row to a walk; streams leave a walk at its `send` and enter
one at its `for` or `next`, on the right of the walks; dashes join a walk's row to the context that it writes (arrow) or reads.
Lengths are CSS pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mstarc.graph import Card, Flow, Picture, Row, Store

CHAR, LINE, PAD, INDENT = 7.3, 18, 12, 16
GAP_CARDS, GAP_CALLS, HEAD, MARGIN = 28, 110, 26, 24
LANE = 26  # between the vertical parts of two streams

_STYLE = """
:root { --ink: #1d2733; --soft: #5b6b7c; --paper: #ffffff; --card: #f6f8fa; --line: #c9d3dd; --request: #3b5bdb;
  --walk: #22767c; --stream: #c2410c; --store: #7048a8; --emit: #2b8a3e; --sample: #a15c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe4ee; --soft: #93a4b6; --paper: #12171d; --card: #1b232c;
  --line: #364250; --request: #8ea4ff; --walk: #5cc2c9; --stream: #ff9b66; --store: #bb9af7; --emit: #7bd88f;
  --sample: #e5b567; } }
body { margin: 0; padding: 20px; background: var(--paper); color: var(--ink);
  font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 20px; margin: 0 0 2px; } p { margin: 0 0 14px; color: var(--soft); }
.wide { overflow-x: auto; }
svg text { font: 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); }
svg .title { font-weight: 600; fill: var(--paper); }
.card { fill: var(--card); stroke: var(--line); }
.head-request { fill: var(--request); } .head-walk { fill: var(--walk); } .head-store { fill: var(--store); }
svg .control, svg .soft { fill: var(--soft); } svg .emit { fill: var(--emit); } svg .sample { fill: var(--sample); }
svg .send, svg .take { fill: var(--stream); } svg .call { fill: var(--request); }
svg .arm { font-weight: 600; fill: var(--request); }
.block { stroke: var(--line); stroke-width: 1; }
.edge { fill: none; stroke-width: 1.4; } .edge:hover { stroke-width: 3.5; }
.calls { stroke: var(--request); opacity: .75; } .stream { stroke: var(--stream); stroke-width: 2.2; }
.touch { stroke: var(--store); stroke-dasharray: 4 3; opacity: .8; }
.label { fill: var(--paper); stroke: var(--stream); } svg .on-stream { fill: var(--stream); }
""".strip()


@dataclass(frozen=True, slots=True)
class _Box:
    """A card in its place."""

    card: Card
    x: float
    y: float
    width: float
    height: float

    def row(self, index: int) -> float:
        """The middle of a row."""
        return self.y + HEAD + PAD / 2 + (index + 0.5) * LINE

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class _Lane:
    """A stream in its place: its vertical part is at `x`, its label at `label`."""

    flow: Flow
    x: float
    start: float
    stop: float
    label: float


def to_html(seen: Picture) -> str:
    """The whole page."""
    requests = _column(seen.requests, MARGIN)
    walks = _column(seen.walks, _right(requests) + GAP_CALLS)
    lanes = _lanes(seen.flows, walks)
    labels = max((_text_width(_label(lane.flow)) for lane in lanes), default=0.0)
    edge = max([_right(walks), *(lane.x for lane in lanes)]) + (labels + 2 * PAD if lanes else 0)
    stores = _stores(seen, walks, edge + 90)
    width = max([_right([*requests, *walks, *stores]), edge]) + MARGIN
    height = max([box.bottom for box in (*requests, *walks, *stores)], default=0.0) + MARGIN
    shapes = [
        *_calls(requests, walks),
        *_touches(seen, walks, stores),
        *(piece for box in requests for piece in _card(box, "request")),
        *(piece for box in walks for piece in _card(box, "walk")),
        *(piece for box in stores for piece in _card(box, "store")),
        *(piece for lane in lanes for piece in _stream(lane, {box.card.name: box for box in walks})),
    ]
    return _page(seen, shapes, width, height)


# -------------------------------------------------------------------------------------------------------------- places


def _text_width(text: str) -> float:
    return len(text) * CHAR


def _right(boxes: Iterable[_Box]) -> float:
    return max((box.right for box in boxes), default=float(MARGIN))


def _size(card: Card) -> tuple[float, float]:
    widths = [_text_width(card.title), *(_text_width(r.text) + r.depth * INDENT for r in card.rows)]
    return max(widths) + 2 * PAD, HEAD + len(card.rows) * LINE + PAD


def _column(cards: Sequence[Card], x: float) -> list[_Box]:
    boxes: list[_Box] = []
    y = float(MARGIN)
    for card in cards:
        width, height = _size(card)
        boxes.append(_Box(card, x, y, width, height))
        y += height + GAP_CARDS
    return boxes


def _lanes(flows: Sequence[Flow], walks: Sequence[_Box]) -> list[_Lane]:
    """One lane a stream, so that no two vertical parts coincide; labels are pushed down until none covers another."""
    by_name = {box.card.name: box for box in walks}
    lanes: list[_Lane] = []
    for number, flow in enumerate(flows):
        source, sink = by_name[flow.source], by_name[flow.sink]
        start = source.row(source.card.touching("sends", flow.stream) or 0)
        stop = sink.row(sink.card.touching("takes", flow.stream) or 0)
        label = (start + stop) / 2
        for other in sorted(lane.label for lane in lanes):
            if abs(other - label) < LANE:
                label = other + LANE
        lanes.append(_Lane(flow, _right(walks) + 30 + number * LANE, start, stop, label))
    return lanes


def _stores(seen: Picture, walks: Sequence[_Box], x: float) -> list[_Box]:
    """Each context beside the first row that uses it, below the one above."""
    y = float(MARGIN)
    wanted = []
    for store in seen.stores:
        wanted.append((min(_uses(store, walks), default=y), store))
    boxes: list[_Box] = []
    for target, store in sorted(wanted, key=lambda pair: pair[0]):
        card = Card(store.name, store.name, (Row(0, store.text, "control"),))
        width, height = _size(card)
        top = max(y, target - height / 2)
        boxes.append(_Box(card, x, top, width, height))
        y = top + height + GAP_CARDS
    return boxes


def _uses(store: Store, walks: Sequence[_Box]) -> Iterator[float]:
    for box in walks:
        for field in ("writes", "reads"):
            index = box.card.touching(field, store.name)
            if index is not None:
                yield box.row(index)


# -------------------------------------------------------------------------------------------------------------- shapes


def _card(box: _Box, kind: str) -> Iterator[str]:
    x, y = box.x, box.y
    yield f'<rect class="card" x="{x:.1f}" y="{y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="7"/>'
    yield (
        f'<path class="head-{kind}" d="M{x:.1f} {y + HEAD:.1f} v{7 - HEAD} q0 -7 7 -7 h{box.width - 14:.1f} q7 0 7 7 '
        f'v{HEAD - 7} z"/>'
    )
    yield f'<text class="title" x="{x + PAD:.1f}" y="{y + HEAD / 2 + 4:.1f}">{escape(box.card.title)}</text>'
    yield from _guides(box)
    for index, row in enumerate(box.card.rows):
        left = x + PAD + row.depth * INDENT
        yield f'<text class="{row.kind}" x="{left:.1f}" y="{box.row(index) + 4:.1f}">{escape(row.text)}</text>'


def _guides(box: _Box) -> Iterator[str]:
    """A thin line on the left of what a block holds."""
    rows = box.card.rows
    for index, row in enumerate(rows):
        last = index
        while last + 1 < len(rows) and rows[last + 1].depth > row.depth:
            last += 1
        if last > index:
            x = box.x + PAD + row.depth * INDENT + 4
            top, bottom = box.row(index + 1) - LINE / 2, box.row(last) + LINE / 2 - 3
            yield f'<line class="block" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>'


def _calls(requests: Sequence[_Box], walks: Sequence[_Box]) -> Iterator[str]:
    by_name = {box.card.name: box for box in walks}
    for request in requests:
        for index, row in enumerate(request.card.rows):
            walk = by_name.get(row.calls)
            if walk is None:
                continue
            start = request.x + PAD + row.depth * INDENT + _text_width(row.text) + 6
            path = _curve(start, request.row(index), walk.x, walk.y + HEAD / 2)
            yield _edge("calls", path, f"{request.card.name} calls {walk.card.name}", "call")


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    bend = max(40.0, abs(x2 - x1) / 2)
    return f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"


def _touches(seen: Picture, walks: Sequence[_Box], stores: Sequence[_Box]) -> Iterator[str]:
    by_walk = {box.card.name: box for box in walks}
    by_store = {box.card.name: box for box in stores}
    for touch in seen.touches:
        walk, store = by_walk[touch.walk], by_store[touch.store]
        index = walk.card.touching("writes" if touch.writes else "reads", touch.store) or 0
        row = walk.card.rows[index]
        start = walk.x + PAD + row.depth * INDENT + _text_width(row.text) + 6
        path = _curve(start, walk.row(index), store.x, store.y + store.height / 2)
        verb = "writes" if touch.writes else "reads"
        yield _edge("touch", path, f"{touch.walk} {verb} {touch.store}", "touch" if touch.writes else "")


def _label(flow: Flow) -> str:
    return f"{flow.stream}: {flow.text}"


def _stream(lane: _Lane, walks: dict[str, _Box]) -> Iterator[str]:
    """Right from the `send`, along the lane, and left into the row that takes; the label sits in the middle of the lane."""
    source, sink = walks[lane.flow.source], walks[lane.flow.sink]
    x1, x2 = _row_end(source, "sends", lane.flow.stream), _row_end(sink, "takes", lane.flow.stream)
    down = 10 if lane.stop >= lane.start else -10
    if abs(lane.stop - lane.start) < 20:
        down = 0
    path = (
        f"M{x1:.1f} {lane.start:.1f} H{lane.x - 10:.1f} Q{lane.x:.1f} {lane.start:.1f} {lane.x:.1f} {lane.start + down:.1f} "
        f"V{lane.stop - down:.1f} Q{lane.x:.1f} {lane.stop:.1f} {lane.x - 10:.1f} {lane.stop:.1f} H{x2:.1f}"
    )
    label = _label(lane.flow)
    yield _edge("stream", path, f"{lane.flow.source} sends to {lane.flow.sink}: {label}", "stream")
    width = _text_width(label) + PAD
    yield f'<rect class="label" x="{lane.x - 6:.1f}" y="{lane.label - 11:.1f}" width="{width:.1f}" height="22" rx="5"/>'
    yield f'<text class="on-stream" x="{lane.x:.1f}" y="{lane.label + 4:.1f}">{escape(label)}</text>'


def _row_end(box: _Box, field: str, name: str) -> float:
    row = box.card.rows[box.card.touching(field, name) or 0]
    return box.x + PAD + row.depth * INDENT + _text_width(row.text) + 6


def _edge(kind: str, path: str, title: str, arrow: str) -> str:
    marker = f' marker-end="url(#arrow-{arrow})"' if arrow else ""
    return f'<path class="edge {kind}" d="{path}"{marker}><title>{escape(title)}</title></path>'


def _page(seen: Picture, shapes: Sequence[str], width: float, height: float) -> str:
    arrows = "".join(
        f'<marker id="arrow-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="var(--{colour})"/></marker>'
        for name, colour in (("call", "request"), ("stream", "stream"), ("touch", "store"))
    )
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    name = escape(seen.model)
    counts = (
        f"{_count(seen.requests, 'request')}, {_count(seen.walks, 'walk')}, {_count(seen.flows, 'stream')}, "
        f"{_count(seen.stores, 'context')}"
    )
    body = "\n".join(shapes)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{name}</h1>\n<p>{counts}. Blue: calls. Orange: streams, with "
        f"policy and capacity. Dashed: contexts, written (arrow) or read.</p>\n"
        f'<div class="wide">\n<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{name}">\n'
        f"<defs>{arrows}</defs>\n{body}\n</svg>\n</div>\n</body>\n</html>\n"
    )


def _count(items: Sequence[object], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"
