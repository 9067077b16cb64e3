"""What a placement asks for that the runtime cannot run yet, each as a finding that names the capability. Nothing falls back silently."""

from __future__ import annotations

from collections.abc import Mapping

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Invoke
from mstarc.ir.visit import every_op
from mstarc.plan.layout import Layout, binds_of
from mstarc.plan.model import Plan
from mstarc.plan.moves import Move
from mstarc.plan.placement import Placement
from mstarc.plan.rules import MC607
from mstarc.source import Span


def report_limits(
    plan: Plan, placement: Placement, layouts: Mapping[str, Layout], moves: list[Move], spec: str, report: Collector
) -> None:
    """Every capability that is missing, once for each walk, context, sampler, node or rank that needs it."""
    whole = Span(spec, 0, 0)
    _hosts(placement, report)
    _groups(placement, layouts, report)
    for layout in layouts.values():
        if layout.split:
            _split(placement, layout, report)
    for kind, used in (("context", _contexts(moves)), ("sampler", _samplers(plan, layouts))):
        capability = "moving keys and values" if kind == "context" else "one history of draws"
        for name, ranks in used.items():
            report.report(
                MC607,
                f"{kind} `{name}` is used on ranks {_and(ranks)}",
                whole,
                subject=name,
                help=f"not built yet: {capability} across ranks; place the nodes of the walks that use it on one rank",
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
    calls = [op for op in every_op(layout.walk.body) if isinstance(op, Invoke)]
    places = dict.fromkeys(f"`{_name(placement, walk, op)}` on rank {layout.rank_of(op)}" for op in calls)
    firsts = {layout.rank_of(op) for op in calls} | {layout.home}
    report.report(
        rules.MC605,
        f"walk `{walk}` is split over ranks {_and(firsts)}: {', '.join(places)}",
        _line_of(placement, walk, calls),
        help=f"not built yet: a walk on several ranks; place every op of walk `{walk}` on one rank",
    )


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
    return placement.where(calls[0].node)


def _contexts(moves: list[Move]) -> dict[str, set[int]]:
    """Contexts whose keys and values move, with the ranks that hold them."""
    found: dict[str, set[int]] = {}
    for move in moves:
        if move.kind == "kv":
            found.setdefault(move.what, set()).update({move.source, *move.sinks})
    return found


def _samplers(plan: Plan, layouts: Mapping[str, Layout]) -> dict[str, set[int]]:
    """Samplers that look back at their own draws, and are used by walks that are at home on different ranks."""
    looking_back = {s.name for s in plan.samplers if {"repetition_penalty", "min_tokens"} & s.settings.keys() or s.over}
    found: dict[str, set[int]] = {}
    for walk in plan.walks:
        for name in walk.samplers:
            if name in looking_back:
                found.setdefault(name, set()).add(layouts[walk.name].home)
    return {name: homes for name, homes in found.items() if len(homes) > 1}
