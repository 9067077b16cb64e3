"""Programs, declarations and operations of the IR as text. One operation a line; blocks are braces, indented by two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import assert_never

from mstarc.ir.core import (
    Block,
    CallWalk,
    Carry,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    ForParts,
    If,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Program,
    Request,
    Require,
    Sample,
    Send,
    Stop,
    Together,
    Value,
    Walk,
    When,
)
from mstarc.ir.declarations import Config, Context, Node, OpAttrs, OpDecl, Param, Port, Sampler, Stream
from mstarc.ir.text.expressions import print_expr, print_list, print_type
from mstarc.ir.types import Expr

HEADER = "mstarc.ir 1"


def print_program(program: Program) -> str:
    """The whole program. Ends with a newline."""
    lines = [HEADER, f"model {program.model}"]
    lines += [_config(c) for c in program.configs]
    lines += [_param(p) for p in program.params]
    lines += [f"let {let.name} = {print_expr(let.expr)}" for let in program.lets]
    lines += [f"extern {e.name}{_ports(e.params)} -> {_ports(e.results)}" for e in program.externs]
    for c in program.caches:
        sizes = zip(
            ("layers", "heads", "kv_heads", "head_dim"), (c.layers, c.heads, c.kv_heads, c.head_dim), strict=True
        )
        lines.append(f"cache {c.name}({_named(sizes)})")
    lines += [_context(c) for c in program.contexts]
    lines += [_sampler(s) for s in program.samplers]
    for node in program.nodes:
        lines += _node(node)
    lines += [_stream(s) for s in program.streams]
    for walk in program.walks:
        lines += print_walk(walk).splitlines()
    for request in program.requests:
        lines += print_request(request).splitlines()
    return "\n".join(lines) + "\n"


def print_walk(walk: Walk) -> str:
    """One walk, as it stands in the program's text."""
    outputs = ", ".join(f"{o.name}: {print_type(o.type)} = %{o.value}" for o in walk.outputs)
    head = f"walk {walk.name}({_values(walk.params)})" + (f" -> ({outputs})" if outputs else "")
    return "\n".join(_braced(head, walk.body)) + "\n"


def print_request(request: Request) -> str:
    """One request program, as it stands in the program's text."""
    outputs = ", ".join(name + ("?" if optional else "") for name, optional in request.outputs)
    return "\n".join(_braced(f"request {request.name}({_values(request.inputs)}) -> ({outputs})", request.body)) + "\n"


def print_op(op: Op) -> str:
    """One operation with its blocks."""
    return "\n".join(_op(op)) + "\n"


# ------------------------------------------------------------------------------------------------------------ declarations


def _named(pairs: Iterable[tuple[str, Expr]]) -> str:
    return ", ".join(f"{name} = {print_expr(value)}" for name, value in pairs)


def _ports(ports: tuple[Port, ...]) -> str:
    return "(" + ", ".join(f"{p.name}: {'host ' if p.host else ''}{print_type(p.type)}" for p in ports) + ")"


def _clause(word: str, value: Expr | None) -> str:
    return "" if value is None else f" {word} {print_expr(value)}"


def _config(config: Config) -> str:
    source = f" from {json.dumps(config.path)}" if config.path else ""
    return f"config {config.name}{source}{_clause('=', config.expr)}"


def _param(param: Param) -> str:
    low, high, default = _clause("low", param.low), _clause("high", param.high), _clause("=", param.default)
    return f"param {param.name}: {print_type(param.type)}{low}{high}{default}"


def _context(context: Context) -> str:
    return f"context {context.name} on {context.cache}{_clause('max', context.max)}{_clause('when', context.when)}"


def _sampler(sampler: Sampler) -> str:
    return f"sampler {sampler.name}({_named(sampler.settings)})" + (f" over {sampler.over}" if sampler.over else "")


def _node(node: Node) -> list[str]:
    words = [f"node {node.name}: {node.kind}"]
    words += [f"on {node.cache}"] if node.cache else []
    words += [f"precision {node.precision}"] if node.precision else []
    words += [f"weights {node.weights}"] if node.weights else []
    lines = [f"  op {op.name}{_ports(op.params)} -> {_ports(op.results)}{_attrs(op)}" for op in node.ops]
    lines += [f"  state {s.name}: {print_type(s.type)} = {print_expr(s.init)}" for s in node.states]
    return [" ".join(words) + " {", *lines, "}"]


def _attrs(op: OpDecl) -> str:
    a: OpAttrs = op.attrs
    words = [f"attend {a.attend}"] if a.attend else []
    words += [f"positions {a.positions}"] if a.positions else []
    for word, value in (("at", a.at), ("advance", a.advance), ("takes", a.takes)):
        words += [f"{word} {print_expr(value)}"] if value is not None else []
    flags = (("frozen", a.frozen), ("cross", a.cross), ("random", a.random), ("async_off", a.async_off))
    words += [word for word, flag in flags if flag]
    words += [f"samples {a.samples}"] if a.samples else []
    words += [f"batch {a.batch}"] if a.batch else []
    words += [f"batch_max {print_expr(a.batch_max)}"] if a.batch_max is not None else []
    words += [f"graph {a.graph}"] if a.graph else []
    for word, value in (("graph_low", a.graph_low), ("graph_high", a.graph_high)):
        words += [f"{word} {print_expr(value)}"] if value is not None else []
    return " { " + "  ".join(words) + " }" if words else ""


def _stream(s: Stream) -> str:
    text = f"stream {s.name}: {print_type(s.item)}{_clause('where', s.where)} by {s.policy}({_named(s.args)})"
    text += f" at_end {s.at_end}" if s.at_end else ""
    text += " after_end_empty" if s.after_end_empty else ""
    text += " overlap_ok" if s.overlap_ok else ""
    return text + f" capacity {print_expr(s.capacity)}"


# -------------------------------------------------------------------------------------------------------------- operations


def _value(v: Value) -> str:
    return f"%{v.id} {v.name}: {'host ' if v.phase == 'host' else ''}{print_type(v.type)}"


def _values(values: Iterable[Value]) -> str:
    return ", ".join(_value(v) for v in values)


def _bound(results: tuple[Value | None, ...]) -> str:
    return ", ".join("_" if v is None else _value(v) for v in results) + (" = " if results else "")


def _braced(head: str, block: Block, tail: str = "") -> list[str]:
    if not block.ops:
        return [f"{head} {{}}{tail}"]
    return [f"{head} {{", *("  " + line for op in block.ops for line in _op(op)), f"}}{tail}"]


def _op(op: Op) -> Iterator[str]:
    match op:
        case Loop() | Par() | When() | ForChunks() | If() | ForParts() | Together():
            yield from _structured(op)
        case _:
            yield _simple(op)


def _simple(op: Op) -> str:
    match op:
        case Compute():
            return f"{_value(op.result)} = compute {print_expr(op.expr)}"
        case Invoke():
            args = ", ".join("_" if a is None else print_expr(a) for a in op.args)
            writes = f" writes {', '.join(op.writes)}" if op.writes else ""
            reads = f" reads {', '.join(op.reads)}" if op.reads else ""
            return f"{_bound(op.results)}invoke {op.node}.{op.op}({args}){writes}{reads}"
        case Sample():
            return f"{_value(op.result)} = sample {op.sampler}({print_expr(op.logits)}) site {json.dumps(op.site)}"
        case Noise():
            return f"{_value(op.result)} = noise site {json.dumps(op.site)}"
        case Extern():
            return f"{_bound(op.results)}extern {op.name}({print_list(op.args)})"
        case CallWalk():
            return f"{_bound(op.results)}call {op.walk}({print_list(op.args)})"
        case Next():
            return f"{_bound(op.results)}next {', '.join(op.streams)}"
        case Stop():
            return f"stop {print_expr(op.cond)}" + (f" with ({print_list(op.carried)})" if op.carried else "")
        case Collect():
            return f"collect {print_expr(op.value)} as {op.name}"
        case Emit():
            return f"emit {print_expr(op.value)} as {op.modality}" + (f"({_named(op.attrs)})" if op.attrs else "")
        case Send():
            return f"send {print_expr(op.value)} to {op.stream}"
        case Fork():
            return f"fork {op.target} from {op.source}"
        case Drop():
            return f"drop {', '.join(op.contexts)}"
        case Require():
            return f"require {print_expr(op.cond)} says {json.dumps(op.text)}"
        case _:
            raise AssertionError(f"{type(op).__name__} has blocks")


def _structured(op: Loop | Par | When | ForChunks | If | ForParts | Together) -> Iterator[str]:
    match op:
        case Loop():
            yield from _loop(op)
        case Par():
            yield from _braced("parallel", op.body)
        case When():
            phis = ", ".join(f"%{phi.inner} to {_value(phi.result)}" for phi in op.results)
            yield from _braced(f"when {print_expr(op.cond)}", op.body, f" -> ({phis})" if phis else "")
        case ForChunks():
            yield from _braced(f"for {_values(op.items)} in {', '.join(op.streams)}", op.body)
        case If():
            then = _braced(f"if {print_expr(op.cond)}", op.then)
            yield from then[:-1]
            yield from _braced(f"{then[-1]} else", op.other) if op.other.ops else then[-1:]
        case ForParts():
            yield f"parts {print_expr(op.over)} {{"
            for case in op.cases:
                head = f"case {case.kind}" if case.kind else "each"
                yield from ("  " + line for line in _braced(f"{head} {_value(case.item)}", case.body))
            yield "}"
        case Together():
            yield "together {"
            for arm in op.arms:
                yield from ("  " + line for line in _braced(f"arm {arm.label}", arm.body))
            yield "}"
        case _:
            assert_never(op)


def _loop(op: Loop) -> Iterator[str]:
    yield f"loop {op.label} {op.kind} {print_expr(op.bound)}"
    yield from ("  " + _carry(c) for c in op.carries)
    yield from (f"  gather {g.name} -> {_value(g.result)}" for g in op.gathers)
    yield from _braced("do", op.body)


def _carry(c: Carry) -> str:
    return f"carry {_value(c.inner)} = {print_expr(c.init)} then {print_expr(c.next)} -> {_value(c.result)}"
