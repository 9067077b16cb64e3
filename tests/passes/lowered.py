"""Source text in, IR and findings of the front end out, for the tests of lowering."""

from __future__ import annotations

from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.ir.core import Block, Op, Program, Walk
from mstarc.ir.verify import verify
from mstarc.ir.visit import every_op
from mstarc.passes.lower import lower
from mstarc.source import SourceFile
from mstarc.syntax.parser import parse_walk

NODES = """
node a : stateless {
    op f(x: i64) -> y: i64
    op g(x: i64, z: i64) -> y: i64
    op two(x: i64) -> p: i64, q: i64
    op opt(x: i64, z: i64?) -> y: i64
    op none(x: i64)
    op is(x: i64) -> yes: bool
    op at(x: i64, h: host i64) -> y: i64
    op rows(x: f32[n, 4]) -> y: f32[n]
    op twice(x: f32[n, 4]) -> y: f32[2 * n]
    op pair(x: f32[n], y: f32[n]) -> z: f32[n]
    op four(x: f32[4]) -> y: f32[4]
    op split(x: f32[2 * m]) -> y: f32[m]
    op make(x: i64) -> y: f32[k]
    op ids(x: i64) -> ids: i64[k]
}
"""
CACHE = """
cache lm : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
cache ear : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
sampler s { temperature = 0 }
node llm : transformer(lm) {
    op read(ids: i64[T]) -> logits: f32[9]    { attend causal  positions seq }
    op step(token: i64) -> logits: f32[9]     { attend causal  positions seq }
    op look(x: f32[n, 4]) -> y: f32[n, 4]     { attend full  takes n  positions same  frozen }
    op hear(token: i64) -> logits: f32[9]     { attend causal  positions seq  cross }
}
"""


def lowered(text: str) -> tuple[Program | None, tuple[Diagnostic, ...], str]:
    """Program, findings and the whole text of `model t` with these declarations."""
    whole = "model t\n" + text
    report = Collector()
    model = parse_walk(SourceFile("t.walk", whole), report)
    program = None if model is None else lower(model, report)
    if program is not None:
        verify(program)
    return program, report.findings(), whole


def program_of(text: str) -> Program:
    """The verified program of declarations without errors."""
    program, found, _ = lowered(text)
    assert program is not None, [(d.rule.code, d.message) for d in found]
    return program


def in_walk(body: str, params: str = "x: i64", results: str = "", more: str = "", args: str = "x") -> str:
    """A model with the walk `w` and a request of the same inputs."""
    arrow = f" -> {results}" if results else ""
    return f"{NODES}{more}walk w({params}){arrow} {{ {body} }}\nrequest r({params}) -> tensor {{ w({args}) }}\n"


def walk_of(body: str, **options: str) -> Walk:
    """The walk `w` as IR."""
    return next(walk for walk in program_of(in_walk(body, **options)).walks if walk.name == "w")


def ops_of(block: Block, kind: type) -> list[Op]:
    return [op for op in every_op(block) if isinstance(op, kind)]


def said(text: str) -> list[tuple[str, str]]:
    """(code, text under the primary label) of each finding."""
    _, found, whole = lowered(text)
    data = whole.encode()
    return [(d.rule.code, data[d.primary.span.start : d.primary.span.end].decode()) for d in found]


def only(text: str) -> Diagnostic:
    """The one finding."""
    _, found, _ = lowered(text)
    assert len(found) == 1, [(d.rule.code, d.message) for d in found]
    return found[0]
