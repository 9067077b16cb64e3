"""Linking: a plan and a placement to the numbers, names and routes that the runtime takes (`mstarc_runtime.abi.linked`).

`link` evaluates the plan's expressions with the config, puts every walk on a rank and every stream on a transport. What cannot be
placed, or needs something that is not built, is a finding with a code; nothing falls back silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mstarc.binding import nearest
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Rule
from mstarc.ir.fold import FoldError
from mstarc.plan.evaluate import ConfigScope
from mstarc.plan.link_loops import link_loops
from mstarc.plan.link_ops import link_node, link_sampler, link_stream_args, stream_capacity
from mstarc.plan.model import Plan, WalkPlan
from mstarc.plan.placement import Placement
from mstarc.plan.rules import MC606, MC607
from mstarc.source import Span
from mstarc_runtime.abi.linked import (
    CacheLink,
    CheckpointLink,
    ContextLink,
    Linked,
    NodeLink,
    RankLink,
    StreamLink,
    WalkLink,
)


def link(
    plan: Plan,
    placement: Placement,
    package: Path,
    report: Collector,
    overrides: Mapping[str, Any] | None = None,
) -> Linked | None:
    """The linked program, or None after findings. overrides: `section.key` -> value of a checkpoint's config."""
    linker = _Linker(plan, placement, package, report, overrides or {})
    linked = linker.link()
    return None if report.failed else linked


class _Linker:
    def __init__(
        self, plan: Plan, placement: Placement, package: Path, report: Collector, overrides: Mapping[str, Any]
    ) -> None:
        self.plan = plan
        self.placement = placement
        self.package = package
        self.report = report
        self.overrides = overrides
        self.scope = ConfigScope(plan, overrides)
        self.spec = str(package / plan.spec.path)

    def fault(self, rule: Rule, message: str, at: Span | None = None, help_text: str | None = None) -> None:
        """A finding at a place of the placement, else at the spec."""
        self.report.report(rule, message, at or Span(self.spec, 0, 0), help=help_text)

    def link(self) -> Linked | None:
        self._check_names()
        for context in self.plan.contexts:
            if not context.max:
                self.fault(
                    rules.MC504,
                    f"context `{context.name}` has no `max`, so nothing bounds what a request may need of it",
                    help_text=f"say `context {context.name} on {context.cache} max N`",
                )
        ranks = self._walk_ranks()
        if self.report.failed:
            return None
        self._check_shared(ranks)
        streams = self._streams(ranks)
        try:
            return self._linked(ranks, streams)
        except FoldError as error:
            self.fault(MC607, str(error))
            return None

    def _linked(self, ranks: Mapping[str, int], streams: list[StreamLink]) -> Linked:
        plan, scope = self.plan, self.scope
        return Linked(
            abi=plan.abi,
            model=plan.model,
            package=str(self.package.resolve()),
            digest=plan.spec.digest,
            ranks=self._ranks(),
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
            samplers=[link_sampler(s, scope) for s in plan.samplers],
            streams=streams,
            walks=[_walk(walk, ranks[walk.name]) for walk in plan.walks],
            loops=link_loops(plan, ranks, scope),
            externs=plan.binding.externs,
            checkpoints=[
                CheckpointLink(name=name, **given) for name, given in sorted(plan.binding.checkpoints.items())
            ],
            modalities={**plan.binding.modalities, **({"chat": plan.binding.chat} if plan.binding.chat else {})},
            placement=self.placement.name,
        )

    def _ranks(self) -> list[RankLink]:
        nodes = [node.name for node in self.plan.nodes]
        return [
            RankLink(
                rank=number,
                device=rank.device,
                threads=rank.threads,
                label=", ".join(node for node in nodes if self.placement.rank_of(node) == number),
            )
            for number, rank in enumerate(self.placement.ranks)
        ]

    def _nodes(self) -> list[NodeLink]:
        binding = self.plan.binding
        found = []
        for node in self.plan.nodes:
            component = binding.components.get(node.name)
            if component is None:
                self.fault(rules.MC903, f"node `{node.name}` is not bound to a component")
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
        known = [node.name for node in self.plan.nodes]
        for node in self.placement.place:
            if node not in known:
                near = nearest(node, known)
                help_text = f"did you mean `{near}`?" if near else "nodes: " + ", ".join(f"`{name}`" for name in known)
                message = f"the placement names node `{node}`, which model `{self.plan.model}` does not have"
                self.fault(MC606, message, self.placement.where(node), help_text)
        for node in known:
            if self.placement.partial and node not in self.placement.place:
                message = f"node `{node}` is on no rank: [place] does not name it, and there is no `default`"
                self.fault(rules.MC601, message, self.placement.where("place", ""), f"say `{node} = 0` under [place]")

    def _walk_ranks(self) -> dict[str, int]:
        """Rank by walk: that of its nodes, else that of a stream's other end, else 0."""
        found: dict[str, int] = {}
        for walk in self.plan.walks:
            ranks = sorted({self.placement.rank_of(node) for node in walk.nodes})
            if len(ranks) > 1:
                self._split(walk, ranks)
            elif ranks:
                found[walk.name] = ranks[0]
        for walk in self.plan.walks:
            if walk.name not in found:
                found[walk.name] = next(self._partners(walk, found), self.placement.default)
        return found

    def _partners(self, walk: WalkPlan, found: Mapping[str, int]) -> Iterator[int]:
        return iter(
            [
                found[other.name]
                for other in self.plan.walks
                if other.name in found and (set(walk.sends) & set(other.takes) or set(walk.takes) & set(other.sends))
            ]
        )

    def _split(self, walk: WalkPlan, ranks: list[int]) -> None:
        places = ", ".join(f"`{node}` on rank {self.placement.rank_of(node)}" for node in walk.nodes)
        moved = next((node for node in walk.nodes if node in self.placement.place), walk.nodes[0])
        message = f"walk `{walk.name}` is split over ranks {' and '.join(map(str, ranks))}: {places}"
        help_text = f"not built yet: place every op of walk `{walk.name}` on one rank"
        self.fault(rules.MC605, message, self.placement.where(moved), help_text)

    def _check_shared(self, ranks: Mapping[str, int]) -> None:
        """What walks share by state lives on one rank: contexts, and histories of samplers that look back."""
        looking_back = {
            s.name for s in self.plan.samplers if {"repetition_penalty", "min_tokens"} & s.settings.keys() or s.over
        }
        for kind, of in (("context", "contexts"), ("sampler", "samplers")):
            homes: dict[str, set[int]] = {}
            for walk in self.plan.walks:
                for name in getattr(walk, of):
                    homes.setdefault(name, set()).add(ranks[walk.name])
            for name, used in homes.items():
                if len(used) > 1 and (kind == "context" or name in looking_back):
                    self._several(kind, name, used)

    def _several(self, kind: str, name: str, used: set[int]) -> None:
        message = f"{kind} `{name}` is used on ranks {' and '.join(map(str, sorted(used)))}"
        self.fault(MC607, message, None, "not built yet: place the nodes of the walks that use it on one rank")

    # --------------------------------------------------------------------------------------------------------- streams

    def _streams(self, ranks: Mapping[str, int]) -> list[StreamLink]:
        found = []
        for stream in self.plan.streams:
            sources = {ranks[walk.name] for walk in self.plan.walks if stream.name in walk.sends}
            sinks = {ranks[walk.name] for walk in self.plan.walks if stream.name in walk.takes}
            for ends, what in ((sources, "sent on from"), (sinks, "taken from on")):
                if len(ends) > 1:
                    message = f"stream `{stream.name}` is {what} ranks {' and '.join(map(str, sorted(ends)))}"
                    self.fault(MC607, message, None, "not built yet: place those walks on one rank")
            source = min(sources, default=min(sinks, default=0))
            sink = min(sinks, default=source)
            try:
                args, capacity = link_stream_args(stream, self.scope), stream_capacity(stream, self.scope)
            except FoldError as error:
                self.fault(MC607, f"stream `{stream.name}`: {error}")
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


def _walk(walk: WalkPlan, rank: int) -> WalkLink:
    return WalkLink(
        name=walk.name,
        rank=rank,
        nodes=walk.nodes,
        sends=walk.sends,
        takes=walk.takes,
        contexts=walk.contexts,
        externs=walk.externs,
    )
