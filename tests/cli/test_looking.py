"""`mstarc ir` without passes, `interpret` and `explain`."""

from __future__ import annotations

import json

import pytest

from mstarc.diagnostics.rules import RULES, rule_state
from mstarc.ir.text import parse_program
from tests.cli.conftest import HELLO, Command


def test_ir_is_text_that_reads_back(mstarc: Command) -> None:
    ran = mstarc("ir", HELLO)
    assert parse_program(ran.out).model == "hello"
    assert mstarc("ir", "examples/hello/generated").out == ran.out, "a package knows its spec"
    assert json.loads(mstarc("ir", HELLO, "--format", "json").out)["program"]["model"] == "hello"


@pytest.mark.parametrize("verb", ["ir", "graph", "interpret"])
def test_what_is_no_spec(mstarc: Command, verb: str, tmp_path: object) -> None:
    for path in ("nowhere.walk", "specs"):
        ran = mstarc(verb, path)
        assert (ran.status, ran.out) == (2, "")
    bad = f"{tmp_path}/bad.walk"
    with open(bad, "w") as file:
        file.write("model ???\n")
    ran = mstarc(verb, bad)
    assert (ran.status, ran.out) == (1, "")
    assert "error[MC01" in ran.err


def test_interpret_shows_events_and_ends(mstarc: Command) -> None:
    ran = mstarc("interpret", HELLO, "--input", "start=3", "--param", "max_steps=5", "--format", "json")
    assert ran.status == 0, ran.err
    out = json.loads(ran.out)
    modalities = [event["modality"] for event in out["events"]]
    assert (modalities.count("tensor"), modalities.count("scalar")) == (5, 3)
    assert out["causes"] == {"count.counting": "max"} and out["finish_reason"] == "length"
    text = mstarc("interpret", HELLO, "--input", "start=3", "--param", "max_steps=5").out
    assert "5 tensor\n3 scalar\n" in text and "loop count.counting ended by its bound" in text
    tensors = [str(e["value"]) for e in out["events"] if e["modality"] == "tensor"]
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("tensor ")] == tensors
    assert mstarc("interpret", HELLO, "--input", "start=4", "--param", "max_steps=5").out != text


def test_interpret_takes_params_as_call_does(mstarc: Command) -> None:
    by_name = mstarc("interpret", HELLO, "--input", "start=3", "--param", "max_steps=5")
    alone = mstarc("interpret", HELLO, "--input", "start=3", "--max-steps", "5")
    assert (alone.status, alone.out) == (0, by_name.out)
    twice = mstarc("interpret", HELLO, "--input", "start=3", "--param", "max_steps=5", "--max-steps", "5")
    assert (twice.status, "param `max_steps` is given twice" in twice.err) == (2, True)
    unknown = mstarc("interpret", HELLO, "--input", "start=3", "--steps", "5")
    assert (unknown.status, "steps" in unknown.err) == (2, True)


def test_interpret_a_conversation(mstarc: Command) -> None:
    args = ("interpret", "specs/ask.walk", "--input", "messages=hello", "--param", "max_tokens=4", "--format", "json")
    text_only = json.loads(mstarc(*args).out)
    assert [e["walk"] for e in text_only["events"]] == ["answer"] * 4
    both = json.loads(mstarc(*args, "--wants", "text", "--wants", "audio").out)
    assert {e["modality"] for e in both["events"]} == {"text", "audio"}
    assert [e for e in both["events"] if e["modality"] == "text"] == text_only["events"]
    assert [e for e in both["events"] if e["modality"] == "audio"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "needs the input `start`"),
        (("--input", "start=x"), "input `start` must be i64, not text"),
        (("--input", "start=true"), "input `start` must be i64, not true or false"),
        (("--input", "start=9223372036854775808"), "input `start` must be in the range of i64"),
        (("--input", "start=[1]"), "input `start` has 1 dims; it must have 0"),
        (("--text", "hello"), "unknown parameter `text`; there are `max_steps`, and the inputs `start`"),
        (("--input", "start=1", "--start", "2"), "unknown parameter `start`; `start` is an input"),
        (("--input", "stat=1"), "takes no input `stat`; did you mean `start`?"),
        (("--input", "start=1", "--param", "max_steps=0"), "max_steps"),
        (("--input", "start=1", "--param", "bogus=0"), "bogus"),
        (("--input", "start=1", "--request", "other"), "other"),
        (("--input", "start=1", "--wants", "audio"), "audio"),
    ],
)
def test_interpret_refuses(mstarc: Command, args: tuple[str, ...], says: str) -> None:
    ran = mstarc("interpret", HELLO, *args)
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err


def test_explain(mstarc: Command) -> None:
    page = mstarc("explain", "MC202")
    assert page.status == 0 and "Fails" in page.out and "MC202" in page.out
    assert mstarc("explain", "mc202").out == page.out
    assert mstarc("explain", "carry-incomplete").out == page.out
    assert json.loads(mstarc("explain", "MC202", "--format", "json").out)["page"] == page.out
    wrong = mstarc("explain", "MC2O2")
    assert (wrong.status, "did you mean MC202" in wrong.err) == (2, True)
    other = mstarc("explain", "MC999")
    assert (
        other.status == 2 and "`mstarc explain --list` shows all codes" in other.err and "did you mean" not in other.err
    )
    assert mstarc("explain").status == 2
    assert mstarc("explain", "MC202", "--list").status == 2


def test_every_rule_is_listed(mstarc: Command) -> None:
    listed = {line.split()[0] for line in mstarc("explain", "--list").out.splitlines()}
    rows = json.loads(mstarc("explain", "--list", "--format", "json").out)
    assert listed == {row["code"] for row in rows} >= set(RULES)
    assert "MC606" in listed, "rules of linking are explained, too"
    for code in sorted(listed):
        assert mstarc("explain", code).status == 0


def test_reserved_codes_say_why_nothing_reports_them(mstarc: Command) -> None:
    reserved = [code for code in RULES if rule_state(code) == "reserved"]
    assert reserved
    for code in reserved:
        page = mstarc("explain", code).out
        assert page.startswith(f"# {code} {RULES[code].name}\n")
        assert "\n## Why nothing reports it\n" in page and len(page.splitlines()) < 20
