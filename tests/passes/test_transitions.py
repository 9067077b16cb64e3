"""Walks that follow each other without the host, and what may come before a walk: on IR text."""

from __future__ import annotations

from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.passes.effects import calls_of
from mstarc.passes.transitions import Ahead, chains_of, say_chains, walks_before

HEAD = """mstarc.ir 1
model t
extern think(x: i64[]) -> (y: i64[])
walk a(%0 x: host i64[]) {}
walk b(%0 x: host i64[]) -> (y: i64[] = %1) { %1 y: i64[] = compute %0 + 1 }
walk c(%0 x: i64[]) {}
"""


def program(body: str) -> Program:
    return parse_program(f"{HEAD}request r(%0 x: host i64[], %1 parts: host list(text | image)) -> () {{ {body} }}\n")


def chains(body: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(chain.arm, chain.walks) for chain in chains_of(program(body))]


def ahead(body: str) -> list[str]:
    """The walks whose end the host does not wait for."""
    (request,) = program(body).requests
    found = Ahead(request)
    return [call.walk for call in calls_of(request.body) if call in found]


def test_a_result_that_is_read_is_waited_for() -> None:
    body = "call a(%0) %2 y: i64[] = call b(%0) call c(%2)"
    assert chains(body) == [("", ("a", "b")), ("", ("c",))]
    assert ahead(body) == ["a"]


def test_a_result_that_nobody_reads_is_not() -> None:
    body = "_ = call b(%0) %2 y: i64[] = call b(%0) call c(%0)"
    assert chains(body) == [("", ("b", "b", "c"))]
    assert ahead(body) == ["b", "b"]


def test_the_last_one_is_waited_for() -> None:
    assert ahead("call a(%0)") == []
    assert ahead("call a(%0) if %0 > 3 { call a(%0) } else { call c(%0) }") == ["a"]
    assert ahead("if %0 > 3 { call a(%0) } else { call c(%0) } call a(%0)") == ["a", "c"]
    assert ahead("if %0 > 3 { call a(%0) call c(%0) } else { }") == ["a"]


def test_in_a_loop_over_parts_each_may_be_followed_by_the_next() -> None:
    assert ahead("parts %1 { each %2 part: host i64[] { call a(%2) call c(%2) } }") == ["a", "c"]
    assert ahead("parts %1 { each %2 part: host i64[] { call a(%2) %3 y: i64[] = call b(%2) call c(%3) } }") == [
        "a",
        "c",
    ]


def test_an_extern_of_the_inputs_is_settled_before_the_first_walk() -> None:
    assert chains("call a(%0) %2 y: host i64[] = extern think(%0) call a(%2)") == [("", ("a", "a"))]


def test_an_extern_of_a_result_waits_for_the_walk() -> None:
    body = "%2 y: i64[] = call b(%0) %3 z: host i64[] = extern think(%2) call a(%3)"
    assert chains(body) == [("", ("b",)), ("", ("a",))]
    assert ahead(body) == []
    assert ahead("%2 y: i64[] = call b(%0) call a(%0) %3 z: host i64[] = extern think(%2) call a(%3)") == ["a"]


def test_a_value_made_of_a_result_waits_too() -> None:
    body = "%2 y: i64[] = call b(%0) %3 w: i64[] = compute %2 + 1 %4 z: host i64[] = extern think(%3) call a(%4)"
    assert chains(body) == [("", ("b",)), ("", ("a",))]


def test_loops_over_parts_and_branches_are_settled_at_admission() -> None:
    body = "parts %1 { each %2 part: host i64[] { call a(%2) } } if %0 > 3 { call a(%0) } else { call c(%0) }"
    assert chains(body) == [("", ("a*", "a?", "c?"))]


def test_each_arm_has_its_own_and_the_host_joins_them() -> None:
    body = "call a(%0) together { arm one { call a(%0) } arm two { call c(%0) } } call a(%0)"
    assert chains(body) == [("", ("a", "together")), ("one", ("a",)), ("two", ("c",)), ("", ("a",))]
    assert ahead(body) == ["a"]
    said = list(say_chains(program(body), chains_of(program(body))))
    assert said == ["request r: a, together", "request r, arm one: a", "request r, arm two: c", "request r: a"]


def test_what_may_come_before() -> None:
    body = "call a(%0) together { arm one { %2 y: i64[] = call b(%0) } arm two { call a(%0) } } call c(%0)"
    found = walks_before(program(body))
    assert found == {"a": {"a"}, "b": {"a"}, "c": {"a", "b"}}
    assert walks_before(program("parts %1 { each %2 part: host i64[] { call a(%2) } }"))["a"] == {"a"}
    assert walks_before(program("if %0 > 3 { call a(%0) } else { call c(%0) }")) == {"a": set(), "b": set(), "c": set()}
    found = walks_before(
        program("when %0 > 3 { call a(%0) } call c(%0) when %0 > 4 { %2 y: i64[] = call b(%0) } call a(%0)")
    )
    assert found == {"a": {"a", "b", "c"}, "b": {"a", "c"}, "c": {"a"}}
