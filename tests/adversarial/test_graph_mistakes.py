"""Mistakes in a model graph that systems without a compiler accept and then hang on, or answer wrongly.

Each is a model that is right but for one edit. The right outcome is a coded error that names the place, or that the model simply works:
then generated code and the interpreter agree on what it means.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector
from mstarc.frontend import load_text
from mstarc.ir.core import Program
from mstarc.passes.checks import run_checks
from mstarc.plan.link import link
from mstarc.plan.placement import Placement, parse_placement
from mstarc.source import SourceFile
from mstarc.workspace import load_model
from tests.codegen.harness import agrees, plan_of

RIGHT = """model right
param steps : int in 1..9 = 4
param rounds : int in 0..3 = 3
cache kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
context main on kv max 256
sampler pick { temperature = 0.8 }
node llm  : transformer(kv) { op step(token: i64) -> logits: f32[40] { attend causal  positions seq } }
node sums : stateless {
    op next(x: i64) -> y: i64
    op pair(a: i64, b: i64) -> y: i64
    op total(xs: i64[n]) -> y: i64
}
stream numbers : i64 by fixed(1) capacity 4
stream windows : i64 by sliding_window(size = 3, stride = 1) at_end partial  overlap ok  capacity 8

walk count(start: i64) {
    step = sums.next(start)
    n = start
    loop counting max steps carry n {
        send n -> numbers
        n = sums.pair(n, step)
        m = sums.pair(step, n)
        collect m as all
        stop when n == 77
    }
    emit sums.total(all) as tensor
}
walk draw(start: i64) {
    token = sample(pick, llm.step(start) writes main)
    loop outer times rounds carry token {
        loop inner times 2 carry token {
            token = sample(pick, llm.step(token) writes main)
            send token -> windows
        }
    }
    emit token as action
}
walk show() { for n in numbers { emit n as scalar } }
walk look() { for w in windows { emit sums.total(w) as video } }
request run(start: i64) -> tensor, action, scalar, video {
    together { counting: count(start)  drawing: draw(start)  showing: show()  looking: look() }
}
"""


def compiled(text: str) -> tuple[Program | None, dict[str, str]]:
    """The program, and code -> message of every finding."""
    program, report, _ = load_text("mistake.walk", text)
    if program is not None and not report.failed:
        run_checks(program, report)
    return program, {found.rule.code: found.message for found in report.findings()}


def edited(*edits: tuple[str, str]) -> str:
    text = RIGHT
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def test_the_model_without_a_mistake_is_right() -> None:
    assert compiled(RIGHT)[1] == {}


@pytest.mark.parametrize(
    ("code", "names", "old", "new"),
    [
        # an edge to an unknown node, a typo in the name of an input, a node that nothing reaches, a join that never fires
        ("MC002", "sumz", "step = sums.next(start)", "step = sumz.next(start)"),
        ("MC002", "sums", "step = sums.next(start)", "step = sums.nxt(start)"),
        ("MC002", "strat", "step = sums.next(start)", "step = sums.next(strat)"),
        ("MC002", "nombers", "send n -> numbers", "send n -> nombers"),
        ("MC510", "look", "  looking: look() }", " }"),
        ("MC301", "absent", "step = sums.next(start)", "step = sums.next(start) when steps > 3"),
        # two producers of one input
        ("MC003", "step", "step = sums.next(start)", "step = sums.next(start)\n    step = sums.next(start)"),
        ("MC105", "numbers", "send token -> windows", "send token -> windows\n            send token -> numbers"),
        # a loop variable that the body never produces
        ("MC202", "n", "        n = sums.pair(n, step)\n", "        k = sums.pair(n, step)\n"),
        # a typo in what a loop gives
        ("MC002", "al", "sums.total(all)", "sums.total(al)"),
        ("MC206", "m", "sums.total(all)", "sums.next(m)"),
        # a bound of zero where at least one iteration has to run
        ("MC201", "0", "max steps", "max 0"),
        ("MC201", "steps", "param steps : int in 1..9 = 4", "param steps : int in 0..9 = 4"),
        # one node name twice, a back edge outside a loop
        ("MC001", "sums", "stream numbers", "node sums : stateless { op f(x: i64) -> y: i64 }\nstream numbers"),
        ("MC005", "later", "step = sums.next(start)", "step = sums.next(later)\n    later = sums.next(step)"),
        ("MC001", "outer", "loop inner", "loop outer"),
        # windows that cannot be
        ("MC401", "stride", "size = 3, stride = 1", "size = 3, stride = 4"),
        ("MC401", "stride", "size = 3, stride = 1", "size = 3, stride = 0"),
        ("MC401", "left", "sliding_window(size = 3, stride = 1)", "left_context(chunk = 2, left = 3)"),
        ("MC401", "chunk", "sliding_window(size = 3, stride = 1)", "left_context(chunk = 0, left = 0)"),
        ("MC404", "capacity", "overlap ok  capacity 8", "overlap ok  capacity 2"),
        # a stream that nobody takes from, or that has no other end
        ("MC411", "numbers", "        send n -> numbers\n", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_a_compile_error(code: str, names: str, old: str, new: str) -> None:
    found = compiled(edited((old, new)))[1]
    assert code in found, found
    assert names in found[code], found[code]


@pytest.mark.parametrize(
    "edits",
    [
        pytest.param([], id="a constant that two calls of a body read, an inner loop at the end of an outer one"),
        pytest.param([("int in 0..3 = 3", "int in 0..3 = 0")], id="no iteration"),
        pytest.param(
            [
                ("stream windows", "stream more : i64 by fixed(2) at_end partial capacity 4\nstream windows"),
                ("send n -> numbers", "send n -> numbers\n        send n -> more"),
                (
                    "walk show() { for n in numbers { emit n as scalar } }",
                    "walk show() { for n in numbers { emit n as scalar } }\nwalk also() { for p in more { emit sums.total(p) as text } }",
                ),
                ("-> tensor, action,", "-> tensor, text, action,"),
                ("showing: show()", "showing: show()  also: also()"),
            ],
            id="two streams from one walk",
        ),
        pytest.param(
            [
                ("collect m as all\n", "collect m as all\n        r = sums.next(m)\n        emit r as text\n"),
                ("-> tensor,", "-> text, tensor,"),
            ],
            id="one op of a node at two places",
        ),
    ],
)  # fmt: skip
async def test_it_works(edits: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, found = compiled(edited(*edits))
    assert program is not None and not found, found
    outcome = await agrees(program, {"start": 3}, tmp_path, monkeypatch)
    assert {event.modality for event in outcome.events} >= {"tensor", "action", "scalar"}


@pytest.mark.parametrize(
    ("code", "names", "toml"),
    [
        ("MC601", "sums", '[ranks.0]\ndevice = "cpu"\n[ranks.1]\ndevice = "cpu"\n[place]\nllm = 0\n'),
        ("MC606", "vocoder", '[ranks.0]\ndevice = "cpu"\n[place]\nllm = 0\nsums = 0\nvocoder = 0\n'),
        ("MC606", "3", 'default = 0\n[ranks.0]\ndevice = "cpu"\n[place]\nsums = 3\n'),
        ("MC608", "overwrite", '[ranks.0]\ndevice = "cpu"\n[ranks.1]\ndevice = "cpu"\n[place]\nllm = 0\nsums = 0\nsums = 1\n'),
        ("MC604", "share 1", 'default = 0\n[ranks.0]\n[ranks.1]\n[ranks.2]\n[place]\nllm = [0, 1]\nsums = [1, 2]\n'),
        ("MC609", "2", 'default = 0\n[ranks.0]\ndevice = "cpu"\n[ranks.2]\ndevice = "cpu"\n'),
        ("MC608", "0", 'default = 0\n[ranks.0]\ndevice = "cpu"\n[ranks.0]\ndevice = "cpu"\n'),
    ],
)  # fmt: skip
def test_a_placement_that_cannot_be_is_a_link_error(code: str, names: str, toml: str, tmp_path: Path) -> None:
    program, _ = compiled(RIGHT)
    assert program is not None
    report = Collector()
    placement = parse_placement(SourceFile("place.toml", toml), report)
    assert placement is None or link(plan_of(program), placement, tmp_path, report) is None
    found = {finding.rule.code: finding for finding in report.findings()}
    assert code in found, [(f.rule.code, f.message) for f in report.findings()]
    assert names in found[code].message
    assert found[code].primary.span.file == "place.toml"


def test_an_unknown_key_of_the_binding_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mistake.walk").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "mistake.yaml").write_text(
        "components: {llm: a.B, sums: a.C}\nmax_seq_len: 9\nmodalities: {audio: {rat: 24000}}\n", encoding="utf-8"
    )
    found = [finding.message for finding in load_model(tmp_path / "mistake.walk").checked.findings]
    assert any("max_seq_len" in message for message in found), found


def test_the_length_of_a_context_is_honoured(tmp_path: Path) -> None:
    """What a binding file of other systems calls `max_seq_len` is the context's own bound here."""
    program, _ = compiled(edited(("context main on kv max 256", "context main on kv max 5")))
    assert program is not None
    found = link(plan_of(program), Placement(), tmp_path, Collector())
    assert found is not None
    assert [context.max for context in found.contexts] == [5]
