"""Errors of syntax: the code, the place and the words; and that one slip leaves the other declarations checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.diagnostics.core import Collector, Diagnostic
from mstarc.passes.lower import lower
from mstarc.source import SourceFile
from mstarc.syntax import ast
from mstarc.syntax.parser import parse_walk

ROOT = Path(__file__).resolve().parents[2]
NODE = "node a : stateless { op f(x: i64) -> y: i64 }\n"
REQUEST = "request r(x: i64) -> tensor { w(x) }\n"


def parse(text: str) -> tuple[ast.Model | None, tuple[Diagnostic, ...]]:
    report = Collector()
    return parse_walk(SourceFile("t.walk", text), report), report.findings()


def only(text: str) -> tuple[Diagnostic, str]:
    """The one finding of a text, and the text under it."""
    _, found = parse(text)
    assert len(found) == 1, [d.message for d in found]
    span = found[0].primary.span
    return found[0], text.encode()[span.start : span.end].decode()


def in_walk(body: str) -> str:
    return f"model m\n{NODE}walk w(x: i64) {{ {body} }}\n{REQUEST}"


@pytest.mark.parametrize(
    ("body", "code", "under", "words"),
    [
        ("emit a.f(x) tensor", "MC010", "tensor", "`tensor` cannot stand here"),
        ("emit as tensor", "MC010", "as", "`as` cannot stand here"),
        ("walk = a.f(x)", "MC011", "walk", "`walk` is a word of the language"),
        ("y = a.f(stream)", "MC011", "stream", "`stream` is a word of the language"),
        ("y = a.f(x?)", "MC010", "?", "`?` stands in types only"),
        ("y = x if x else 1", "MC010", "else", "conditional expressions begin with `if`"),
        ("y = a.f(x if x else 1)", "MC010", "if", "conditional expressions begin with `if`"),
        ("y = 30ms", "MC010", "30ms", "the number 30 runs into `ms`"),
        ("y = a.f(1 $ 2)", "MC010", "$", "the character `$` has no meaning"),
        ("y = a.f(1 \x00 2)", "MC010", "\x00", "the character U+0000 has no meaning"),
        ('y = a.f("abc)', "MC010", '"abc) }', "this text does not end on its line"),
        ("stop when x = 1", "MC010", "=", "`=` gives a name its value"),
        ("loop l times 2 carry x, { x = a.f(x) }", "MC010", "{", "`{` cannot follow a comma"),
        (f"y = {10**40}", "MC010", str(10**40), "this number is too large"),
        ("y = 1e999", "MC010", "1e999", "this number is too large"),
        ("y = 9223372036854775808", "MC010", "9223372036854775808", "this number is too large"),
    ],
)
def test_what_is_said(body: str, code: str, under: str, words: str) -> None:
    found, text = only(in_walk(body))
    assert (found.rule.code, text) == (code, under)
    assert words in found.message


@pytest.mark.parametrize(
    ("text", "under", "message", "help_text"),
    [
        (in_walk("loop l carry x { x = a.f(x) }"), "carry", "loop `l` has no bound", "`loop l times N`"),
        (in_walk("loop l { x = a.f(x) }"), "{", "loop `l` has no bound", "`loop l max N`"),
        (in_walk("loop l max 3 carry x { if x == 1 { stop } x = a.f(x) }"), "if", "`if` cannot", "`stop when x == 1`"),
        (in_walk("loop l max 3 carry x { stop x = a.f(x) }"), "x", "`stop` does not say when", "`stop when CONDITION`"),
        (in_walk("y = if x then 1 else 2 stop }"), "}", "`stop` does not say when", "`stop when CONDITION`"),
        ("model m\nrequest r(x: i64) -> text { if x { w(x) } else if x { v(x) } }", "if", "`else if`", "`else { if"),
        ("model m\nparam p : int in 1...48 = 8", ".", "a range has two dots", "`LOW..HIGH`"),
        ("model m\nparam p : int in 1....48", "..", "a range has two dots", "`LOW..HIGH`"),
        ("model m\nparam p : int = 3 in 1..48", "in", "`in` cannot", "a param has each clause once, in this order"),
        ("model m\ncontext c on k when p max 3", "max", "`max` cannot", "in this order: `on`, `max`, `when`"),
        ("model m\nstream s : i64 by fixed(2) capacity 16 overlap ok", "overlap", "`overlap` cannot", "in this order"),
        (in_walk("return a.f(x)"), "return", "`return` is no statement", "a walk gives what its `-> NAME: TYPE` names"),
        (
            in_walk("while x > 1 { }"),
            "while",
            "`while` is no statement",
            "`loop NAME max N { stop when CONDITION ... }`",
        ),
        (in_walk("loop l max 3 carry x { break }"), "break", "`break` is no statement", "`stop when CONDITION`"),
        (in_walk("print x"), "print", "`print` is no statement", "`emit VALUE as MODALITY`"),
        (in_walk("let y = 3"), "let", "`let` cannot stand in a walk", "`NAME = ...`"),
        (in_walk("y = x && x"), "&", "`&` has no meaning", "`and`"),
        (in_walk("stop when !x"), "!", "`!` has no meaning", "`not`"),
        (in_walk("y = x ** 2"), "*", "`**` is no operator", "multiply"),
        (in_walk("y += 1"), "+", "`+` cannot", "`y = ...`; a name is bound once"),
        (in_walk("y : i64 = 3"), ":", "`:` cannot", "`y = ...`"),
        (in_walk("emit x"), "}", "this `emit` does not say as what", "`emit VALUE as text`"),
        (in_walk("send s <- x  emit x as text"), "emit", "`send` before this does not say", "`send VALUE -> STREAM`"),
        (in_walk("send x"), "}", "`send` before this does not say", "`send VALUE -> STREAM`"),
        (in_walk("send x to s"), "to", "`to` cannot", "`send VALUE -> STREAM`"),
        ("model m\nwalk w(x) { }", ")", "`x` has no type", "`x: i64`"),
        ("model m\nrequest r(x: i64) -> text { for i in 0..3 { w(x) } }", "..", "`..` cannot", "`loop NAME times N`"),
        ("model m\nparam p : float = 0,5", ",", "`,` cannot", "`0.5`"),
        ("model m\nparam p : float = .5", ".", "`.` cannot", "`0.5`"),
        ("model m\ndef w(x): i64", "def", "`def` cannot", "declarations begin with `config`"),
        (
            "model m\nstream s : i64 by fixed(2) at_end drop at_end drop",
            "at_end",
            "`at_end` cannot",
            "each clause once",
        ),
    ],
)
def test_slips_that_have_a_name(text: str, under: str, message: str, help_text: str) -> None:
    found, shown = only(text)
    assert shown == under and message in found.message and help_text in (found.help or "")


def test_a_missing_clause_is_no_matter_of_order() -> None:
    found, _ = only("model m\nstream s : i64 capacity 4")
    assert found.help is None and "`by`" in found.primary.text


def test_the_label_says_what_could_stand_there() -> None:
    found, _ = only(in_walk("emit a.f(x) tensor"))
    assert found.primary.text == "due here: an operator or `as`"
    found, _ = only("model m\nstream s : i64 by fixed(2) capacit 4")
    assert "`capacity`" in found.primary.text and "`at_end`" in found.primary.text
    found, _ = only("model m\nparam p = 3")
    assert found.primary.text == "due here: `:`"


def test_a_trailing_comma() -> None:
    found, text = only("model m\nextern f(x: i64) -> y: i64,\nlet a = 1")
    assert text == "," and found.message == "nothing follows this comma"


def test_too_many_braces() -> None:
    found, text = only(f"model m\n{NODE.strip()} }}\nlet a = 1")
    assert text == "}" and found.message == "this `}` closes nothing"


def test_a_missing_brace_is_shown_where_it_opened() -> None:
    text = f"model m\n{NODE}walk w(x: i64) {{\n    emit a.f(x) as tensor\n\n{REQUEST}"
    model, (found,) = parse(text)
    assert found.primary.span.start == text.index("{\n    emit")
    assert found.message == "`{` is never closed: the next declaration begins before its `}`"
    assert model is not None and [type(d) for d in model.decls] == [ast.Node, ast.Request]


def test_an_indented_word_of_declarations_does_not_cut_a_walk_short() -> None:
    found, text = only(in_walk("\n    let y = a.f(x)\n    emit y as tensor\n"))
    assert text == "let" and "`let` cannot stand in a walk" in found.message


def test_one_slip_a_declaration_is_reported_and_the_rest_is_kept() -> None:
    text = (
        "model m\nconfig { a = }\nparam p : int = 3\nlet = 4\nnode n : stateless { op f( -> y: i64 }\n"
        "walk w() { emit }\nwalk v() { }\nrequest r() -> text { v() }\n"
    )
    model, found = parse(text)
    assert model is not None and not model.complete
    assert [type(d) for d in model.decls] == [ast.Param, ast.Walk, ast.Request]
    assert [text[: d.primary.span.start].count("\n") + 1 for d in found] == [2, 4, 5, 6]


LM = (ROOT / "tests/passes/models/bagel.walk").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "begins",
    [
        "let guided",
        "param steps",
        "param cfg_text",
        "param renorm ",
        "type image_part",
        "extern layout",
        "cache ",
        "context main",
        "sampler words",
        "node llm",
        "walk draw",
    ],
)
def test_what_is_lost_with_a_declaration_gives_no_second_finding(begins: str) -> None:
    """A bracket too many in one declaration of a large model: nothing is said of what uses it."""
    assert LM.count(f"\n{begins}") == 1
    report = Collector()
    model = parse_walk(SourceFile("t.walk", LM.replace(f"\n{begins}", f"\n{begins.replace(' ', ' ) ', 1)}")), report)
    assert model is not None and not model.complete and lower(model, report) is None
    assert [d.rule.code for d in report.findings()] == ["MC010"], [d.message for d in report.findings()]


def test_a_declaration_word_inside_of_brackets_does_not_begin_one() -> None:
    found, text = only("model m\nwalk w(context: i64) { emit context as tensor }\nlet a = 1")
    assert (found.rule.code, text) == ("MC011", "context")


@pytest.mark.parametrize("text", ["", "# nothing\n", "let a = 1", "model", "model\n", "model 3", "\ufeff", "}"])
def test_a_file_begins_with_its_model(text: str) -> None:
    model, found = parse(text)
    assert model is None
    assert [d.rule.code for d in found] == ["MC010"]


def test_depth_is_bounded() -> None:
    deep = "(" * 500 + "1" + ")" * 500
    for value in (deep, "-" * 500 + "1", "not " * 500 + "true", " + ".join("a" * 500), "[" * 500, "f(" * 500):
        _, found = parse(f"model m\nlet a = {value}\nlet b = 1")
        assert len(found) == 1, value[:20]
        assert found[0].rule.code == "MC010"
    _, found = parse("model m\nwalk w() {" + "parallel {" * 500 + "}" * 501)
    assert "nested deeper" in found[0].message
    chain = "if a then 1 else " * 500 + "2"
    _, (error,) = parse(f"model m\nlet a = {chain}")
    assert "nested deeper" in error.message
