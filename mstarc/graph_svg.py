"""Draws a `Picture` as one SVG, or one HTML page around it, that needs nothing else: no network, no other file.

Three columns: requests, walks, contexts. Calls run from a request's row to a walk; streams leave a walk at its `send` and enter
one at its `for` or `next`, on the right of the walks; dashes join a walk's row to the context that it writes (arrow) or reads; a
tint lies behind the loops that are regions. A script moves and scales the picture; without it the page scrolls. Lengths are CSS
pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from mstarc.graph import Card, Flow, Picture, Row, Store

CHAR, LINE, PAD, INDENT = 7.3, 18, 12, 16
GAP_CARDS, GAP_CALLS, HEAD, MARGIN = 28, 110, 26, 24
REGION = 70  # the word at the end of the first line of a region
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
.wide { overflow: auto; }
.moving { height: calc(100vh - 150px); min-height: 300px; overflow: hidden; border: 1px solid var(--line);
  border-radius: 7px; }
.moving svg { display: block; width: 100%; height: 100%; cursor: grab; touch-action: none; user-select: none; }
.moving svg:active { cursor: grabbing; }
.tools { display: none; gap: 6px; margin: 0 0 8px; } .tools button { min-width: 34px; padding: 3px 9px; font: inherit;
  color: var(--ink); background: var(--card); border: 1px solid var(--line); border-radius: 5px; cursor: pointer; }
svg text { font: 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: var(--ink); }
svg .title { font-weight: 600; fill: var(--paper); }
.card { fill: var(--card); stroke: var(--line); }
.head-request { fill: var(--request); } .head-walk { fill: var(--walk); } .head-store { fill: var(--store); }
svg .control, svg .soft { fill: var(--soft); } svg .emit { fill: var(--emit); } svg .sample { fill: var(--sample); }
svg .send, svg .take { fill: var(--stream); } svg .call { fill: var(--request); }
svg .arm { font-weight: 600; fill: var(--request); }
.block { stroke: var(--line); stroke-width: 1; }
.region { fill: var(--walk); opacity: .13; } svg .of-region { fill: var(--walk); font-size: 10px; }
.edge { fill: none; stroke-width: 1.4; } .edge:hover { stroke-width: 3.5; }
.calls { stroke: var(--request); opacity: .75; } .stream { stroke: var(--stream); stroke-width: 2.2; }
.leader { stroke: var(--stream); stroke-dasharray: 2 3; } .knot { fill: var(--stream); }
.touch { stroke: var(--store); stroke-dasharray: 4 3; opacity: .8; }
.label { fill: var(--paper); stroke: var(--stream); } svg .on-stream { fill: var(--stream); }
""".strip()

_TOOLS = """
<div class="tools"><button id="out" title="smaller (-)">-</button><button id="in" title="larger (+)">+</button>
<button id="fit" title="everything (0)">all</button><button id="one" title="its own size (1)">1:1</button></div>
""".strip()

# Drag or two fingers move it, the wheel scales it around the pointer, and so do the buttons and + - 0 1 around the middle.
_SCRIPT = """
const svg = document.querySelector("svg"), frame = svg.parentElement;
const whole = svg.getAttribute("viewBox").split(" ").map(Number);
let [x, y, scale] = [0, 0, 1];                       // the picture's point at the top left, pixels for each of its units
frame.classList.replace("wide", "moving");
document.querySelector(".tools").style.display = "flex";
const show = () => svg.setAttribute("viewBox",
  [x, y, frame.clientWidth / scale, frame.clientHeight / scale].join(" "));
const at = event => { const box = svg.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
function zoom(factor, [px, py] = [frame.clientWidth / 2, frame.clientHeight / 2]) {
  const next = Math.min(8, Math.max(0.05, scale * factor));
  x += px / scale - px / next; y += py / scale - py / next; scale = next; show();
}
function put(next) {
  scale = next;
  x = Math.min(0, (whole[2] - frame.clientWidth / scale) / 2); y = 0;
  show();
}
const fit = () => put(Math.min(frame.clientWidth / whole[2], frame.clientHeight / whole[3], 1.5));
frame.addEventListener("wheel", event => { event.preventDefault(); zoom(Math.exp(-event.deltaY / 500), at(event)); },
  { passive: false });
const held = new Map();
svg.addEventListener("pointerdown", event => { held.set(event.pointerId, at(event)); svg.setPointerCapture(event.pointerId); });
svg.addEventListener("pointermove", event => {
  const from = held.get(event.pointerId), to = at(event);
  if (!from) return;
  held.set(event.pointerId, to);
  const other = [...held.entries()].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const far = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    zoom(far(to, other) / Math.max(1, far(from, other)), other);
  } else { x -= (to[0] - from[0]) / scale; y -= (to[1] - from[1]) / scale; show(); }
});
for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, event => held.delete(event.pointerId));
const acts = { out: () => zoom(0.8), in: () => zoom(1.25), fit, one: () => put(1) };
for (const [id, act] of Object.entries(acts)) document.getElementById(id).addEventListener("click", act);
const keys = { "-": "out", "+": "in", "=": "in", 0: "fit", 1: "one" };
addEventListener("keydown", event => { if (keys[event.key] && !event.ctrlKey && !event.metaKey) acts[keys[event.key]](); });
addEventListener("resize", fit);
fit();
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
    """A stream in its place: the vertical part of all its flows is at `x`, its label at (`beside`, `label`), joined to it at `knot`."""

    flows: tuple[Flow, ...]
    x: float
    beside: float
    label: float
    knot: float


def to_html(seen: Picture) -> str:
    """The whole page."""
    return _page(seen, *_drawn(seen))


def to_svg(seen: Picture) -> str:
    """The picture alone, with its colours: for a README."""
    head = f'<style>\n{_STYLE}\n</style>\n<rect width="100%" height="100%" fill="var(--paper)"/>\n'
    return _svg(seen, *_drawn(seen), head)


def _drawn(seen: Picture) -> tuple[list[str], float, float]:
    """(shapes, width, height)."""
    requests = _column(seen.requests, MARGIN)
    walks = _column(seen.walks, _right(requests) + GAP_CALLS)
    lanes = _lanes(seen.flows, walks)
    edge = max([_right(walks), *(lane.beside + _text_width(_label(lane.flows[0])) + PAD for lane in lanes)])
    stores = _stores(seen, walks, edge + 90)
    width = max([_right([*requests, *walks, *stores]), edge]) + MARGIN
    height = max([box.bottom for box in (*requests, *walks, *stores)], default=0.0) + MARGIN
    shapes = [
        *(piece for box in requests for piece in _card(box, "request")),
        *(piece for box in walks for piece in _card(box, "walk")),
        *(piece for box in stores for piece in _card(box, "store")),
        *_calls(requests, walks),
        *_touches(seen, walks, stores),
        *(_flow(flow, lane.x, walks) for lane in lanes for flow in lane.flows),
        *(piece for lane in lanes for piece in _lane_label(lane)),
    ]
    return shapes, width, height


# -------------------------------------------------------------------------------------------------------------- places


def _text_width(text: str) -> float:
    return len(text) * CHAR


def _row_width(row: Row) -> float:
    return row.depth * INDENT + _text_width(row.text) + (REGION if row.region else 0)


def _right(boxes: Iterable[_Box]) -> float:
    return max((box.right for box in boxes), default=float(MARGIN))


def _size(card: Card) -> tuple[float, float]:
    widths = [_text_width(card.title), *(_row_width(row) for row in card.rows)]
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
    streams: dict[str, list[Flow]] = {}
    for flow in flows:
        streams.setdefault(flow.stream, []).append(flow)
    first = _right(walks) + 30
    last = first + (len(streams) - 1) * LANE
    lanes: list[_Lane] = []
    for number, group in enumerate(streams.values()):
        ends = [end[1] for flow in group for end in _ends(flow, walks)]
        label = (min(ends) + max(ends)) / 2
        for other in sorted(lane.label for lane in lanes):
            if abs(other - label) < LANE:
                label = other + LANE
        beside = last if len(streams) == 1 else last + 30
        knot = min(max(label, min(ends)), max(ends))
        lanes.append(_Lane(tuple(group), first + number * LANE, beside, label, knot))
    return lanes


def _ends(flow: Flow, walks: Sequence[_Box]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Where it leaves the row that sends and where it enters the row that takes."""
    by_name = {box.card.name: box for box in walks}
    found = []
    for name, field in ((flow.source, "sends"), (flow.sink, "takes")):
        box = by_name[name]
        index = box.card.touching(field, flow.stream) or 0
        found.append((box.x + PAD + _row_width(box.card.rows[index]) + 6, box.row(index)))
    return found[0], found[1]


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
    yield from _regions(box)
    yield from _guides(box)
    for index, row in enumerate(box.card.rows):
        left = x + PAD + row.depth * INDENT
        yield f'<text class="{row.kind}" x="{left:.1f}" y="{box.row(index) + 4:.1f}">{escape(row.text)}</text>'


def _regions(box: _Box) -> Iterator[str]:
    """A tint behind what is one."""
    for index, row in enumerate(box.card.rows):
        if row.region:
            x, right = box.x + PAD + row.depth * INDENT - 5, box.right - 5
            top, bottom = box.row(index) - LINE / 2, box.row(_last(box, index)) + LINE / 2
            yield f'<path class="region" d="M{x:.1f} {top:.1f} H{right:.1f} V{bottom:.1f} H{x:.1f} z"/>'
            word = f'x="{right - 5:.1f}" y="{box.row(index) + 4:.1f}" text-anchor="end"'
            yield f'<text class="of-region" {word}>region<title>runs for many requests at once</title></text>'


def _last(box: _Box, index: int) -> int:
    """The last row of what a row begins."""
    rows = box.card.rows
    last = index
    while last + 1 < len(rows) and rows[last + 1].depth > rows[index].depth:
        last += 1
    return last


def _guides(box: _Box) -> Iterator[str]:
    """A thin line on the left of what a block holds."""
    for index, row in enumerate(box.card.rows):
        last = _last(box, index)
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
            start = request.x + PAD + _row_width(row) + 6
            path = _curve(start, request.row(index), _right(requests), walk.x, walk.y + HEAD / 2)
            yield _edge("calls", path, f"{request.card.name} calls {walk.card.name}", "call")


def _curve(x0: float, y1: float, x1: float, x2: float, y2: float) -> str:
    """Straight to x1, where its column ends, so that it crosses no card, and then to (x2, y2)."""
    bend = max(40.0, abs(x2 - x1) / 2)
    return f"M{x0:.1f} {y1:.1f} H{x1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"


def _touches(seen: Picture, walks: Sequence[_Box], stores: Sequence[_Box]) -> Iterator[str]:
    by_walk = {box.card.name: box for box in walks}
    by_store = {box.card.name: box for box in stores}
    for touch in seen.touches:
        walk, store = by_walk[touch.walk], by_store[touch.store]
        index = walk.card.touching("writes" if touch.writes else "reads", touch.store) or 0
        row = walk.card.rows[index]
        start = walk.x + PAD + _row_width(row) + 6
        path = _curve(start, walk.row(index), _right(walks), store.x, store.y + store.height / 2)
        verb = "writes" if touch.writes else "reads"
        yield _edge("touch", path, f"{touch.walk} {verb} {touch.store}", "touch" if touch.writes else "")


def _label(flow: Flow) -> str:
    return f"{flow.stream}: {flow.text}"


def _flow(flow: Flow, x: float, walks: Sequence[_Box]) -> str:
    """Right from the `send`, along the lane, and left into the row that takes."""
    (x1, start), (x2, stop) = _ends(flow, walks)
    down = 0 if abs(stop - start) < 20 else 10 if stop > start else -10
    path = (
        f"M{x1:.1f} {start:.1f} H{x - 10:.1f} Q{x:.1f} {start:.1f} {x:.1f} {start + down:.1f} "
        f"V{stop - down:.1f} Q{x:.1f} {stop:.1f} {x - 10:.1f} {stop:.1f} H{x2:.1f}"
    )
    return _edge("stream", path, f"{flow.source} sends to {flow.sink}: {_label(flow)}", "stream")


def _lane_label(lane: _Lane) -> Iterator[str]:
    """What the stream is, right of all lanes, with a line from its own."""
    label, x, y = _label(lane.flows[0]), lane.beside, lane.label
    if x > lane.x:
        yield f'<path class="edge leader" d="M{lane.x:.1f} {lane.knot:.1f} L{x - 6:.1f} {y:.1f}"/>'
        yield f'<circle class="knot" cx="{lane.x:.1f}" cy="{lane.knot:.1f}" r="3.5"/>'
    width = _text_width(label) + PAD
    yield f'<rect class="label" x="{x - 6:.1f}" y="{y - 11:.1f}" width="{width:.1f}" height="22" rx="5"/>'
    yield f'<text class="on-stream" x="{x:.1f}" y="{y + 4:.1f}">{escape(label)}</text>'


def _edge(kind: str, path: str, title: str, arrow: str) -> str:
    marker = f' marker-end="url(#arrow-{arrow})"' if arrow else ""
    return f'<path class="edge {kind}" d="{path}"{marker}><title>{escape(title)}</title></path>'


def _svg(seen: Picture, shapes: Sequence[str], width: float, height: float, head: str = "") -> str:
    """The picture itself. `head`: what a picture that stands alone has before its shapes."""
    arrows = "".join(
        f'<marker id="arrow-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" '
        f'markerUnits="userSpaceOnUse" orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="var(--{colour})"/></marker>'
        for name, colour in (("call", "request"), ("stream", "stream"), ("touch", "store"))
    )
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(seen.model)}">\n'
        f"{head}<defs>{arrows}</defs>\n{body}\n</svg>\n"
    )


def _page(seen: Picture, shapes: Sequence[str], width: float, height: float) -> str:
    name = escape(seen.model)
    counts = (
        f"{_count(seen.requests, 'request')}, {_count(seen.walks, 'walk')}, {_count({flow.stream for flow in seen.flows}, 'stream')}, "
        f"{_count(seen.stores, 'context')}"
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{name}</h1>\n<p>{counts}. Blue: calls. Orange: streams, with "
        f"policy and capacity. Dashed: contexts, written (arrow) or read. Tinted: loops that run for many requests at once.</p>\n"
        f'{_TOOLS}\n<div class="wide">\n{_svg(seen, shapes, width, height)}</div>\n<script>\n{_SCRIPT}\n</script>\n</body>\n</html>\n'
    )


def _count(items: Collection[object], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"
