"""Files that are wrong in ways that random damage rarely finds: endless, huge, deep, or valid to the parser and to nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mstarc.binding import read_binding
from mstarc.cli.guard import Failure
from mstarc.cli.packages import link_package
from mstarc.diagnostics.core import Collector
from mstarc.plan.placement import parse_placement
from mstarc.source import SourceFile
from mstarc.syntax.parser import parse_walk
from tests.adversarial.damage import limited
from tests.adversarial.mutations import places_of

ROOT = Path(__file__).resolve().parents[2]
LAUGHS = "a: &a [1]\n" + "".join(
    f"b{n}: &b{n} [{', '.join(['*b' + str(n - 1) if n else '*a'] * 9)}]\n" for n in range(9)
)
BINDINGS = {
    "a list that holds itself": ("config: {llm: {v: &a [*a]}}", "anchor twice"),
    "a mapping that holds itself": ("modalities: {audio: &m {rate: *m}}", "anchor twice"),
    "ten lines that stand for a billion values": (LAUGHS, "anchor twice"),
    "deep": ("config: {llm: {v: " + "[" * 2000, "nested too deeply"),
    "a number that JSON has not": ("config: {llm: {v: .inf}}", "not a finite number"),
    "a number of many digits": ("config: {llm: {v: 0x" + "f" * 5000 + "}}", "64 bits"),
    "a date": ("modalities: {audio: {rate: 2001-01-01}}", "is not a rate in Hz"),
    "bytes": ("modalities: {image: {rate: !!binary aGk=}}", "neither a number"),
    "a number as a key": ("modalities: {audio: {1: 2}}", "key that is not text"),
    "a bool that is none": ("config: {llm: {v: !!bool x}}", "is not YAML"),
    "a number without digits": ("config: {llm: {v: !!int ''}}", "is not YAML"),
    "a character beyond all numbers": ('externs: {a: "\\U99999999"}', "is not YAML"),
    "a time of too many digits": (f"%YAML 1.1\n---\nconfig: {{llm: {{v: {':'.join(['59'] * 200)}.5}}}}", "is not YAML"),
    "half a surrogate pair": ('externs: {a: "x.\\ud800"}', "not valid Unicode"),
}
PLACEMENTS = {
    "brackets": ("a=" + "[" * 100_000, "nested too deeply"),
    "digits": ("default=" + "9" * 5000, "too many digits"),
    "hexadecimal digits": ("default=0x" + "f" * 5000, "thousands of digits"),
    "a rank of many digits": (f"[ranks.{'9' * 5000}]", "not a rank's table"),
    "a device of foreign digits": ('[ranks.0]\ndevice="cuda:٣"', "cuda:٣"),
}


@pytest.mark.parametrize("name", BINDINGS)
def test_bindings(name: str) -> None:
    text, message = BINDINGS[name]
    report = Collector()
    with limited(name):
        assert read_binding(SourceFile("m.yaml", text), report) is None
    assert message in report.findings()[0].message


@pytest.mark.parametrize("name", PLACEMENTS)
def test_placements(name: str) -> None:
    text, message = PLACEMENTS[name]
    report = Collector()
    with limited(name):
        assert parse_placement(SourceFile("p.toml", text), report) is None
    assert message in report.findings()[0].message


def test_a_placement_of_many_lines_takes_time_for_each_once() -> None:
    text = "[ranks.0]\n[place]\n" + "\n".join(f"node{n} = 7" for n in range(5000))
    report = Collector()
    with limited("5000 wrong lines"):
        assert parse_placement(SourceFile("p.toml", text), report) is None
    found = report.findings()
    assert len(found) == 5000
    assert text.encode()[found[99].primary.span.start :].startswith(b"node99 = 7\n")


@pytest.mark.parametrize("prefix", ["not ", "- ", "if a then "])
def test_a_condition_behind_many_prefixes(prefix: str) -> None:
    text = (ROOT / "examples/hello/hello.walk").read_text(encoding="utf-8")
    assert "n == limit" in text
    report = Collector()
    with limited(prefix):
        parse_walk(SourceFile("m.walk", text.replace("n == limit", prefix * 100_000 + "n == limit")), report)
    assert "MC010" in {finding.rule.code for finding in report.findings()}


def test_plans_that_were_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """300 edits of plan.json: it links all the same, or the user is told that it does not."""
    whole = (ROOT / "generated/ask/plan.json").read_text(encoding="utf-8")
    awkward = [None, 0, -1, 1e9, "", "x", "a.b", "((", "1/0", "param:none", [], {}, True, [None], "9" * 500]
    refused = 0
    for seed in range(300):
        draw = random.Random(seed)
        plan = json.loads(whole)
        *outer, key = draw.choice([path for path in places_of(plan) if path])
        owner = plan
        for step in outer:
            owner = owner[step]
        owner[key] = draw.choice(awkward)
        if draw.random() < 0.2:
            del owner[key]
        (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        with limited(f"edit {seed} of {outer} {key}"):
            try:
                link_package(str(tmp_path), None)
            except Failure as failure:
                refused += 1
                assert (failure.status in (1, 2) and "plan" in f"{failure} {failure.help}") or "linked" in str(failure)
    capsys.readouterr()
    assert 100 < refused < 300


def test_a_plan_that_is_deep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text('{"format": 1, "x": ' + "[" * 100_000, encoding="utf-8")
    with pytest.raises(Failure, match="cannot be read"):
        link_package(str(tmp_path), None)
    assert "MC016" in (told := capsys.readouterr().err) and "nested too deeply" in told and len(told) < 2000
