"""The text form: the frame, several labels, several files, colour only when asked for."""

from __future__ import annotations

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Diagnostic, Fix, Label
from mstarc.diagnostics.text import count, render, render_all
from mstarc.source import SourceFile, Span

TEXT = """walk w(z0: f32[8], fast: bool) {

  loop denoise times 10 carry z = z0 {
    c = embed(obs)
    when fast { z = dit(z, c) }
  }
}
"""
SOURCE = SourceFile("specs/pi05.walk", TEXT)


def at(words: str, text: str = TEXT, file: str = "specs/pi05.walk") -> Span:
    start = len(text[: text.index(words)].encode())
    return Span(file, start, start + len(words.encode()))


def test_the_frame() -> None:
    finding = Diagnostic(
        rules.MC202,
        "loop `denoise` does not rebind `z` when `fast` is false",
        Label(at("when fast"), "no value for `z` on the other path"),
        secondary=(Label(at("z = z0"), "`z` is carried from one iteration to the next"),),
        notes=("iteration 2 would wait for a value that never arrives",),
        help="bind `z` in an `else` arm, or move `dit` out of the branch",
    )
    assert (
        render(finding, {SOURCE.path: SOURCE})
        == """error[MC202]: loop `denoise` does not rebind `z` when `fast` is false
 --> specs/pi05.walk:5:5
  |
3 |   loop denoise times 10 carry z = z0 {
  |                               ------ `z` is carried from one iteration to the next
4 |     c = embed(obs)
5 |     when fast { z = dit(z, c) }
  |     ^^^^^^^^^ no value for `z` on the other path
  |
  = note: iteration 2 would wait for a value that never arrives
  = help: bind `z` in an `else` arm, or move `dit` out of the branch
  = see:  mstarc explain MC202
"""
    )


def test_labels_on_one_line_hang_below_each_other() -> None:
    text = "y = a.f(x, z)\n"
    source = SourceFile("m.walk", text)
    labels = (Label(at("a.f", text, "m.walk"), "this op"), Label(at("z", text, "m.walk"), "is one too many"))
    finding = Diagnostic(rules.MC004, "two arguments", Label(at("x", text, "m.walk"), "one"), labels)
    assert (
        render(finding, {"m.walk": source})
        == """error[MC004]: two arguments
 --> m.walk:1:9
  |
1 | y = a.f(x, z)
  |     --- ^  - is one too many
  |     |   one
  |     this op
  |
  = see:  mstarc explain MC004
"""
    )


def test_lines_far_apart_and_other_files() -> None:
    text = "\n" * 98 + "abc\n\n\nx = y\n"
    walk, yaml = SourceFile("m.walk", text), SourceFile("m.yaml", "config:\n  a: 1\n")
    finding = Diagnostic(
        rules.MC905,
        "not there",
        Label(at("x = y", text, "m.walk")),
        (Label(at("abc", text, "m.walk"), "like this"), Label(Span("m.yaml", 0, 6), "`config` is here")),
    )
    assert (
        render(finding, {"m.walk": walk, "m.yaml": yaml})
        == """error[MC905]: not there
   --> m.walk:102:1
    |
 99 | abc
    | --- like this
...
102 | x = y
    | ^^^^^
    |
   ::: m.yaml:1:1
    |
  1 | config:
    | ------ `config` is here
    |
    = see:  mstarc explain MC905
"""
    )


def test_columns_count_characters_and_underlines_count_cells() -> None:
    text = "\té = 漢字 + x\n"
    source = SourceFile("m.walk", text)
    shown = render(Diagnostic(rules.MC002, "m", Label(at("x", text, "m.walk"), "here")), {"m.walk": source})
    assert "--> m.walk:1:11" in shown
    row, under = shown.split("\n")[3:5]
    assert row == "1 |     é = 漢字 + x"
    assert under == "  |                ^ here"  # 4 for the tab, 2 for each wide character


def test_control_characters_never_reach_the_terminal() -> None:
    text = "x = \x1b[31m\u202e evil\n"
    source = SourceFile("m.walk", text)
    shown = render(Diagnostic(rules.MC010, "m", Label(Span("m.walk", 0, 1))), {"m.walk": source})
    assert "\x1b" not in shown and "\u202e" not in shown


def test_colour_only_when_asked_for() -> None:
    finding = Diagnostic(rules.MC006, "unused", Label(at("c = embed"), "here"), help="bind `_`")
    plain = render(finding, {SOURCE.path: SOURCE})
    coloured = render(finding, {SOURCE.path: SOURCE}, colour=True)
    assert "\x1b" not in plain and "\x1b[1;33mwarning[MC006]" in coloured
    import re

    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_a_finding_without_a_place() -> None:
    shown = render(Diagnostic(rules.MC513, "no request", Label(Span("", 0, 0))), {})
    assert shown == "error[MC513]: no request\n  = see:  mstarc explain MC513\n"


def test_a_span_over_lines_and_an_empty_one_show_their_start() -> None:
    shown = render(Diagnostic(rules.MC010, "m", Label(Span(SOURCE.path, 0, len(TEXT)))), {SOURCE.path: SOURCE})
    assert "  | " + "^" * len(TEXT.split("\n")[0]) in shown
    end = len(TEXT)
    assert f"--> {SOURCE.path}:8:1" in render(
        Diagnostic(rules.MC010, "m", Label(Span(SOURCE.path, end, end))), {SOURCE.path: SOURCE}
    )


def test_counts_and_order() -> None:
    report = Collector()
    report.report(rules.MC006, "b", Span("m.walk", 5, 6))
    report.report(rules.MC002, "a", Span("m.walk", 1, 2), subject="x")
    report.report(rules.MC004, "cascade", Span("m.walk", 3, 4), subject="x")
    report.report(rules.MC002, "a", Span("m.walk", 1, 2), subject="x")
    found = report.findings()
    assert [d.rule.code for d in found] == ["MC002", "MC006"]
    assert count(found) == "1 error, 1 warning"
    assert render_all(found, {}).endswith("\n1 error, 1 warning\n")
    assert render_all((), {}) == ""


def test_a_fix_is_told_with_its_grade() -> None:
    fix = Fix("delete `c`", ((at("c = embed(obs)"), ""),), "safe")
    shown = render(Diagnostic(rules.MC006, "m", Label(at("c = embed")), fix=fix), {SOURCE.path: SOURCE})
    assert "= fix: delete `c` (safe)" in shown


def test_of_a_long_line_the_part_around_its_label_is_shown() -> None:
    for before, after in ((0, 5000), (30, 500), (4000, 5000), (4000, 3), (4000, 0)):
        text = "é" * before + "fault" + "x" * after
        finding = Diagnostic(rules.MC010, "m", Label(at("fault", text, "f")))
        shown = render(finding, {"f": SourceFile("f", text)}).splitlines()
        assert f"--> f:1:{before + 1}" in shown[1] and all(len(line) < 220 for line in shown)
        line, marks = shown[3], shown[4]
        assert line[marks.index("^") : marks.rindex("^") + 1] == "fault"
        assert ("…fault" in line.replace("é", "")) == (before > 40) and line.endswith("…") == (after > 160)


def test_a_label_that_is_longer_than_what_is_shown() -> None:
    finding = Diagnostic(rules.MC010, "m", Label(Span("f", 100, 900)))
    shown = render(finding, {"f": SourceFile("f", "x" * 1000)}).splitlines()
    assert "^" in shown[4] and all(len(line) < 220 for line in shown)
