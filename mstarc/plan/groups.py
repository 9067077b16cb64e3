"""MC604 overlapping-groups: which ranks may run one node together. Takes layouts; reports findings at lines of the placement.

A group is the ranks of a tensor parallel node. They sum up what each of them made, several times a layer, and such a sum waits for all of
the group. If two groups share some ranks and not all, no rank sees every sum of both, and two ranks can wait for each other's. A group
takes equal shares of the heads of its cache, and of its keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Invoke
from mstarc.ir.fold import FoldError
from mstarc.ir.visit import every_op
from mstarc.plan.evaluate import ConfigScope
from mstarc.plan.layout import Layout, binds_of
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement, Ranks
from mstarc.source import Span


def report_groups(
    plan: Plan, placement: Placement, layouts: Mapping[str, Layout], scope: ConfigScope, report: Collector
) -> None:
    """One finding for each two groups that overlap, and for each group that does not divide what it shares."""
    found: dict[frozenset[int], tuple[str, Ranks, Span]] = {}
    divided: set[tuple[str, int]] = set()
    for layout in layouts.values():
        for op in every_op(layout.walk.body):
            if not isinstance(op, Invoke) or len(group := layout.at[id(op)]) == 1:
                continue
            at = placement.line_of(op.node, op.op, layout.walk.name, binds_of(op))
            found.setdefault(frozenset(group), (op.node, group, at))
            if (op.node, len(group)) not in divided:
                divided.add((op.node, len(group)))
                _divides(plan, op.node, len(group), at, scope, report)
    groups = list(found.items())
    for k, (ranks, (node, group, at)) in enumerate(groups):
        for others, (other, other_group, other_at) in groups[:k]:
            if ranks & others:
                report.report(
                    rules.MC604,
                    f"ranks {_listed(group)} of `{node}` and ranks {_listed(other_group)} of `{other}` share "
                    f"{_listed(tuple(sorted(ranks & others)))}, and are not the same",
                    at,
                    secondary=(Label(other_at, f"the ranks of `{other}`"),),
                    notes=(
                        "a rank of both can wait in a sum of one group while the others wait for it in the other's",
                    ),
                    help="give both the same ranks, or ranks of their own",
                )


_OFFERED = 1024  # ranks of a group at the most in a help; a checkpoint may claim any number of heads


def _divides(plan: Plan, name: str, size: int, at: Span, scope: ConfigScope, report: Collector) -> None:
    node = next(node for node in plan.nodes if node.name == name)
    cache = next((cache for cache in plan.caches if cache.name == node.cache), None)
    if cache is None:
        return
    for text, what in ((cache.heads, "heads"), (cache.kv_heads, "heads of keys and values")):
        try:
            count = scope.number(text)
        except FoldError:
            continue
        if count % size:
            message = f"{size} ranks of `{name}` cannot share the {count} {what} of cache `{cache.name}` equally"
            sizes = [n for n in range(2, min(count, _OFFERED) + 1) if count % n == 0]
            help_text = f"{count} divide into {', '.join(map(str, sizes))}" if sizes else "give the node one rank"
            report.report(rules.MC604, message, at, subject=name, help=help_text)
            return


def _listed(ranks: Ranks) -> str:
    *most, last = map(str, ranks)
    return f"{', '.join(most)} and {last}" if most else last
