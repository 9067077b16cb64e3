"""Running ahead of `stop when`: which iterations may run before it is known that the loop has ended, and what is undone then.

Takes a program; gives one `Speculation` per loop. An iteration past the stop must leave no trace. What it appends to a context is cut
off by length, what it draws by the sampler's history and the site's count of draws; what leaves the loop (emissions, sends, collected
values) is held until the stops above it, in its own and in every earlier iteration, are known. What nothing can undo forbids it:
externs, items taken from a stream, forks, node state, and an op that says `async off`.

Such an effect is *early* if it stands above the first `stop when` on a device value: then the iteration after the last one would have
had it before the end is known. Below it waits for a check of its own iteration, though a worker runs ahead by whole iterations only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstarc.ir.core import (
    Block,
    Collect,
    Drop,
    Extern,
    ForChunks,
    Fork,
    Invoke,
    Loop,
    Next,
    Op,
    Program,
    Stop,
    Value,
    Walk,
)
from mstarc.ir.types import ValueId
from mstarc.ir.visit import blocks_of, every_op, vars_of
from mstarc.passes.effects import Names, effects_of
from mstarc.passes.form_regions import values_of
from mstarc.source import Span


@dataclass(frozen=True, slots=True)
class Bar:
    """An effect that nothing undoes, and where it stands. early: above every `stop when` of its loop on a device value."""

    text: str
    span: Span
    early: bool


@dataclass(frozen=True, slots=True)
class Speculation:
    """What running ahead means for one loop. Names are sorted.

    device_stops: its `stop when` on a device value; without one the end is known before the loop starts. bars: why iterations may not
    run ahead, in program order. contexts are cut back to a length, samplers to a length of their history, sites to a count of draws.
    held: emitted modalities, streams and collected names that wait for the stops.
    """

    walk: str
    loop: str
    device_stops: int
    bars: tuple[Bar, ...] = ()
    contexts: tuple[str, ...] = ()
    samplers: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    held: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why iterations may not run ahead, each once."""
        return tuple(dict.fromkeys(bar.text for bar in self.bars))

    @property
    def legal(self) -> bool:
        return not self.bars

    @property
    def rollback(self) -> tuple[str, ...]:
        """What an iteration past the stop has to be cut back from, if there can be one."""
        return (*self.contexts, *self.samplers) if self.legal and self.device_stops else ()


def speculation_of(walk: Walk, loop: Loop, names: Names) -> Speculation:
    """The facts of one loop of a walk."""
    values = {value.id: value for value in values_of(walk)}
    touched = list(effects_of(loop.body, names, walk.name))
    changed = {
        kind: tuple(sorted({e.name for e in touched if e.kind == kind and not e.reads}))
        for kind in ("context", "sampler", "site", "modality", "send")
    }
    collected = tuple(sorted({op.name for op in every_op(loop.body) if isinstance(op, Collect)}))
    return Speculation(
        walk=walk.name,
        loop=loop.label,
        device_stops=sum(on_device(op, values) for op in stops_of(loop.body)),
        bars=tuple(_bars(loop, names, values)),
        contexts=changed["context"],
        samplers=changed["sampler"],
        sites=changed["site"],
        held=(*changed["modality"], *changed["send"], *collected),
    )


def stops_of(block: Block) -> Iterator[Stop]:
    """The stops that end the loop whose body this is: those of inner loops are not among them."""
    for op in block.ops:
        if isinstance(op, Stop):
            yield op
        elif not isinstance(op, Loop):
            for inner in blocks_of(op):
                yield from stops_of(inner)


def on_device(stop: Stop, values: dict[ValueId, Value]) -> bool:
    """Whether only the device knows the condition."""
    return any(values[ident].phase == "device" for ident in vars_of(stop.cond))


def _bars(loop: Loop, names: Names, values: dict[ValueId, Value]) -> Iterator[Bar]:
    checks = {id(stop) for stop in stops_of(loop.body) if on_device(stop, values)}
    early = True
    for op in every_op(loop.body):
        early = early and id(op) not in checks
        for text in _reasons(op, names, values):
            yield Bar(text, op.span, early)


def _reasons(op: Op, names: Names, values: dict[ValueId, Value]) -> Iterator[str]:
    match op:
        case Extern(name=name):
            yield f"extern `{name}` runs on the host, and nothing undoes it"
        case Next(streams=streams) | ForChunks(streams=streams):
            yield f"it takes from {_listed(streams)}, and an item that is taken is gone"
        case Fork(target=target):
            yield f"`fork {target}` replaces a context, which no length brings back"
        case Drop(contexts=contexts):
            yield f"`drop` empties {_listed(contexts)}, which no length brings back"
        case Invoke():
            yield from _of_call(op, names)
        case Loop() if any(on_device(stop, values) for stop in stops_of(op.body)):
            yield f"loop `{op.label}` inside it ends on a device value"
        case _:
            pass


def _of_call(op: Invoke, names: Names) -> Iterator[str]:
    node, declared = names.nodes.get(op.node), names.op(op)
    if node is not None and node.states:
        yield f"`{op.node}` keeps {_listed(tuple(state.name for state in node.states))} from call to call"
    if declared is not None and declared.attrs.async_off:
        yield f"`{op.node}.{op.op}` says `async off`"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def speculations_of(program: Program) -> tuple[Speculation, ...]:
    """The facts of every loop, in program order."""
    names = Names(program)
    return tuple(
        speculation_of(walk, op, names) for walk in program.walks for op in every_op(walk.body) if isinstance(op, Loop)
    )


def say_speculations(program: Program, facts: tuple[Speculation, ...]) -> Iterator[str]:
    """One line for each loop."""
    for fact in facts:
        yield f"loop {fact.walk}.{fact.loop}: {_said(fact)}"


def _said(fact: Speculation) -> str:
    if not fact.device_stops:
        return "its end is known before it starts"
    if not fact.legal:
        return f"may not run ahead: {'; '.join(fact.reasons)}"
    undone = ", ".join((*fact.rollback, *fact.sites)) or "nothing"
    return f"may run ahead; cut back: {undone}; held: {', '.join(fact.held) or 'nothing'}"
