"""What cannot fit the memory of a rank whose chip is known: MC207 for what one loop collects, MC503 for all that one request needs.

Takes a linked program, where its calls run, and the placement; reports findings. All of it is a floor, so what is reported does not fit:
only what has a size when a model is linked counts, with every param at its upper end and every context at its `max`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Collect, Invoke, Loop, Walk
from mstarc.ir.fold import FoldError, fold
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Tensor, Var
from mstarc.ir.visit import blocks_of, every_op
from mstarc.passes.form_regions import values_of
from mstarc.plan.chips import CHIPS, Chip, number_bytes
from mstarc.plan.closed_forms import NodeCosts
from mstarc.plan.cost_table import Cost
from mstarc.plan.evaluate import ConfigScope, parse_expr, parse_type
from mstarc.plan.layout import Layout
from mstarc.plan.model import Plan
from mstarc.plan.placement import Placement
from mstarc.plan.resident import Weights, held_by, weights_of
from mstarc.plan.sizes import BYTES, gigabytes, usual_size
from mstarc.plan.temporaries import largest_peak
from mstarc_runtime.abi.linked import Linked

USABLE = 0.95  # of a chip's memory: the rest is its driver's, its context's, and lost between allocations


def report_budgets(
    plan: Plan,
    linked: Linked,
    layouts: Mapping[str, Layout],
    placement: Placement,
    most: ConfigScope,
    report: Collector,
) -> None:
    """MC207, else MC503, of each rank that has a chip. most: has every param at its upper end."""
    for rank, place in enumerate(placement.ranks):
        chip = CHIPS.get(place.chip)
        if chip is not None:
            _Budget(plan, linked, layouts, placement, most, report).of(rank, chip)


class _Budget:
    def __init__(
        self,
        plan: Plan,
        linked: Linked,
        layouts: Mapping[str, Layout],
        placement: Placement,
        most: ConfigScope,
        report: Collector,
    ) -> None:
        self.plan, self.linked, self.layouts = plan, linked, layouts
        self.placement, self.most, self.report = placement, most, report

    def of(self, rank: int, chip: Chip) -> None:
        """The findings of one rank."""
        place = self.placement.ranks[rank]
        at, limit = self.placement.where("chip", f"ranks.{rank}"), USABLE * chip.memory
        has = f"`{chip.name}` has {gigabytes(limit)} ({USABLE:.0%} of {gigabytes(chip.memory)})"
        walks = [layout.walk for layout in self.layouts.values() if layout.home == rank]
        loops = [(size, said) for walk in walks for size, said in collected(walk, self.most)]
        fits = True
        for size, said in loops:
            if size > limit:
                fits = False
                message = f"{said} = {gigabytes(size)} on rank {rank}, and {has}"
                self.report.report(
                    rules.MC207, message, at, help="send the values on a stream, or lower the bound of the loop"
                )
        if not fits:
            return
        held = held_by(rank, self.calls(), self.linked, number_bytes(place.device))
        weights = self.weights(held.nodes, place.device)
        contexts, entries = self.contexts(held.contexts)
        streams, unsized = self.streams(rank)
        kept = sum(size for size, _ in loops)
        peak = largest_peak(iter(self.layouts.values()), rank, self.most)
        total = weights.bytes + contexts + kept + streams + (peak.bytes if peak is not None else 0)
        if total > limit:
            self.report.report(
                rules.MC503,
                f"rank {rank} needs at least {gigabytes(total)} with one request, and {has}",
                at,
                notes=(
                    f"weights {_counted(weights.bytes, weights.unknown, 'neither a checkpoint nor a config says it')}"
                    + (f": {'; '.join(weights.sources)}" if weights.sources else ""),
                    f"contexts at their max {gigabytes(contexts)}: {'; '.join(entries) or 'none'}",
                    f"collected {gigabytes(kept)}: {'; '.join(said for _, said in loops) or 'nothing'}",
                    f"streams {_counted(streams, unsized, 'the request says it')}, at their capacity",
                    f"values {gigabytes(peak.bytes)} at once: {peak.text}"
                    if peak is not None
                    else "values: none of a known size",
                ),
                help="place nodes on other ranks, or lower the `max` of a context",
            )

    def weights(self, nodes: Mapping[str, float], device: str) -> Weights:
        """From headers of checkpoints, or by closed forms of configs: a plan holds no `cost` table."""
        costs = {node.name: NodeCosts(node, self.linked, Cost(), {}) for node in self.linked.nodes}
        precisions = {node.name: node.precision for node in self.plan.nodes}
        return weights_of(nodes, costs, self.linked, lambda node: number_bytes(device, precisions[node]))

    def contexts(self, entries: Mapping[str, float]) -> tuple[float, tuple[str, ...]]:
        """Bytes of every context at its max. entries: bytes of one."""
        most = {context.name: context.max for context in self.linked.contexts}
        said = (f"{name} {most[name]} x {entry:.0f} B" for name, entry in sorted(entries.items()))
        return sum(entry * most[name] for name, entry in entries.items()), tuple(said)

    def streams(self, rank: int) -> tuple[float, list[str]]:
        """Bytes of full streams with both ends on the rank, and the streams whose size the request alone says."""
        total, unsized = 0.0, []
        ends = {stream.name for stream in self.linked.streams if {stream.source, stream.sink} == {rank}}
        for stream in self.plan.streams:
            if stream.name not in ends:
                continue
            item = usual_size(parse_type(stream.item), self.most)
            try:
                capacity = float(fold(parse_expr(stream.capacity), self.most))
            except FoldError:
                item = None
            if item is None:
                unsized.append(stream.name)
            else:
                total += item * capacity
        return total, unsized

    def calls(self) -> Iterator[tuple[Invoke, tuple[int, ...]]]:
        """Every call with its ranks."""
        for layout in self.layouts.values():
            for op in every_op(layout.walk.body):
                if isinstance(op, Invoke):
                    yield op, layout.at[id(op)]


def collected(walk: Walk, most: ConfigScope) -> Iterator[tuple[int, str]]:
    """Bytes that one run of each loop collects at most under each name, and how they come to be, where both are known."""
    types = {value.id: value.type for value in values_of(walk)}
    for loop in every_op(walk.body):
        if not isinstance(loop, Loop):
            continue
        for op in _collects(loop):
            kind = types.get(op.value.id) if isinstance(op.value, Var) else None
            if not isinstance(kind, Tensor):
                continue
            try:
                count = int(fold(loop.bound, most))
                dims = [int(fold(dim, most)) for dim in kind.dims]
            except FoldError:
                continue
            number = BYTES[kind.dtype]
            product = " x ".join(map(str, (count, *dims, number)))
            said = f"loop `{walk.name}.{loop.label}` collects `{op.name}`: {shown(loop.bound)} at most {count}, {product} B"
            yield count * prod(dims) * number, said


def _collects(loop: Loop) -> Iterator[Collect]:
    """The collects of a loop itself, without those of the loops in it; one for each name."""
    found: dict[str, Collect] = {}
    blocks = [loop.body]
    while blocks:
        for op in blocks.pop().ops:
            if isinstance(op, Collect):
                found.setdefault(op.name, op)
            elif not isinstance(op, Loop):
                blocks += blocks_of(op)
    yield from found.values()


def _counted(count: float, unknown: Collection[str], why: str) -> str:
    """A sum, and what is not in it."""
    if not unknown:
        return gigabytes(count)
    apart = f"not known of {', '.join(unknown)} ({why})"
    return f"at least {gigabytes(count)}, {apart}" if count else apart
