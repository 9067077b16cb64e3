"""The picture of a model: requests with their arms, walks with their operations, streams as edges, contexts as stores.

Takes a program; gives a `Picture`, and that as Mermaid or DOT. `graph_svg.py` draws the same picture as a page of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Program,
    Request,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    Value,
    Walk,
    When,
)
from mstarc.ir.declarations import Stream
from mstarc.ir.text import print_expr, print_type
from mstarc.ir.types import Expr, Lit, Struct, Type
from mstarc.ir.visit import entries_of, every_op, results_of
from mstarc.passes.form_regions import form_regions

Kind: TypeAlias = Literal["op", "sample", "host", "emit", "send", "take", "control", "call", "arm"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a card. `depth`: how many blocks are around it. The tuples name what the line touches.

    `region`: it and what is in it run for many requests at once.
    """

    depth: int
    text: str
    kind: Kind
    sends: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    calls: str = ""
    region: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """A walk or a request."""

    name: str
    title: str
    rows: tuple[Row, ...]

    def touching(self, field: str, name: str) -> int | None:
        """The first row whose `field` (sends, takes, writes, reads) has the name."""
        return next((i for i, row in enumerate(self.rows) if name in getattr(row, field)), None)


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream between two walks."""

    stream: str
    source: str
    sink: str
    text: str


@dataclass(frozen=True, slots=True)
class Store:
    """A context: name, and what it is."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Touch:
    """A walk uses a context; `writes`: it also changes it."""

    walk: str
    store: str
    writes: bool


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn of a model."""

    model: str
    requests: tuple[Card, ...]
    walks: tuple[Card, ...]
    flows: tuple[Flow, ...]
    stores: tuple[Store, ...]
    touches: tuple[Touch, ...]


def picture(program: Program) -> Picture:
    """What there is to draw."""
    requests = tuple(_request(r) for r in program.requests)
    walks = tuple(_walk(w, form_regions(w, program)) for w in program.walks)
    touches = []
    for walk in walks:
        for context in program.contexts:
            writes = walk.touching("writes", context.name) is not None
            if writes or walk.touching("reads", context.name) is not None:
                touches.append(Touch(walk.name, context.name, writes))
    stores = tuple(
        Store(c.name, f"on {c.cache}" + ("" if c.max is None else f", max {_spell(c.max)}")) for c in program.contexts
    )
    return Picture(program.model, requests, walks, tuple(_flows(program, walks)), stores, tuple(touches))


def _flows(program: Program, walks: tuple[Card, ...]) -> Iterator[Flow]:
    for stream in program.streams:
        for source in walks:
            if source.touching("sends", stream.name) is None:
                continue
            for sink in walks:
                if sink.touching("takes", stream.name) is not None:
                    yield Flow(stream.name, source.name, sink.name, policy_text(stream))


def policy_text(stream: Stream) -> str:
    """`phrase(cut, max = 64), at_end partial, capacity 128`."""
    shown = []
    for name, value in stream.args:
        bare = isinstance(value, Lit) and isinstance(value.value, str)
        shown.append(f"{value.value}" if bare and isinstance(value, Lit) else f"{name} = {_spell(value)}")
    parts = [f"{stream.policy}({', '.join(shown)})"]
    if stream.at_end:
        parts.append(f"at_end {stream.at_end}")
    return ", ".join([*parts, f"capacity {_spell(stream.capacity)}"])


# --------------------------------------------------------------------------------------------------------------- rows

_VALUE = re.compile(r"%(\d+)")
_SCOPE = re.compile(r"\b(?:config|param|let|dim|iter|member)\.(?=[A-Za-z_])")


def _spell(expr: Expr, names: Mapping[int, str] | None = None) -> str:
    """The expression as a reader of the spec knows it: names of values, no scopes."""
    text = _SCOPE.sub("", print_expr(expr))
    return _VALUE.sub(lambda m: (names or {}).get(int(m[1]), m[0]), text)


def _type(kind: Type) -> str:
    """The type as the spec writes it: no scopes, no brackets on a scalar, and of a declared type its name."""
    if isinstance(kind, Struct):
        return kind.name + ("?" if kind.optional else "")
    return _SCOPE.sub("", print_type(kind)).replace("[]", "")


def _walk(walk: Walk, regions: Container[str]) -> Card:
    """`regions`: the labels of its loops that are regions."""
    names = _names(walk.params, walk.body)
    params = ", ".join(f"{v.name}: {_type(v.type)}" for v in walk.params)
    outputs = ", ".join(output.name for output in walk.outputs)
    title = f"{walk.name}({params})" + (f" -> {outputs}" if outputs else "")
    rows = (replace(row, region=_loop(row) in regions) for row in _rows(walk.body, names, 0))
    return Card(walk.name, title, tuple(rows))


def _loop(row: Row) -> str:
    """The label of the loop that a line begins, or ""."""
    words = row.text.split()
    return words[1] if row.kind == "control" and words[0] == "loop" else ""


def _request(request: Request) -> Card:
    names = _names(request.inputs, request.body)
    inputs = ", ".join(f"{v.name}: {_type(v.type)}" for v in request.inputs)
    outputs = ", ".join(name + ("?" if optional else "") for name, optional in request.outputs)
    return Card(request.name, f"{request.name}({inputs}) -> {outputs}", tuple(_rows(request.body, names, 0)))


def _names(top: tuple[Value, ...], body: Block) -> dict[int, str]:
    """Value -> name, without the number that tells later bindings of one name apart."""
    values = list(top)
    for op in every_op(body):
        values += results_of(op)
        for _, bound in entries_of(op):
            values += bound
    every = {value.name for value in values}
    base = {name: re.sub(r"_\d+$", "", name) for name in every}
    return {int(v.id): base[v.name] if base[v.name] in every else v.name for v in values}


def _rows(block: Block, names: Mapping[int, str], depth: int) -> Iterator[Row]:
    for op in block.ops:
        row = _row(op, names, depth)
        if row is not None:
            yield row
        yield from _inner(op, names, depth)


def _inner(op: Op, names: Mapping[int, str], depth: int) -> Iterator[Row]:
    """The rows of the blocks that an operation holds."""
    match op:
        case Loop() | ForChunks() | When() | Par():
            yield from _rows(op.body, names, depth + 1)
        case If():
            yield from _rows(op.then, names, depth + 1)
            if op.other.ops:
                yield Row(depth, "else", "control")
                yield from _rows(op.other, names, depth + 1)
        case ForParts():
            for case in op.cases:
                inner = depth + 1 + bool(case.kind)
                if case.kind:
                    yield Row(depth + 1, f"case {case.kind}", "control")
                yield from _rows(case.body, names, inner)
        case Together():
            for arm in op.arms:
                yield Row(depth + 1, arm.label, "arm")
                yield from _rows(arm.body, names, depth + 2)


def _row(op: Op, names: Mapping[int, str], depth: int) -> Row | None:
    def spell(*exprs: Expr | None) -> str:
        return ", ".join("_" if e is None else _spell(e, names) for e in exprs)

    def bound(call: str) -> str:
        left = ", ".join("_" if v is None else names.get(v.id, v.name) for v in getattr(op, "results", ()))
        return f"{left} = {call}" if left.strip("_, ") else call

    match op:
        case Invoke():
            text = bound(f"{op.node}.{op.op}({spell(*op.args)})")
            return Row(depth, text, "op", writes=op.writes, reads=op.reads)
        case Extern():
            return Row(depth, bound(f"{op.name}({spell(*op.args)})"), "host")
        case CallWalk():
            return Row(depth, bound(f"{op.walk}({spell(*op.args)})"), "call", calls=op.walk)
        case Sample():
            return Row(depth, f"{names[op.result.id]} = sample({op.sampler}, {spell(op.logits)})", "sample")
        case Noise():
            return Row(depth, f"{names[op.result.id]} = noise", "sample")
        case Compute():
            return Row(depth, f"{names[op.result.id]} = {spell(op.expr)}", "op")
        case Emit():
            return Row(depth, f"emit {spell(op.value)} as {op.modality}", "emit")
        case Send():
            return Row(depth, f"send {spell(op.value)} -> {op.stream}", "send", sends=(op.stream,))
        case Next():
            return Row(depth, bound(f"next {', '.join(op.streams)}"), "take", takes=op.streams)
        case ForChunks():
            items = ", ".join(names[v.id] for v in op.items)
            return Row(depth, f"for {items} in {', '.join(op.streams)}", "take", takes=op.streams)
        case _:
            return _control(op, names, depth)


def _control(op: Op, names: Mapping[int, str], depth: int) -> Row | None:
    """Control, contexts and checks."""

    def say(expr: Expr) -> str:
        return _spell(expr, names)

    match op:
        case Loop():
            carried = ", ".join(names[c.inner.id] for c in op.carries)
            bound = f"max {say(op.bound)}" if op.kind == "max" else f"{say(op.bound)} times"
            return Row(depth, f"loop {op.label} {bound}" + (f" carry {carried}" if carried else ""), "control")
        case Stop():
            return Row(depth, f"stop when {say(op.cond)}", "control")
        case Collect():
            return Row(depth, f"collect {say(op.value)} as {op.name}", "control")
        case Fork():
            return Row(depth, f"fork {op.target} from {op.source}", "control", writes=(op.target,), reads=(op.source,))
        case Drop():
            return Row(depth, f"drop {', '.join(op.contexts)}", "control", writes=op.contexts)
        case When():
            return Row(depth, f"when {say(op.cond)}", "control")
        case If():
            return Row(depth, f"if {say(op.cond)}", "control")
        case ForParts():
            items = {names[case.item.id] for case in op.cases}
            return Row(depth, f"for {' | '.join(sorted(items))} in {say(op.over)}", "control")
        case Require():
            return Row(depth, f"require {op.text}", "control")
        case Together():
            return Row(depth, "together", "control")
        case Par():
            return Row(depth, "parallel", "control")
        case _:
            return None


# ------------------------------------------------------------------------------------------------------- Mermaid, DOT


def to_mermaid(seen: Picture) -> str:
    """A Mermaid flow chart."""
    lines = ["flowchart LR"]
    for request in seen.requests:
        lines.append(f"  request_{request.name}[{_mermaid(_block_text(request))}]")
    for walk in seen.walks:
        lines.append(f"  walk_{walk.name}[{_mermaid(_block_text(walk))}]")
    for store in seen.stores:
        lines.append(f"  context_{store.name}[({_mermaid(f'{store.name} {store.text}')})]")
    for caller, callee, arm in _calls(seen):
        label = f"|{_mermaid(arm)}|" if arm else ""
        lines.append(f"  request_{caller} -->{label} walk_{callee}")
    for flow in seen.flows:
        lines.append(f"  walk_{flow.source} ==>|{_mermaid(f'{flow.stream}: {flow.text}')}| walk_{flow.sink}")
    for touch in seen.touches:
        arrow = "-.->" if touch.writes else "-.-"
        lines.append(f"  walk_{touch.walk} {arrow} context_{touch.store}")
    return "\n".join(lines) + "\n"


def to_dot(seen: Picture) -> str:
    """A Graphviz digraph."""
    lines = [
        f"digraph {json.dumps(seen.model)} {{",
        "  rankdir = LR;",
        '  node [shape = box, fontname = "monospace", fontsize = 10];',
        '  edge [fontname = "monospace", fontsize = 9];',
    ]
    for prefix, cards in (("request", seen.requests), ("walk", seen.walks)):
        style = ", style = rounded" if prefix == "request" else ""
        lines += [f"  {prefix}_{card.name} [label = {_dot(_block_text(card))}{style}];" for card in cards]
    for store in seen.stores:
        text = json.dumps(f"{store.name}\n{store.text}", ensure_ascii=False)
        lines.append(f"  context_{store.name} [label = {text}, shape = cylinder];")
    for caller, callee, arm in _calls(seen):
        lines.append(f"  request_{caller} -> walk_{callee} [label = {json.dumps(arm)}];")
    for flow in seen.flows:
        label = json.dumps(f"{flow.stream}\n{flow.text}", ensure_ascii=False)
        lines.append(f"  walk_{flow.source} -> walk_{flow.sink} [label = {label}, style = bold, constraint = false];")
    for touch in seen.touches:
        direction = "" if touch.writes else ", arrowhead = none"
        lines.append(f"  walk_{touch.walk} -> context_{touch.store} [style = dashed{direction}];")
    return "\n".join([*lines, "}"]) + "\n"


def _calls(seen: Picture) -> Iterator[tuple[str, str, str]]:
    """(request, walk, arm it is called in or ""), each once."""
    found: dict[tuple[str, str, str], None] = {}
    for request in seen.requests:
        arm, level = "", -1
        for row in request.rows:
            if row.kind == "arm":
                arm, level = row.text, row.depth
            elif row.depth <= level:
                arm, level = "", -1
            if row.calls:
                found[request.name, row.calls, arm] = None
    return iter(found)


def _block_text(card: Card) -> str:
    mark = {True: "   [region]", False: ""}
    return "\n".join([card.title, *("  " * (row.depth + 1) + row.text + mark[row.region] for row in card.rows)])


_ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "|": "#124;"}


def _mermaid(text: str) -> str:
    """A quoted label: Mermaid reads entities written with `#`, and `<br/>` as a new line."""
    text = "".join(_ENTITIES.get(char, char) for char in text)
    spaced = re.sub(r"(?m)^ +", lambda m: "#nbsp;" * len(m[0]), text)
    return '"' + spaced.replace("\n", "<br/>") + '"'


def _dot(text: str) -> str:
    """A label whose lines are set flush left."""
    return "".join(json.dumps(line, ensure_ascii=False)[1:-1] + r"\l" for line in text.split("\n")).join('""')
