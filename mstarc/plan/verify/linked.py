"""What a link says: a launch is of one rank, and both ends of a stream are where its walks are. Takes layouts and the linked program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mstarc.diagnostics import rules
from mstarc.ir.core import Invoke
from mstarc.ir.visit import every_op
from mstarc.plan.rules import MC610
from mstarc.plan.verify.fault import Fault, line_of
from mstarc_runtime.abi.linked import Linked, LoopLink

if TYPE_CHECKING:
    from mstarc.plan.layout import Layout


def verify_linked(layouts: Mapping[str, Layout], linked: Linked) -> Iterator[Fault]:
    """Every loop and every stream of a linked program."""
    for loop in linked.loops:
        if loop.whole or loop.unroll > 1:
            yield from _launch(loop, layouts, linked)
    for stream in linked.streams:
        for rank, what, field in ((stream.source, "sent on", "sends"), (stream.sink, "taken from", "takes")):
            homes = {layouts[walk.name].home for walk in linked.walks if stream.name in getattr(walk, field)}
            if len(homes) == 1 and homes != {rank}:
                yield Fault(MC610, f"stream `{stream.name}` is {what} rank {min(homes)}, and linked to rank {rank}")
        if (stream.transport == "slot") != (stream.source == stream.sink):
            ends = f"rank {stream.source} and rank {stream.sink}"
            yield Fault(MC610, f"stream `{stream.name}` goes by `{stream.transport}` between {ends}")


def _launch(loop: LoopLink, layouts: Mapping[str, Layout], linked: Linked) -> Iterator[Fault]:
    """MC701: a call elsewhere gets values of the launch and gives some back. The ranks of a tensor parallel group run a launch together."""
    home = layouts[loop.walk].home
    consumers = [walk.name for walk in linked.walks if set(walk.takes) & set(loop.fused)]
    for name in (loop.walk, *consumers):
        layout = layouts[name]
        away = [op for op in every_op(layout.walk.body) if isinstance(op, Invoke) and layout.rank_of(op) != home]
        for op in away:
            what = f"loop `{loop.walk}.{loop.label}` is one launch of rank {home}, and `{op.node}.{op.op}` of it runs elsewhere"
            yield Fault(rules.MC701, what, name, loop.label if name == loop.walk else "", line_of(op))
