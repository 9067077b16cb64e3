"""The binding file: every finding has a code, a key and its line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mstarc.binding import Bound, check_binding, read_binding, with_config
from mstarc.binding_file import Binding
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Block, Loop, Program, Request, Value, Walk
from mstarc.ir.declarations import Config, Context, ExternDecl, Node, Param
from mstarc.ir.types import ListOf, Lit, Scalar, ValueId
from mstarc.source import SourceFile

GOOD = """# a comment
config:
  llm: {vocab: 49152, eos: [1, 2], name: "x", tied: true, theta: 1.0e5}
checkpoints:
  lm: {package: llm_weights, file: a.gguf, sha256: "%s"}
  ear: {path: /srv/ear}
components:
  llm: {class: pack.lm.Lm, checkpoint: lm}
  voc: pack.voc.Voc
externs:
  cut: pack.text.cut
modalities:
  text: {decoder: pack.text.decoder, finish: write.words, usage: main}
chat: {request: chat, input: messages}
""" % ("0a" * 32)


def read(text: str) -> tuple[Bound | None, list[tuple[str, str, int, str]]]:
    """The binding and (code, key under the label, line, message) of the findings."""
    source, report = SourceFile("m.yaml", text), Collector()
    bound = read_binding(source, report)
    rows = []
    for d in report.findings():
        span = d.primary.span
        key = text.encode()[span.start : span.end].decode()
        rows.append((d.rule.code, key, source.line_of(span.start), d.message))
    return bound, rows


def test_a_good_one() -> None:
    bound, found = read(GOOD)
    assert found == [] and bound is not None
    binding = bound.binding
    assert binding.value("llm.vocab") == 49152 and binding.value("llm.eos") == [1, 2]
    assert binding.value("llm.none") is None and binding.value("none.vocab") is None
    assert binding.components["llm"].checkpoint == "lm" and binding.components["voc"].dotted == "pack.voc.Voc"
    assert binding.checkpoints["lm"].package == "llm_weights" and binding.checkpoints["ear"].file is None
    assert binding.externs == {"cut": "pack.text.cut"}


def test_an_empty_one() -> None:
    for text in ("", "# nothing\n", "config:\n"):
        bound, found = read(text)
        assert found == [] and bound is not None and bound.binding == Binding()


@pytest.mark.parametrize(
    ("text", "code", "key", "line"),
    [
        ("config: {}\ncomponets:\n  a: p.A\n", "MC901", "componets", 2),
        ("components:\n  a: {class: p.A, chekpoint: w}\n", "MC901", "chekpoint", 2),
        ("checkpoints:\n  w:\n    path: /x\n    sha: 1\n", "MC901", "sha", 4),
        ("components:\n  a: 5\n", "MC902", "a", 2),
        ("components:\n  a: nodot\n", "MC902", "a", 2),
        ("components:\n  a: os; rm\n", "MC902", "a", 2),
        ("components:\n  a: {checkpoint: w}\n", "MC902", "a", 2),
        ("components:\n  a:\n    class: p.A\n    checkpoint: 3\n", "MC902", "checkpoint", 4),
        ("checkpoints:\n  w: {path: /x, sha256: abc}\n", "MC902", "sha256", 2),
        ("checkpoints:\n  w: {path: /x, package: y}\n", "MC902", "w", 2),
        ("checkpoints:\n  w: {file: y}\n", "MC902", "w", 2),
        ("config:\n  a: {b: {c: 1}}\n", "MC902", "b", 2),
        ("config:\n  a: {b: 2024-01-01}\n", "MC902", "b", 2),
        ("config: 3\n", "MC902", "config", 1),
        ("externs: [a]\n", "MC902", "externs", 1),
        ("chat: {request: r, input: i, audio: true}\n", "MC901", "audio", 1),
        ("chat: {request: r}\n", "MC902", "chat", 1),
        ("modalities:\n  text: {finsh: a.b}\n", "MC901", "finsh", 2),
        ("modalities:\n  audio: {rate: 0}\n", "MC902", "rate", 2),
        ("modalities:\n  audio: {voices: [1]}\n", "MC902", "voices", 2),
        ("modalities:\n  action: {request: r, observe: a.b, units: a.b}\n", "MC902", "action", 2),
        ("7: 8\n", "MC902", "7", 1),
        ("config:\n  a: {[[b]]: 1}\n", "MC906", "[", 2),
        ("cost:\n  sizes: {T: [1]}\n", "MC902", "T", 2),
        ("config: {}\nconfig: {}\n", "MC906", "c", 2),
        ("config: [1\nexterns: {}\n", "MC906", ":", 2),
        ("- a\n", "MC906", "-", 1),
        ("config: !!python/object:os.system {}\n", "MC906", "!", 1),
    ],
)
def test_findings(text: str, code: str, key: str, line: int) -> None:
    bound, found = read(text)
    assert bound is None
    assert [row[:3] for row in found] == [(code, key, line)], found


def test_the_nearest_key_is_offered() -> None:
    report = Collector()
    read_binding(SourceFile("m.yaml", "modalites: {}\n"), report)
    assert report.findings()[0].help == "did you mean `modalities`?"


PROGRAM = Program(
    "m",
    configs=(Config("vocab", "llm.vocab"), Config("eos", "llm.eos"), Config("two", expr=Lit(2))),
    nodes=(Node("llm", "stateless"), Node("voc", "stateless")),
    contexts=(Context("main", "kv", Lit(8), None),),
    walks=(Walk("write", (), (), Block((Loop("words", "times", Lit(2), (), (), Block()),))),),
    params=(Param("voice", Scalar("text")),),
    externs=(ExternDecl("cut", (), ()),),
    requests=(Request("chat", (Value(ValueId(0), "messages", Scalar("text"), "host"),), (("text", False),), Block()),),
)


def against(text: str, program: Program = PROGRAM) -> list[tuple[str, str]]:
    bound, found = read(text)
    assert bound is not None, found
    report = Collector()
    check_binding(bound, program, report)
    return [(d.rule.code, d.subject) for d in report.findings()]


def test_what_the_model_declares_is_bound_and_nothing_else() -> None:
    assert against(GOOD) == []
    assert against(GOOD.replace("  voc: pack.voc.Voc\n", "")) == [("MC903", "voc")]
    assert against(GOOD.replace("  cut: pack.text.cut\n", "")) == [("MC903", "cut")]
    assert against(GOOD.replace("  voc:", "  vok:")) == [("MC903", "voc"), ("MC904", "vok")]
    assert against(GOOD.replace("  cut:", "  ct:")) == [("MC903", "cut"), ("MC904", "ct")]
    assert against(GOOD.replace("vocab:", "vocabs:")) == [("MC905", "llm.vocab")]
    assert against(GOOD.replace("config:\n  llm:", "config:\n  lm:")) == [("MC905", "llm.vocab"), ("MC905", "llm.eos")]
    assert against(GOOD.replace("  text:", "  txt:")) == [("MC904", "txt")]
    assert against(GOOD.replace("request: chat", "request: chta")) == [("MC904", "chta")]
    assert against(GOOD.replace("input: messages", "input: message")) == [("MC904", "message")]
    assert against(GOOD.replace("write.words", "write.wrods")) == [("MC904", "write.wrods")]
    assert against(GOOD.replace("usage: main", "usage: mian")) == [("MC904", "mian")]
    assert against(GOOD.replace("checkpoint: lm", "checkpoint: ml")) == [("MC907", "ml")]


SPOKEN = replace(
    PROGRAM,
    requests=(
        Request("say", (Value(ValueId(0), "words", Scalar("text"), "host"),), (("audio", False),), Block()),
        Request("act", (Value(ValueId(0), "n", Scalar("int"), "host"),), (("action", False),), Block()),
        *PROGRAM.requests,
    ),
)
AUDIO = (
    "  audio: {rate: 24000, voices: [a], request: say, input: words, voice: voice, finish: write.words, usage: main}\n"
)
ACTION = "  action: {request: act, observe: a.H.o, units: a.H.u, robot: a.H.r}\nchat:"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("request: say", "request: chat", "`modalities.audio.request` names `chat`, which is no request that gives audio"),
        ("input: words", "input: word", "`modalities.audio.input` names `word`, which is no text that request `say` takes"),
        ("voice: voice", "voice: voise", "`modalities.audio.voice` names `voise`, which is no param of the model"),
        ("request: act", "request: say", "`modalities.action.request` names `say`, which is no request that gives action"),
    ],
)  # fmt: skip
def test_what_serves_a_modality_is_of_the_model(old: str, new: str, named: str) -> None:
    text = GOOD.replace("chat:", AUDIO + ACTION)
    assert against(text, SPOKEN) == []
    bound, _ = read(text.replace(old, new))
    assert bound is not None
    report = Collector()
    check_binding(bound, SPOKEN, report)
    (found,) = report.findings()
    assert (found.rule.code, found.message) == ("MC904", named)
    span = found.primary.span
    assert text.replace(old, new).encode()[span.start : span.end].decode() == old.partition(":")[0]


def test_config_values_become_literals() -> None:
    bound, _ = read(GOOD)
    assert bound is not None
    program = with_config(PROGRAM, bound.binding)
    assert [c.expr for c in program.configs] == [Lit(49152), ListOf((Lit(1), Lit(2))), Lit(2)]
    assert PROGRAM.configs[0].expr is None
