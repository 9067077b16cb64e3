"""Whole models: each lowers without a finding to IR that verifies and reads back, and has the structure its text says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.ir.core import CallWalk, Invoke, Loop, Program, Sample, Send, Stop, Together
from mstarc.ir.text import parse_program, print_program, print_walk
from mstarc.ir.types import Lit, Tensor
from mstarc.ir.verify import verify
from mstarc.passes.lower import lower
from mstarc.source import SourceFile
from mstarc.syntax.parser import parse_walk
from tests.passes.lowered import ops_of

ROOT = Path(__file__).resolve().parents[2]
MODELS = {
    path.stem: path
    for path in (
        *ROOT.glob("specs/*.walk"),
        *ROOT.glob("examples/*/*.walk"),
        *ROOT.glob("tests/passes/models/*.walk"),
    )
}

HELLO_COUNT = """\
walk count(%0 start: host i64[]) {
  %1 n: i64[] = invoke counter.first(%0)
  loop counting max param.max_steps
    carry %2 n_2: i64[] = %1 then %3 -> %4 n_4: i64[]
  do {
    stop %2 == config.limit with (%2)
    emit %2 as tensor
    send %2 to numbers
    %3 n_3: i64[] = invoke counter.next(%2)
  }
}
"""


def load(name: str) -> Program:
    report = Collector()
    model = parse_walk(SourceFile(name, MODELS[name].read_text(encoding="utf-8")), report)
    program = None if model is None else lower(model, report)
    assert program is not None and report.findings() == (), [(d.rule.code, d.message) for d in report.findings()]
    return program


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_model_lowers_verifies_and_reads_back(name: str) -> None:
    program = load(name)
    verify(program)
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    assert "#" not in text  # no provisional dim is left


@pytest.mark.parametrize("name", sorted(MODELS))
def test_spans_of_operations_are_those_of_their_text(name: str) -> None:
    data = MODELS[name].read_bytes()
    for walk in load(name).walks:
        for op in ops_of(walk.body, Invoke):
            assert isinstance(op, Invoke)
            assert data[op.span.start : op.span.end].decode().startswith(f"{op.node}.{op.op}(")


def test_hello() -> None:
    program = load("hello")
    assert print_walk(program.walks[0]) == HELLO_COUNT
    (stream,) = program.streams
    assert (stream.policy, stream.args, stream.at_end) == ("fixed", (("size", Lit(2)),), "pad:zero")
    (together,) = program.requests[0].body.ops
    assert isinstance(together, Together) and [arm.label for arm in together.arms] == ["counting", "adding"]


def test_ask_hears_on_two_contexts() -> None:
    hear = next(walk for walk in load("ask").walks if walk.name == "hear")
    calls = [op for op in ops_of(hear.body, Invoke) if isinstance(op, Invoke)]
    assert [(c.op, c.writes, c.reads) for c in calls] == [
        ("encode", (), ()),
        ("listen", ("sound",), ()),
        ("read", ("said",), ("sound",)),
        ("step", ("said",), ("sound",)),
    ]
    samples = [op for op in ops_of(hear.body, Sample) if isinstance(op, Sample)]
    assert [(s.sampler, s.site) for s in samples] == [("opener", "opener"), ("scribbler", "scribbler")]
    (loop,) = (op for op in ops_of(hear.body, Loop) if isinstance(op, Loop))
    assert [g.name for g in loop.gathers] == ["heard"]
    (output,) = hear.outputs
    assert output.value == loop.gathers[0].result.id and output.type == loop.gathers[0].result.type


def test_ask_takes_phrases_by_its_extern() -> None:
    program = load("ask")
    assert dict(program.streams[0].args) == {"cut": Lit("cut"), "max": Lit(64)}
    answer = next(walk for walk in program.walks if walk.name == "answer")
    (loop,) = (op for op in answer.body.ops if isinstance(op, Loop))
    assert isinstance(loop.body.ops[0], Stop) and any(isinstance(op, Send) for op in loop.body.ops)


def test_phases_follow_the_calls() -> None:
    program = load("bagel")
    walks = {walk.name: walk for walk in program.walks}
    assert [p.phase for p in walks["draw"].params] == ["host", "host"]  # canvas is an extern
    assert [p.phase for p in walks["note"].params] == ["host"]  # rewrap is an extern of a walk's result
    calls = [op for op in ops_of(program.requests[0].body, CallWalk) if isinstance(op, CallWalk) and op.walk == "write"]
    thought, unused = (call.results[0] for call in calls)
    assert thought is not None and thought.phase == "device" and unused is None


def test_dims_of_a_picture_come_from_the_host() -> None:
    draw = next(walk for walk in load("bagel").walks if walk.name == "draw")
    decode = next(op for op in ops_of(draw.body, Invoke) if isinstance(op, Invoke) and op.op == "decode")
    assert decode.results[0] is not None and isinstance(decode.results[0].type, Tensor)
    height, width = draw.params[0].id, draw.params[1].id
    assert [getattr(dim, "id", None) for dim in decode.results[0].type.dims] == [None, height, width]


def test_unused_results_are_not_computed() -> None:
    read = next(walk for walk in load("ask").walks if walk.name == "read")
    (call,) = read.body.ops
    assert isinstance(call, Invoke) and call.results == (None,)
