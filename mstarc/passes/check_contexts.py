"""Contexts: MC502 read before any write, MC505 context-unused, MC506 frozen-writes, MC507 foreign-context.

Takes a program; reports to the collector. A context starts empty, and reading an empty one is legal; it is reported only where
no path of the request can have written it, since then the read can never find anything.
"""

from __future__ import annotations

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Block, CallWalk, Drop, ForChunks, Fork, ForParts, If, Invoke, Loop, Op, Program, Together
from mstarc.ir.declarations import OpDecl
from mstarc.ir.types import Lit
from mstarc.ir.visit import blocks_of, every_op
from mstarc.passes.effects import Names


def check_contexts(program: Program, report: Collector) -> None:
    """Declarations of ops, then each call, then the order of writes and reads on the paths of each request."""
    names = Names(program)
    for node in program.nodes:
        for op in node.ops:
            _check_frozen(node.name, op, report)
    for walk in program.walks:
        for inner in every_op(walk.body):
            if isinstance(inner, Invoke):
                _check_cache(inner, names, report)
            elif isinstance(inner, Fork):
                _check_fork(inner, names, report)
    _check_used(program, report)
    for request in program.requests:
        _Order(names, report).block(request.body, set())


def _check_frozen(node: str, op: OpDecl, report: Collector) -> None:
    """MC506 on the declaration: `frozen` with an advance other than 0."""
    attrs = op.attrs
    if attrs.frozen and attrs.advance is not None and attrs.advance != Lit(0):
        message = f"`{node}.{op.name}` is frozen but advances the counter of a context"
        report.report(rules.MC506, message, op.span, subject=f"{node}.{op.name}", help="delete `advance` or `frozen`")


def _check_cache(op: Invoke, names: Names, report: Collector) -> None:
    """MC506 and MC507 on a call."""
    node, declared = names.nodes.get(op.node), names.op(op)
    if node is None or declared is None:
        return
    call = f"`{op.node}.{op.op}`"
    if op.writes and (declared.attrs.frozen or node.kind == "stateless"):
        kind = "frozen" if declared.attrs.frozen else "stateless"
        message = f"{call} is {kind} but this call writes {_listed(op.writes)}"
        help_text = (
            "say `reads` here, or delete `frozen` from the op" if kind == "frozen" else "a stateless op uses no context"
        )
        report.report(rules.MC506, message, op.span, subject=op.writes[0], help=help_text)
    own = [*op.writes, *(() if declared.attrs.cross else op.reads)]
    for name in own:
        context = names.contexts.get(name)
        if context is None or node.kind == "stateless" or context.cache == node.cache:
            continue
        message = f"{call} runs on cache `{node.cache}`, but context `{name}` is on cache `{context.cache}`"
        report.report(
            rules.MC507,
            message,
            op.span,
            secondary=(Label(context.span, f"`{name}` is declared here"),),
            subject=name,
            help=f"use a context that is declared `on {node.cache}`",
        )


def _check_fork(op: Fork, names: Names, report: Collector) -> None:
    target, source = names.contexts.get(op.target), names.contexts.get(op.source)
    if target is None or source is None or target.cache == source.cache:
        return
    message = f"`{op.target}` on cache `{target.cache}` cannot be a fork of `{op.source}` on cache `{source.cache}`"
    report.report(
        rules.MC507, message, op.span, subject=op.target, help="a fork shares pages, so both are on one cache"
    )


def _check_used(program: Program, report: Collector) -> None:
    """MC505: a context that no walk writes. One that an op reads all the same is MC502's."""
    written: set[str] = set()
    read: set[str] = set()
    for walk in program.walks:
        for op in every_op(walk.body):
            written.update(op.writes if isinstance(op, Invoke) else (op.target,) if isinstance(op, Fork) else ())
            read.update(op.reads if isinstance(op, Invoke) else ())
    for context in program.contexts:
        if context.name not in written and context.name not in read:
            message = f"context `{context.name}` is never written"
            report.report(
                rules.MC505, message, context.span, subject=context.name, help="delete it and what forks or drops it"
            )


class _Order:
    """Which contexts may hold something, along the paths of a request."""

    def __init__(self, names: Names, report: Collector) -> None:
        self._names = names
        self._report = report

    def block(self, block: Block, held: set[str]) -> set[str]:
        """The contexts that may be written after the block, given those that may be before it."""
        for op in block.ops:
            held = self._op(op, held)
        return held

    def _op(self, op: Op, held: set[str]) -> set[str]:
        match op:
            case Invoke():
                self._reads(op, held)
                return held | set(op.writes)
            case Fork(target, source):
                return held | {target} if source in held else held - {target}
            case Drop(contexts):
                return held - set(contexts)
            case CallWalk() if op.walk in self._names.walks:
                return self.block(self._names.walks[op.walk].body, held)
            case If():
                return self.block(op.then, set(held)) | self.block(op.other, set(held))
            case Loop() | ForChunks() | ForParts():
                return self._repeated(op, held)
            case Together():
                return held | {c for arm in op.arms for c in self.block(arm.body, set(held))}
            case _:
                out = set(held)
                for inner in blocks_of(op):
                    out |= self.block(inner, set(held))
                return out

    def _repeated(self, op: Op, held: set[str]) -> set[str]:
        """A body that may run after itself: first collect what it can leave behind, then look at its reads."""
        quiet = _Order(self._names, Collector())
        before = set(held)
        while True:
            after = before | {c for inner in blocks_of(op) for c in quiet.block(inner, set(before))}
            if after == before:
                break
            before = after
        return before | {c for inner in blocks_of(op) for c in self.block(inner, set(before))}

    def _reads(self, op: Invoke, held: set[str]) -> None:
        for name in op.reads:
            context = self._names.contexts.get(name)
            if name in held or context is None:
                continue
            message = f"`{op.node}.{op.op}` reads context `{name}`, which nothing has written by then"
            self._report.report(
                rules.MC502,
                message,
                op.span,
                secondary=(Label(context.span, f"`{name}` is declared here"),),
                subject=name,
                notes=("the context is empty on every path that leads here",),
                help="call an op that writes it first",
            )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{n}`" for n in names)
