"""Linking: a plan and a placement to the numbers, names and routes that the runtime takes (`mstarc_runtime.abi.linked`).

`link` evaluates the plan's expressions with the config, puts every walk on a rank and every stream on a transport. What cannot be
placed, or needs something that is not built, is a finding with a code; nothing falls back silently.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mstarc.binding import nearest
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Rule
from mstarc.ir.core import Invoke
from mstarc.ir.fold import FoldError
from mstarc.ir.visit import every_op
from mstarc.plan.ahead import report_ahead
from mstarc.plan.budget import report_budgets
from mstarc.plan.chatty import report_chatty
from mstarc.plan.evaluate import ConfigScope, DefaultScope, MostScope, walks_of
from mstarc.plan.exits import report_exits
from mstarc.plan.faults import report_faults
from mstarc.plan.groups import report_groups
from mstarc.plan.layout import Layout, binds_of, layouts_of
from mstarc.plan.limits import report_limits
from mstarc.plan.link_dims import report_dims
from mstarc.plan.link_loops import link_loops
from mstarc.plan.link_ops import link_host_port, link_node, link_sampler, link_stream_args, stream_capacity
from mstarc.plan.model import Plan, SamplerPlan, WalkPlan
from mstarc.plan.move_rows import move_rows
from mstarc.plan.moves import moves_of
from mstarc.plan.placement import Placement
from mstarc.plan.rules import MC606, MC607
from mstarc.plan.spec_lines import declared
from mstarc.plan.verify import Fault, verify_linked, verify_moves, verify_plan
from mstarc.source import Span
from mstarc_runtime.abi.linked import (
    CacheLink,
    CheckpointLink,
    ContextLink,
    Linked,
    NodeLink,
    RankLink,
    SamplerLink,
    StreamLink,
    WalkLink,
)


def link(
    plan: Plan,
    placement: Placement,
    package: Path,
    report: Collector,
    overrides: Mapping[str, Any] | None = None,
    limits: Collector | None = None,
) -> Linked | None:
    """The linked program, or None after findings. overrides: `section.key` -> value of a checkpoint's config.

    limits: takes the findings about what the runtime cannot run yet, so that the rest can be looked at; `report` if left out.
    """
    linker = _Linker(plan, placement, package, report, overrides or {}, report if limits is None else limits)
    linked = linker.link()
    return None if report.failed else linked


class _Linker:
    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        package: Path,
        report: Collector,
        overrides: Mapping[str, Any],
        limits: Collector,
    ) -> None:
        self.plan = plan
        self.placement = placement
        self.package = package
        self.report = report
        self.limits = limits
        self.overrides = overrides
        self.scope = ConfigScope(plan, overrides)
        self.spec = os.path.normpath(package / plan.spec.path)

    def fault(self, rule: Rule, message: str, at: Span | None = None, help_text: str | None = None) -> None:
        """A finding at a place of the placement, else at the spec."""
        self.report.report(rule, message, at or Span(self.spec, 0, 0), help=help_text)

    def _report(self, faults: Iterable[Fault]) -> None:
        report_faults(faults, self.plan, self.package, Path(self.spec), self.report)

    def link(self) -> Linked | None:
        self._report(verify_plan(self.plan))
        if self.report.failed:
            return None
        self._check_names()
        report_dims(self.plan, Path(self.spec), self.overrides, self.report)
        for context in self.plan.contexts:
            if not context.max:
                self.fault(
                    rules.MC504,
                    f"context `{context.name}` has no `max`, so nothing bounds what a request may need of it",
                    declared(self.plan, Path(self.spec), "context", context.name),
                    help_text=f"say `context {context.name} on {context.cache} max N`",
                )
        if self.report.failed:
            return None
        layouts = layouts_of(self.plan, self.placement)
        report_groups(self.plan, self.placement, layouts, self.scope, self.report)
        report_ahead(self.plan, self.placement, Path(self.spec), self.report)
        report_exits(self.plan, self.placement, layouts, Path(self.spec), self.report)
        moves = moves_of(layouts)
        self._report(verify_moves(layouts, moves))
        if self.report.failed:
            return None
        report_limits(self.plan, self.placement, layouts, moves, Path(self.spec), self.limits)
        streams = self._streams({name: layout.home for name, layout in layouts.items()})
        try:
            linked = self._linked(layouts, streams)
            self._report(verify_linked(layouts, linked))
            if not self.report.failed:
                most = MostScope(self.plan, self.overrides)
                report_budgets(self.plan, linked, layouts, self.placement, most, self.limits)
                self._report_chatty(linked, layouts)
            return linked
        except FoldError as error:
            self.fault(MC607, str(error))
            return None

    def _report_chatty(self, linked: Linked, layouts: Mapping[str, Layout]) -> None:
        if any(rank.link for rank in self.placement.ranks):
            rows = move_rows(self.plan, self.placement, linked, self.overrides)
            scope = DefaultScope(self.plan, self.overrides)
            report_chatty(self.plan, self.placement, linked, layouts, rows, scope, self.report)

    def _linked(self, layouts: Mapping[str, Layout], streams: list[StreamLink]) -> Linked:
        plan, scope = self.plan, self.scope
        return Linked(
            abi=plan.abi,
            model=plan.model,
            package=str(self.package.resolve()),
            digest=plan.spec.digest,
            ranks=self._ranks(layouts),
            config=scope.all(),
            nodes=self._nodes(),
            caches=[
                CacheLink(
                    name=c.name,
                    layers=scope.number(c.layers),
                    heads=scope.number(c.heads),
                    kv_heads=scope.number(c.kv_heads),
                    head_dim=scope.number(c.head_dim),
                )
                for c in plan.caches
            ],
            contexts=[
                ContextLink(name=c.name, cache=c.cache, max=scope.number(c.max) if c.max else 0) for c in plan.contexts
            ],
            samplers=[self._sampler(sampler) for sampler in plan.samplers],
            streams=streams,
            walks=[_walk(walk, layouts[walk.name]) for walk in plan.walks],
            loops=link_loops(plan, self.placement, layouts, DefaultScope(plan, self.overrides)),
            externs=plan.binding.externs,
            extern_results={
                name: [link_host_port(port, scope, plan.parts) for port in ports]
                for name, ports in plan.extern_results.items()
            },
            checkpoints=[
                CheckpointLink(name=name, **given) for name, given in sorted(plan.binding.checkpoints.items())
            ],
            modalities={**plan.binding.modalities, **({"chat": plan.binding.chat} if plan.binding.chat else {})},
            placement=self.placement.name,
        )

    def _ranks(self, layouts: Mapping[str, Layout]) -> list[RankLink]:
        """A rank's label names the nodes that it runs calls of."""
        used = {
            (op.node, rank)
            for layout in layouts.values()
            for op in every_op(layout.walk.body)
            if isinstance(op, Invoke)
            for rank in layout.at[id(op)]
        }
        called = {node for node, _ in used}
        used |= {(n.name, self.placement.rank_of(n.name)) for n in self.plan.nodes if n.name not in called}
        return [
            RankLink(
                rank=number,
                device=rank.device,
                threads=rank.threads,
                label=", ".join(node.name for node in self.plan.nodes if (node.name, number) in used),
            )
            for number, rank in enumerate(self.placement.ranks)
        ]

    def _sampler(self, sampler: SamplerPlan) -> SamplerLink:
        try:
            return link_sampler(sampler, self.scope)
        except FoldError as error:
            at = declared(self.plan, Path(self.spec), "sampler", sampler.name)
            self.fault(MC607, f"sampler `{sampler.name}`: {error}", at)
            return SamplerLink(name=sampler.name, settings={})

    def _nodes(self) -> list[NodeLink]:
        binding = self.plan.binding
        found = []
        for node in self.plan.nodes:
            component = binding.components.get(node.name)
            if component is None:
                at = declared(self.plan, Path(self.spec), "node", node.name)
                self.fault(rules.MC903, f"node `{node.name}` is not bound to a component", at)
                continue
            config = dict(binding.config.get(node.name, {}))
            for path, value in self.overrides.items():
                section, _, key = path.partition(".")
                if section == node.name:
                    config[key] = value
            found.append(link_node(node, component, config, self.scope))
        return found

    # ----------------------------------------------------------------------------------------------------------- ranks

    def _check_names(self) -> None:
        """Every name of the placement is a node, an op, a walk, or a value that a call of its walk binds."""
        known = [node.name for node in self.plan.nodes]
        ops = [f"{node.name}.{op.name}" for node in self.plan.nodes for op in node.ops]
        bound = {
            walk.name: [name for op in every_op(walk.body) if isinstance(op, Invoke) for name in binds_of(op)]
            for walk in walks_of(self.plan)
        }
        self._check_table(self.placement.place, known, ops, "place")
        for walk, table in self.placement.walks.items():
            if walk in bound:
                self._check_table(table, [*known, *bound[walk]], ops, f"walks.{walk}")
            else:
                self._unknown("walk", walk, list(bound), self.placement.where(f"walks.{walk}", ""))
        for node in known:
            if self.placement.partial and node not in self.placement.place:
                message = f"node `{node}` is on no rank: [place] does not name it, and there is no `default`"
                self.fault(rules.MC601, message, self.placement.where("place", ""), f"say `{node} = 0` under [place]")

        loops = [f"{walk.name}.{loop.label}" for walk in self.plan.walks for loop in walk.loops]
        for name in self.placement.ahead:
            if name not in loops:
                self._unknown("loop", name, loops, self.placement.where(name, "ahead"))

    def _check_table(self, table: Iterable[str], names: list[str], ops: list[str], title: str) -> None:
        for name in table:
            if name not in names and name not in ops:
                kind, known = ("op", ops) if "." in name else ("node", names)
                self._unknown(kind, name, known, self.placement.where(name, title))

    def _unknown(self, kind: str, name: str, known: list[str], at: Span) -> None:
        near = nearest(name, known)
        help_text = f"did you mean `{near}`?" if near else f"{kind}s: " + ", ".join(f"`{name}`" for name in known)
        self.fault(
            MC606, f"the placement names {kind} `{name}`, which model `{self.plan.model}` does not have", at, help_text
        )

    # --------------------------------------------------------------------------------------------------------- streams

    def _streams(self, ranks: Mapping[str, int]) -> list[StreamLink]:
        found = []
        for stream in self.plan.streams:
            sources = {ranks[walk.name] for walk in self.plan.walks if stream.name in walk.sends}
            sinks = {ranks[walk.name] for walk in self.plan.walks if stream.name in walk.takes}
            source = min(sources, default=min(sinks, default=0))
            sink = min(sinks, default=source)
            try:
                args, capacity = link_stream_args(stream, self.scope), stream_capacity(stream, self.scope)
            except FoldError as error:
                at = declared(self.plan, Path(self.spec), "stream", stream.name)
                self.fault(MC607, f"stream `{stream.name}`: {error}", at)
                continue
            found.append(
                StreamLink(
                    name=stream.name,
                    policy=stream.policy,
                    args=args,
                    capacity=capacity,
                    source=source,
                    sink=sink,
                    at_end=stream.at_end,
                    after_end_empty=stream.after_end_empty,
                    where=stream.where,
                    transport="slot" if source == sink else "shm",
                )
            )
        return found


def _walk(walk: WalkPlan, layout: Layout) -> WalkLink:
    return WalkLink(
        name=walk.name,
        rank=layout.home,
        ranks=list(layout.ranks) if len(layout.ranks) > 1 else [],
        nodes=walk.nodes,
        sends=walk.sends,
        takes=walk.takes,
        contexts=walk.contexts,
        externs=walk.externs,
    )
