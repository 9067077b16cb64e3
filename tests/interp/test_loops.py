"""Loops, carried names, `collect`, `stop when` and `when` (language, sentences 7 and 8)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.interp.programs import record, run

COUNT = """
param most: int low 0 high 100 = 10
param eos: int = 1000
walk count(%0 start: i64[]) -> (end: i64[] = %4, all: i64[dim.K] = %5) {
  loop up max param.most
    carry %1 n: i64[] = %0 then %3 -> %4 end: i64[]
    gather all -> %5 all: i64[dim.K]
  do {
    %2 twice: i64[] = compute %1 * 2
    stop %1 == param.eos with (%2)
    emit %1 as text
    collect %2 as all
    %3 next: i64[] = compute %1 + 1
  }
}
request r(%0 start: host i64[]) -> (text, scalar, tensor) {
  %1 end: i64[], %2 all: i64[dim.K] = call count(%0)
  call show(%1, %2)
}
walk show(%0 end: i64[], %1 all: i64[dim.K]) {
  emit %0 as scalar
  emit %1 as tensor(rows = dim.K)
}
"""


def test_zero_iterations_keep_the_initial_value_and_collect_nothing() -> None:
    out = run(COUNT, {"start": 7}, params={"most": 0})
    assert out.emitted("scalar") == [7]
    assert out.emitted("tensor") == [()]
    assert out.emitted("text") == []
    assert out.causes == {"count.up": "max"}


def test_max_counts_bodies_and_the_carried_value_is_the_last() -> None:
    out = run(COUNT, {"start": 7}, params={"most": 3})
    assert out.emitted("text") == [7, 8, 9]
    assert out.emitted("scalar") == [10]
    assert out.emitted("tensor") == [(14, 16, 18)]
    assert out.events[-1].attrs == {"rows": 3}
    assert (out.causes, out.finish_reason) == ({"count.up": "max"}, "length")


def test_stop_ends_at_its_place_with_the_values_of_that_place() -> None:
    out = run(COUNT, {"start": 7}, params={"eos": 9})
    assert out.emitted("text") == [7, 8]  # the value that stops is never shown
    assert out.emitted("scalar") == [18]  # the carried name was rebound above the stop
    assert out.emitted("tensor") == [(14, 16)]
    assert (out.causes, out.finish_reason) == ({"count.up": "stop"}, "stop")


def test_a_stop_in_the_last_allowed_body_is_a_stop() -> None:
    assert run(COUNT, {"start": 7}, params={"eos": 9, "most": 3}).causes == {"count.up": "stop"}
    assert run(COUNT, {"start": 7}, params={"eos": 9, "most": 2}).causes == {"count.up": "max"}


def test_a_stop_in_mid_body_keeps_what_stands_above_it() -> None:
    text = """
param most: int = 3
walk w() {
  loop words max param.most
    carry %0 n: i64[] = 5 then %1 -> %2 end: i64[]
  do {
    emit %0 as text
    stop iter.words + 1 == param.most with (%0)
    emit %0 as audio
    %1 next: i64[] = compute %0 + 1
  }
  emit %2 as scalar
}
request r() -> (text) {
  call w()
}
"""
    out = run(text)
    assert out.emitted("text") == [5, 6, 7]
    assert out.emitted("audio") == [5, 6]
    assert out.emitted("scalar") == [7]
    assert out.causes == {"w.words": "max"}


NESTED = """
param cut: int = 2
walk w() {
  loop outer times 3
    carry %0 a: host i64[] = 0 then %4 -> %5 a_end: host i64[]
    gather rows -> %6 rows: i64[dim.R]
  do {
    loop inner max 5
      carry %1 b: host i64[] = %0 then %2 -> %3 b_end: host i64[]
    do {
      stop iter.inner == param.cut with (%1)
      %2 b_next: host i64[] = compute %1 + 10
    }
    when iter.outer != 1 {
      collect %3 as rows
    }
    %4 a_next: host i64[] = compute %3 + 1
  }
  emit %6 as tensor
  emit %5 as scalar
}
request r() -> (tensor, scalar) {
  call w()
}
"""


def test_stop_ends_the_innermost_loop_only_and_collect_goes_to_it() -> None:
    out = run(NESTED)
    assert out.emitted("tensor") == [(20, 62)]  # 20, 41, 62, the middle one switched off
    assert out.emitted("scalar") == [63]
    assert out.causes == {"w.inner": "stop"}  # static loops have no cause


def test_carried_names_change_together() -> None:
    text = """
walk fib() {
  loop steps times 6
    carry %0 a: host i64[] = 0 then %1 -> %3 x: host i64[]
    carry %1 b: host i64[] = 1 then %2 -> %4 y: host i64[]
  do {
    %2 c: host i64[] = compute %0 + %1
  }
  emit %3 as scalar
}
request r() -> (scalar) {
  call fib()
}
"""
    assert run(text).emitted("scalar") == [8]


WHEN = """
node n: stateless {
  op f(x: i64[]) -> (y: i64[])
  op g(x: i64[], extra: i64[]?) -> (y: i64[])
}
param on: bool = true
walk w(%0 x: i64[]) {
  when param.on {
    %1 inner: i64[] = invoke n.f(%0)
  } -> (%1 to %2 extra: i64[]?)
  %3 y: i64[] = invoke n.g(%0, %2)
  %4 z: i64[] = invoke n.g(%0, _)
  emit %3 as scalar
  emit %4 as tensor
  when present(%2) {
    emit %2 as text
  }
}
request r(%0 x: host i64[]) -> (scalar) {
  call w(%0)
}
"""


@pytest.mark.parametrize("on", [True, False])
def test_what_is_bound_under_when_is_optional_after_it(on: bool) -> None:
    machine, out = record(WHEN, {"x": 3}, params={"on": on})
    extra: list[Any] = [args[1] for args in machine.args_of("g")]
    assert len(machine.args_of("f")) == int(on)
    assert extra == [out.emitted("text")[0] if on else None, None]
    assert (out.emitted("scalar") == out.emitted("tensor")) == (not on)


def test_each_loop_gathers_its_own() -> None:
    text = """
walk w() {
  loop outer times 2
    gather all -> %3 all: i64[dim.A]
  do {
    loop inner times 2
      gather all -> %0 some: i64[dim.B]
    do {
      collect 10 * iter.outer + iter.inner as all
    }
    emit %0 as text
    %1 mark: host i64[] = compute 100 + iter.outer
    collect %1 as all
    collect %0 as all
    %2 unused: host i64[] = compute 0
  }
  emit %3 as tensor
}
request r() -> (tensor) {
  call w()
}
"""
    out = run(text)
    assert out.emitted("text") == [(0, 1), (10, 11)]
    assert out.emitted("tensor") == [(100, 0, 1, 101, 10, 11)]


def test_what_was_bound_in_an_earlier_iteration_is_absent_in_the_next() -> None:
    text = """
walk w() {
  loop l times 3 do {
    when iter.l == 1 {
      %0 inner: host i64[] = compute iter.l * 7
    } -> (%0 to %1 maybe: host i64[]?)
    emit present(%1) as text
  }
}
request r() -> (text) {
  call w()
}
"""
    assert run(text).emitted("text") == [False, True, False]


def test_free_dims_are_those_of_this_iteration() -> None:
    text = """
extern ids(n: int) -> (t: i64[dim.T])
walk w() {
  loop l times 3 do {
    %0 t: host i64[dim.T] = extern ids(iter.l + 1)
    %1 x: f32[dim.T] = noise site "x"
    emit %1 as tensor(rows = dim.T)
  }
}
request r() -> (tensor) {
  call w()
}
"""
    out = run(text, externs={"ids": lambda n: tuple(range(n))})
    assert [e.value.shape for e in out.events] == [(1,), (2,), (3,)]
    assert [e.attrs["rows"] for e in out.events] == [1, 2, 3]
