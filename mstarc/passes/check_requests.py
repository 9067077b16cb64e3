"""Requests: MC501 result-unused, MC509 output-mismatch, MC510 walk-never-called, MC511, MC512 `require`, MC513 no-request,
MC515 op-never-called, MC516 never-reached, MC411 stream-one-ended. Takes a program; reports to the collector."""

from __future__ import annotations

from collections.abc import Iterator

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.core import Block, CallWalk, If, Invoke, Program, Request, Require, Together, When
from mstarc.ir.text.expressions import shown
from mstarc.ir.visit import blocks_of, every_op
from mstarc.passes.effects import Effect, Names, calls_of, effects_of
from mstarc.passes.ranges import Ranges


def check_requests(program: Program, report: Collector) -> None:
    """All requests, and what no request uses."""
    names = Names(program)
    if not program.requests:
        message = f"model `{program.model}` has no request, so nothing can be asked of it"
        report.report(rules.MC513, message, program.span, help="add `request NAME(inputs) -> outputs { ... }`")
        return
    for request in program.requests:
        _check_outputs(request, names, report)
        _check_require(request, Ranges(program), report)
        _check_reached(request, Ranges(program), report)
        _check_results(request, names, report)
        _check_takes(request, names, report)
    _check_called(program, report)
    _check_ops(program, report)
    _check_ends(program, names, report)


def _check_outputs(request: Request, names: Names, report: Collector) -> None:
    """MC509: declared and emitted modalities are the same set."""
    emitted: dict[str, Effect] = {}
    for effect in effects_of(request.body, names):
        if effect.kind == "modality":
            emitted.setdefault(effect.name, effect)
    declared = [modality for modality, _ in request.outputs]
    for modality in declared:
        if modality not in emitted:
            message = f"request `{request.name}` declares the output `{modality}`, but nothing that it runs emits it"
            others = ", ".join(f"`{m}`" for m in sorted(emitted)) or "nothing"
            report.report(
                rules.MC509, message, request.span, subject=f"{request.name}.{modality}", notes=(f"it emits {others}",)
            )
    for modality, effect in emitted.items():
        if modality not in declared:
            message = f"request `{request.name}` emits `{modality}`, but does not declare it"
            report.report(
                rules.MC509,
                message,
                effect.span,
                "emitted here",
                secondary=(Label(request.span, f"`{request.name}` is declared here"),),
                subject=f"{request.name}.{modality}",
                help=f"add `{modality}` to the outputs of `{request.name}`",
            )


def _check_require(request: Request, ranges: Ranges, report: Collector) -> None:
    """MC511: `require` comes first; MC512: it can be true, and it can be false."""
    called = False
    for op in request.body.ops:
        called = called or any(True for _ in calls_of(Block((op,))))
        for inner in every_op(Block((op,))):
            if not isinstance(inner, Require):
                continue
            if called or inner is not op:
                message = f"`require {inner.text}` stands after work of request `{request.name}` may have begun"
                help_text = "put it at the top of the request: it decides about admission"
                report.report(rules.MC511, message, inner.span, subject=inner.text, help=help_text)
            if ranges.of(inner.cond).exact == 0:
                message = f"`require {inner.text}` is never true, so request `{request.name}` is always refused"
                report.report(rules.MC512, message, inner.span, subject=inner.text)
            elif ranges.of(inner.cond).exact is not None:
                message = f"`require {inner.text}` is always true, so it refuses nobody"
                report.report(rules.MC512, message, inner.span, subject=inner.text)


def _check_reached(request: Request, ranges: Ranges, report: Collector) -> None:
    """MC516: a branch whose condition, or its opposite, no request can meet."""
    for op in every_op(request.body):
        if not isinstance(op, (If, When)) or (truth := ranges.of(op.cond).exact) is None:
            continue
        never = op.body if isinstance(op, When) else op.then
        if truth:
            never = op.other if isinstance(op, If) else Block()
        if never.ops:
            which = "never true" if not truth else "always true, so the `else` is never taken"
            message = f"`{shown(op.cond)}` is {which} in request `{request.name}`"
            at = never.ops[0].span if truth else op.span
            help_text = "delete the branch, or compare what differs between requests"
            report.report(rules.MC516, message, at, "no request comes here" if truth else "", help=help_text)


def _check_results(request: Request, names: Names, report: Collector) -> None:
    """MC501: a walk that has outputs and no lasting effect is called for its outputs."""
    for call in calls_of(request.body):
        walk = names.walks.get(call.walk)
        if walk is None or not walk.outputs or any(r is not None for r in call.results):
            continue
        lasting = [
            e for e in effects_of(walk.body, names, walk.name) if e.kind in ("modality", "send", "context", "state")
        ]
        if not lasting:
            message = f"the result of `{call.walk}` is not used, and the walk does nothing else"
            report.report(
                rules.MC501, message, call.span, subject=call.walk, help="bind the result, or delete the call"
            )


def _check_called(program: Program, report: Collector) -> None:
    """MC510: a walk that no request calls."""
    called = {call.walk for request in program.requests for call in calls_of(request.body)}
    for walk in program.walks:
        if walk.name not in called:
            report.report(
                rules.MC510, f"no request calls walk `{walk.name}`", walk.span, subject=walk.name, help="delete it"
            )


def _check_ops(program: Program, report: Collector) -> None:
    """MC515: an op that no walk calls; a node without any that one does, once. One that others have their weights of is there for that."""
    called = {(op.node, op.op) for walk in program.walks for op in every_op(walk.body) if isinstance(op, Invoke)}
    nodes = {node for node, _ in called}
    lent = {node.weights for node in program.nodes if node.name in nodes}
    for node in program.nodes:
        if node.name not in nodes and node.name not in lent:
            message = f"no walk calls an op of node `{node.name}`, which is loaded all the same"
            report.report(rules.MC515, message, node.span, subject=node.name, help="delete it, or call an op of it")
            continue
        for op in node.ops if node.name in nodes else ():
            if (node.name, op.name) not in called:
                message = f"no walk calls op `{node.name}.{op.name}`"
                report.report(rules.MC515, message, op.span, subject=op.name, help="delete it, or call it")


# ------------------------------------------------------------------------------------------------------- ends of streams


def _check_ends(program: Program, names: Names, report: Collector) -> None:
    """MC411 on a stream that has one end in the whole model."""
    touched = [e for w in program.walks for e in effects_of(w.body, names, w.name)]
    for stream in program.streams:
        sends = [e for e in touched if e.kind == "send" and e.name == stream.name]
        takes = [e for e in touched if e.kind == "take" and e.name == stream.name]
        if sends and takes:
            continue
        send, take = f"send on it (`send x -> {stream.name}`)", f"take from it (`for x in {stream.name} {{ ... }}`)"
        if not sends and not takes:
            what, missing = "neither sent on nor taken from", f"{send} in one arm of a `together`, {take} in another"
        elif sends:
            what, missing = "never taken from", f"{take} in another arm of the sender's `together`"
        else:
            what, missing = "never sent on", f"{send} in another arm of the taker's `together`"
        second = tuple(Label(e.span, f"the only end is in walk `{e.walk}`") for e in (sends + takes)[:1])
        message = f"stream `{stream.name}` is {what}"
        end = " and its end" if second else ""
        help_text = f"{missing}, or delete the stream{end}"
        report.report(rules.MC411, message, stream.span, secondary=second, subject=stream.name, help=help_text)


def _check_takes(request: Request, names: Names, report: Collector) -> None:
    """MC411 on a take that no other arm of the same `together` can feed."""
    for call, arm, others in _arms(request.body, None, ()):
        walk = names.walks.get(call.walk)
        if walk is None:
            continue
        for effect in effects_of(walk.body, names, walk.name):
            if effect.kind != "take" or effect.name in _sent(others, names):
                continue
            if not any(
                e.kind == "send" and e.name == effect.name
                for w in names.program.walks
                for e in effects_of(w.body, names)
            ):
                continue  # said once, on the stream
            where = (
                "in the same arm" if arm is not None and effect.name in _sent((arm,), names) else "in no arm beside it"
            )
            message = f"walk `{walk.name}` takes from `{effect.name}`, but the sender runs {where} in request `{request.name}`"
            report.report(
                rules.MC411,
                message,
                call.span,
                f"`{walk.name}` is called here",
                secondary=(Label(effect.span, "taken here"),),
                notes=("a stream lives only while both ends run in one `together`",),
                help="run the sender and the taker as two arms of one `together`",
                subject=effect.name,
            )


def _arms(
    block: Block, arm: Block | None, others: tuple[Block, ...]
) -> Iterator[tuple[CallWalk, Block | None, tuple[Block, ...]]]:
    """Each walk call with the arm around it and the arms beside that."""
    for op in block.ops:
        if isinstance(op, CallWalk):
            yield op, arm, others
        elif isinstance(op, Together):
            for mine in op.arms:
                yield from _arms(mine.body, mine.body, (*others, *(a.body for a in op.arms if a is not mine)))
        else:
            for inner in blocks_of(op):
                yield from _arms(inner, arm, others)


def _sent(blocks: tuple[Block, ...], names: Names) -> set[str]:
    return {e.name for block in blocks for e in effects_of(block, names) if e.kind == "send"}
