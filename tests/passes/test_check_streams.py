"""MC401 to MC408: numbers of policies, capacities, tails, and streams that are taken together."""

from __future__ import annotations

import pytest

from tests.passes.sources import NODES, codes, findings, messages, piped

ONE = "for u in s { emit a.f(u) as tensor }"


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("fixed(3)", []),
        ("fixed(0)", ["MC401"]),
        ("fixed(n)", ["MC401"]),
        ("sliding_window(4, 4) at_end drop", []),
        ("sliding_window(4, 0) at_end drop", ["MC401"]),
        ("sliding_window(3, 4) at_end drop", ["MC401"]),
        ("left_context(3, 3) at_end drop overlap ok", []),
        ("left_context(3, 4) at_end drop overlap ok", ["MC401"]),
    ],
)
def test_policy_numbers(policy: str, expected: list[str]) -> None:
    text = piped(f"stream s : i64 by {policy} capacity 16", declarations="param n : int in 1..4 = 2\n")
    assert codes(text) == expected


@pytest.mark.parametrize(
    ("policy", "least"),
    [
        ("fixed(3)", 3),
        ("sliding_window(5, 2) at_end drop overlap ok", 5),
        ("left_context(5, 2) at_end drop overlap ok", 7),
    ],
)
def test_least_capacities(policy: str, least: int) -> None:
    assert codes(piped(f"stream s : i64 by {policy} capacity {least}")) == []
    (message,) = messages(piped(f"stream s : i64 by {policy} capacity {least - 1}"), "MC404")
    assert f"is below {least} = " in message and f"capacity {least - 1} " in message


def test_phrases() -> None:
    cut = "extern ends(state: text, item: i64) -> state: text, cut: bool\n"
    assert codes(piped("stream s : i64 by phrase(ends, max = 6) at_end partial capacity 6", declarations=cut)) == []
    assert codes(piped("stream s : i64 by phrase(ends, max = 6) at_end partial capacity 5", declarations=cut)) == [
        "MC404"
    ]
    assert codes(piped("stream s : i64 by phrase(ends, max = 6) capacity 6", declarations=cut)) == ["MC406"]
    assert codes(piped("stream s : i64 by phrase(ends, max = 6) at_end pad(zero) capacity 6", declarations=cut)) == [
        "MC401"
    ]


def test_a_capacity_over_a_param_counts_from_its_low_end() -> None:
    stream = "stream s : i64 by fixed(3) capacity n + 1"
    assert codes(piped(stream, declarations="param n : int in 2..8 = 8\n")) == []
    assert codes(piped(stream, declarations="param n : int in 1..8 = 8\n")) == ["MC404"]
    assert codes(piped(stream, declarations="param n : int = 8\n")) == ["MC405"]


def test_tails_are_declared_unless_none_can_be() -> None:
    sends = "loop l times {} carry x {{ send x -> s  x = a.f(x) }}"
    for items, expected in ((8, []), (9, ["MC406"])):
        assert codes(piped("stream s : i64 by fixed(4) capacity 8", sends=sends.format(items))) == expected
    stopping = "loop l max 8 carry x { stop when x == 0  send x -> s  x = a.f(x) }"
    assert codes(piped("stream s : i64 by fixed(4) capacity 8", sends=stopping)) == ["MC406"]
    assert codes(piped("stream s : i64 by fixed(4) at_end drop capacity 8", sends=stopping)) == []
    chosen = "loop l times 8 carry x { send x -> s when deep  x = a.f(x) }"
    deep = "param deep : bool = true\n"
    assert codes(piped("stream s : i64 by fixed(4) capacity 8", sends=chosen, declarations=deep)) == ["MC406"]
    assert codes(piped("stream s : i64 by fixed(1) capacity 8", ONE, sends=chosen, declarations=deep)) == []


def test_a_window_that_cannot_fill() -> None:
    assert codes(piped("stream s : i64 by fixed(9) at_end partial capacity 16")) == []
    found = findings(piped("stream s : i64 by fixed(10) at_end partial capacity 16"))
    assert [d.rule.code for d in found] == ["MC408"] and "at most 9 items" in found[0].message


def joint(first: str, second: str) -> str:
    streams = f"stream s : i64 by {first} capacity 64\nstream t : i64 by {second} capacity 64\n"
    sends = "walk w(x: i64) { loop l times 16 carry x { send x -> s  send x -> t  x = a.f(x) } }\n"
    takes = "walk e() { for u, v in s, t { emit a.g(b.many(u), b.many(v)) as tensor } }\n"
    return NODES + streams + sends + takes + "request r(x: i64) -> tensor { together { w(x)  e() } }\n"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("fixed(4)", "fixed(4)", []),
        ("fixed(4)", "fixed(2)", ["MC402"]),
        ("fixed(4)", "left_context(4, 2) overlap ok", []),
        ("fixed(4) at_end drop", "sliding_window(4, 4) at_end drop", []),
        ("fixed(2)", "sliding_window(4, 2) overlap ok", ["MC403"]),
        ("sliding_window(4, 2) overlap ok", "sliding_window(4, 2) overlap ok", []),
        ("fixed(4) at_end partial", "fixed(4) at_end drop", ["MC403"]),
    ],
)
def test_streams_taken_together(first: str, second: str, expected: list[str]) -> None:
    found = findings(joint(first, second))
    assert [d.rule.code for d in found if d.rule.code != "MC406"] == expected


def test_the_counts_of_a_mismatch_are_told() -> None:
    (found,) = [d for d in findings(joint("fixed(4)", "fixed(2)")) if d.rule.code == "MC402"]
    assert found.notes == ("after 2 items each, `s` has given 0 full chunks and `t` 1",)
