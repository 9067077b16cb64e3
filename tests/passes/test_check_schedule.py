"""MC102, MC103, MC403 and MC407 on source text; agreement with the interpreter is tested on random programs beside this."""

from __future__ import annotations

import pytest

from mstarc.diagnostics.core import Diagnostic
from tests.passes.sources import NODES, codes, findings

TWO = "stream s : i64 by fixed(1) {s} capacity {c}\nstream t : i64 by fixed(1) {t} capacity 2\n"


def arms(first: str, second: str, capacity: int = 2, declarations: str = "", s: str = "", t: str = "") -> str:
    walks = f"walk w(x: i64) {{ {first} }}\nwalk e() {{ {second} }}\n"
    request = "request r(x: i64) -> tensor { together { one: w(x)  two: e() } }\n"
    return declarations + NODES + TWO.format(c=capacity, s=s, t=t) + walks + request


def only(text: str) -> Diagnostic:
    (found,) = findings(text)
    return found


BOTH = "loop k times 6 carry x { send x -> s  x = a.f(x) }  loop l times 6 carry x { send x -> t  x = a.f(x) }"
PAIRS = "for u, v in s, t { emit a.g(u, v) as tensor }"


def test_a_lagging_stream_needs_room_for_the_lag() -> None:
    assert codes(arms(BOTH, PAIRS, 6)) == []
    found = only(arms(BOTH, PAIRS, 5))
    assert found.rule.code == "MC103" and found.subject == "s"
    assert "arm `one` waits for room in `s` (5 of 5 held)\narm `two` waits for an item of `t` (0 held)" in found.notes


def test_each_waits_for_the_other() -> None:
    first = "loop k times 3 { send a.f(next(t)) -> s }"
    second = "loop k times 3 { v = next(s)  emit v as tensor  send a.f(v) -> t }"
    assert only(arms(first, second)).rule.code == "MC102"
    primed = "send x -> s  loop k times 2 { send a.f(next(t)) -> s }"
    assert codes(arms(primed, second)) == []


def test_next_past_the_end() -> None:
    first = "loop k times n carry x { send x -> s  x = a.f(x) }  send x -> t"
    second = "loop l times {} {{ emit a.f(next(s)) as tensor }}  emit next(t) as tensor"
    param = "param n : int in 1..9 = 3\n"
    assert codes(arms(first, second.format("n"), declarations=param)) == []
    found = only(arms(first, second.format("n + 1"), declarations=param))
    assert found.rule.code == "MC407" and "`n` = " in found.notes[0]


def test_absent_may_be_meant() -> None:
    nodes = "node c : stateless { op h(x: i64?) -> y: i64 }\n"
    first = "send x -> s  send x -> t"
    second = "loop l times 3 { emit c.h(next(s)) as tensor }  emit next(t) as tensor"
    assert codes(arms(first, second, s="after_end empty", declarations=nodes)) == []


def test_a_stop_decides_how_much_comes() -> None:
    first = "loop k max 5 carry x { stop when x == 0  send x -> s  x = a.f(x) }  send x -> t"
    second = "loop l times 5 { emit next(s) as tensor }  emit next(t) as tensor"
    found = only(arms(first, second))
    assert found.rule.code == "MC407" and "a stop of `k` in iteration " in found.notes[0]


def test_unequal_counts() -> None:
    assert codes(arms(BOTH.replace("l times 6", "l times 5"), PAIRS, 6)) == ["MC403"]


def test_what_one_side_does_not_run_is_no_deadlock() -> None:
    request = "request r(x: i64) -> tensor { together { one: w(x)  two: if deep { e() } } }\n"
    text = "param deep : bool = true\n" + NODES + "stream s : i64 by fixed(1) capacity 2\n"
    text += "walk w(x: i64) { loop k times 6 carry x { send x -> s  x = a.f(x) }  emit x as tensor }\n"
    text += "walk e() { loop l times 6 { a.f(next(s)) } }\n" + request
    assert [c for c in codes(text) if c.startswith(("MC1", "MC4"))] == []


@pytest.mark.parametrize(("bound", "expected"), [("n", []), ("n + 1", ["MC103"])])
def test_a_capacity_that_follows_a_param(bound: str, expected: list[str]) -> None:
    first = f"loop k times {bound} carry x {{ send x -> s  x = a.f(x) }}  send x -> t"
    second = "emit next(t) as tensor  for u in s { emit u as tensor }"
    text = arms(first, second, declarations="param n : int in 1..2000 = 1000\n").replace(
        "capacity 2\n", "capacity n\n", 1
    )
    assert codes(text) == expected
