"""Rules of the verifier on declarations and on whole walks and requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mstarc.ir.core import Loop, Program, Together, Walk
from mstarc.ir.verify_sites import Unit, definitions, top_level
from mstarc.ir.visit import every_op

POLICY_ARGS = {
    "fixed": ["size"],
    "sliding_window": ["size", "stride"],
    "left_context": ["chunk", "left"],
    "phrase": ["cut", "max"],
}
END_RULES = ("", "drop", "partial", "pad:zero", "pad:repeat")


def _twice(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def dense(unit: Unit) -> Iterator[str]:
    for due, value in enumerate(definitions(unit)):
        if value.id != due:
            yield f"%{value.id} {value.name} is defined where %{due} is due"
            return


def names(unit: Unit) -> Iterator[str]:
    yield from (f"two values are called `{n}`" for n in _twice(v.name for v in definitions(unit)))
    ops = list(every_op(unit.of.body))
    yield from (f"two loops are called `{n}`" for n in _twice(op.label for op in ops if isinstance(op, Loop)))
    arms = [arm.label for op in ops if isinstance(op, Together) for arm in op.arms]
    yield from (f"two arms are called `{n}`" for n in _twice(arms))


def outputs(unit: Unit) -> Iterator[str]:
    if not isinstance(unit.of, Walk):
        return
    visible = top_level(unit)
    for output in unit.of.outputs:
        if output.value not in visible:
            yield f"output `{output.name}` is %{output.value}, which is not defined at the top level"


def unique(program: Program) -> Iterator[str]:
    p = program
    groups = (p.configs, p.params, p.lets, p.externs, p.caches, p.contexts, p.samplers, p.nodes, p.streams, p.walks)
    declared = [str(getattr(item, "name")) for group in groups for item in group]  # noqa: B009
    yield from (f"`{name}` is declared twice" for name in _twice(declared))
    yield from (f"request `{name}` is declared twice" for name in _twice(r.name for r in p.requests))
    for node in p.nodes:
        yield from (f"op `{node.name}.{name}` is declared twice" for name in _twice(op.name for op in node.ops))


def kinds(program: Program) -> Iterator[str]:
    caches = {cache.name for cache in program.caches}
    contexts = {context.name for context in program.contexts}
    nodes = {node.name for node in program.nodes}
    for context in program.contexts:
        if context.cache not in caches:
            yield f"context `{context.name}` is on `{context.cache}`, which is no cache"
    for node in program.nodes:
        if (node.kind == "transformer") != (node.cache in caches):
            yield f"{node.kind} node `{node.name}` has the cache `{node.cache}`"
        if node.weights and node.weights not in nodes:
            yield f"node `{node.name}` shares weights with `{node.weights}`, which is no node"
    for sampler in program.samplers:
        if sampler.over and sampler.over not in contexts:
            yield f"sampler `{sampler.name}` is over `{sampler.over}`, which is no context"


def policies(program: Program) -> Iterator[str]:
    externs = {extern.name for extern in program.externs}
    for stream in program.streams:
        due, given = POLICY_ARGS[stream.policy], [name for name, _ in stream.args]
        if sorted(due) != sorted(given):
            yield f"stream `{stream.name}` by {stream.policy} has the arguments {given}, not {due}"
        if stream.at_end not in END_RULES:
            yield f"stream `{stream.name}` has the end rule `{stream.at_end}`"
        cut = dict(stream.args).get("cut")
        if cut is not None and getattr(cut, "value", None) not in externs:
            yield f"stream `{stream.name}` is cut by {cut}, which is no extern"


def sources(program: Program) -> Iterator[str]:
    for config in program.configs:
        if not config.path and config.expr is None:
            yield f"config `{config.name}` has neither"
