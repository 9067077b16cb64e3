"""What a placement asks for that the runtime cannot run yet, each as a finding that names the capability. Nothing falls back silently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Invoke
from mstarc.ir.visit import every_op
from mstarc.plan.layout import Layout, binds_of
from mstarc.plan.model import Plan
from mstarc.plan.moves import Move
from mstarc.plan.placement import Placement
from mstarc.plan.rules import MC607
from mstarc.plan.spec_lines import spec_source, trimmed
from mstarc.source import Span


def report_limits(
    plan: Plan, placement: Placement, layouts: Mapping[str, Layout], moves: list[Move], spec: Path, report: Collector
) -> None:
    """Every capability that is missing, once for each walk, context, sampler, stream, node or rank that needs it."""
    _hosts(placement, report)
    _groups(placement, layouts, report)
    for layout in layouts.values():
        if layout.split:
            _split(placement, layout, report)
    shared = [
        *(Shared("context", name, *used, _MOVING) for name, used in _contexts(moves, layouts).items()),
        *(Shared("sampler", name, *used, _DRAWING) for name, used in _samplers(plan, layouts).items()),
        *_streams(plan, layouts),
    ]
    for each in shared:
        _report_shared(each, plan, placement, layouts, spec, report)


@dataclass(frozen=True, slots=True)
class Shared:
    """What walks on several ranks share and cannot yet. ranks: all of them; walks: those that use it, with a rank each."""

    kind: str
    name: str
    ranks: set[int]
    walks: Mapping[str, int]
    capability: str
    how: str = "used on"


_MOVING = "moving keys and values across ranks"
_DRAWING = "one history of draws across ranks"
_ENDING = "a stream with ends on several ranks"


def _report_shared(
    each: Shared, plan: Plan, placement: Placement, layouts: Mapping[str, Layout], spec: Path, report: Collector
) -> None:
    """At the line of the placement that puts a walk off the rank of the first one, with the walks in the spec."""
    homes = {walk: each.walks[walk] for walk in layouts if walk in each.walks}
    first = next(iter(homes))
    other = next((walk for walk in homes if homes[walk] != homes[first]), first)
    source, lines = spec_source(plan, spec), {walk.name: walk.line for walk in plan.walks}
    told = dict.fromkeys((first, other)) if source is not None else {}
    report.report(
        MC607,
        f"{each.kind} `{each.name}` is {each.how} ranks {_and(each.ranks)}",
        _line_of(placement, other, _calls(layouts[other])),
        secondary=tuple(
            Label(trimmed(source, lines[walk]), f"on rank {homes[walk]}") for walk in told if source is not None
        ),
        subject=each.name,
        help=f"not built yet: {each.capability}; place the nodes of the walks that use it on one rank",
    )


def _and(ranks: set[int]) -> str:
    *most, last = map(str, sorted(ranks))
    return f"{', '.join(most)} and {last}" if most else last


def _hosts(placement: Placement, report: Collector) -> None:
    hosts = {number: rank.host for number, rank in enumerate(placement.ranks)}
    for number, host in hosts.items():
        if host != hosts[0]:
            message = f"rank {number} is on host `{host}` and rank 0 on host `{hosts[0]}`"
            at = placement.where("host", f"ranks.{number}")
            report.report(MC607, message, at, help="not built yet: ranks on several hosts; put all on one")
            return


def _groups(placement: Placement, layouts: Mapping[str, Layout], report: Collector) -> None:
    """Tensor parallel groups, one finding a node."""
    found = {
        op.node: layout.at[id(op)]
        for layout in layouts.values()
        for op in every_op(layout.walk.body)
        if isinstance(op, Invoke) and len(layout.at[id(op)]) > 1
    }
    for node, group in found.items():
        message = f"node `{node}` is on ranks {_and(set(group))} at once"
        report.report(MC607, message, placement.where(node), help="not built yet: tensor parallelism; give it one rank")


def _split(placement: Placement, layout: Layout, report: Collector) -> None:
    """MC605, at the most exact line of the placement that puts a call of the walk off its home."""
    walk = layout.walk.name
    calls = _calls(layout)
    places = dict.fromkeys(f"`{_name(placement, walk, op)}` on rank {layout.rank_of(op)}" for op in calls)
    firsts = {layout.rank_of(op) for op in calls} | {layout.home}
    report.report(
        rules.MC605,
        f"walk `{walk}` is split over ranks {_and(firsts)}: {', '.join(places)}",
        _line_of(placement, walk, calls),
        help=f"not built yet: a walk on several ranks; place every op of walk `{walk}` on one rank",
    )


def _calls(layout: Layout) -> list[Invoke]:
    return [op for op in every_op(layout.walk.body) if isinstance(op, Invoke)]


def _name(placement: Placement, walk: str, op: Invoke) -> str:
    """What the placement calls a call: the key that places it, else its node."""
    within = placement.walks.get(walk, {})
    for name in (*binds_of(op), f"{op.node}.{op.op}", op.node):
        if name in within or name in placement.place:
            return name
    return op.node


def _line_of(placement: Placement, walk: str, calls: list[Invoke]) -> Span:
    within = placement.walks.get(walk, {})
    for op in calls:
        for name in (*binds_of(op), f"{op.node}.{op.op}", op.node):
            if name in within:
                return placement.where(name, f"walks.{walk}")
    for op in calls:
        for name in (f"{op.node}.{op.op}", op.node):
            if name in placement.place:
                return placement.where(name)
    return placement.where(calls[0].node) if calls else placement.where("default", "")


def _contexts(moves: list[Move], layouts: Mapping[str, Layout]) -> dict[str, tuple[set[int], dict[str, int]]]:
    """Contexts whose keys and values move: the ranks that hold them, and of the walks that use one the rank of its first call on it."""
    ranks: dict[str, set[int]] = {}
    for move in moves:
        if move.kind == "kv":
            ranks.setdefault(move.what, set()).update({move.source, *move.sinks})
    found = {}
    for name, held in ranks.items():
        calls = {
            walk: layout.rank_of(op)
            for walk, layout in layouts.items()
            for op in reversed(_calls(layout))
            if name in (*op.writes, *op.reads)
        }
        found[name] = (held, calls)
    return found


def _samplers(plan: Plan, layouts: Mapping[str, Layout]) -> dict[str, tuple[set[int], dict[str, int]]]:
    """Samplers that look back at their own draws, and are used by walks that are at home on different ranks."""
    looking_back = {s.name for s in plan.samplers if {"repetition_penalty", "min_tokens"} & s.settings.keys() or s.over}
    homes: dict[str, dict[str, int]] = {}
    for walk in plan.walks:
        for name in walk.samplers:
            if name in looking_back:
                homes.setdefault(name, {})[walk.name] = layouts[walk.name].home
    return {name: (set(at.values()), at) for name, at in homes.items() if len(set(at.values())) > 1}


def _streams(plan: Plan, layouts: Mapping[str, Layout]) -> Iterator[Shared]:
    """Streams of which one end is on several ranks."""
    for stream in plan.streams:
        for end, how in (("sends", "sent on from"), ("takes", "taken from on")):
            homes = {walk.name: layouts[walk.name].home for walk in plan.walks if stream.name in getattr(walk, end)}
            if len(set(homes.values())) > 1:
                yield Shared("stream", stream.name, set(homes.values()), homes, _ENDING, how)
