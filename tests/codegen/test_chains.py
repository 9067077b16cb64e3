"""Walks in a row: which of them the generated conductor starts ahead, and that the answers are the interpreter's."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.codegen.render import render
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from tests.codegen.harness import agrees

HEAD = """mstarc.ir 1
model t
node n: stateless {
  op f(x: i64[]) -> (y: i64[])
}
stream s: i64[] by fixed(size = 2) at_end partial capacity 2
walk give(%0 x: i64[]) {
  send %0 to s
  send %0 to s
  send %0 to s
  emit %0 as m
}
walk take() {
  for %0 c: chunk(s, i64[]) in s {
    emit %0 as k
  }
}
walk make(%0 x: i64[]) -> (y: i64[] = %1) {
  %1 y: i64[] = invoke n.f(%0)
}
"""


def program(body: str) -> Program:
    found = parse_program(f"{HEAD}request r(%0 x: host i64[]) -> (m, k) {{\n{body}\n}}\n")
    verify(found)
    return found


def statements(body: str) -> list[str]:
    """What the generated request does."""
    text = render(program(body), "x.walk")["conductor.py"]
    return [line.strip() for line in text.splitlines() if "yield request." in line]


def test_the_conductor_goes_on_where_nothing_needs_the_end() -> None:
    assert statements("call give(%0)\n _ = call make(%0)\n %1 y: i64[] = call make(%0)\n call give(%1)") == [
        'yield request.start("give", request.inputs.x)',
        'yield request.start("make", request.inputs.x)',
        '(y,) = yield request.walk("make", request.inputs.x)',
        'yield request.walk("give", y)',
    ]


def test_streams_close_with_the_last_walk_that_sends() -> None:
    body = (
        "together {\n arm a {\n call give(%0)\n call give(%0)\n _ = call make(%0)\n }\n arm b {\n call take()\n }\n }"
    )
    assert statements(body)[1:] == [
        'yield request.start("give", x)',
        'yield request.start("give", x, closes=("s",))',
        'yield request.walk("make", x)',
        'yield request.walk("take")',
    ]


@pytest.mark.parametrize(
    "body",
    [
        "call give(%0)\n call take()",
        "call take()\n call give(%0)\n call take()\n call give(%0)",
        "call give(%0)\n together {\n arm a {\n call give(%0)\n call give(%0)\n }\n"
        "arm b {\n call take()\n call take()\n }\n }\n call take()",
        "together {\n arm a {\n call give(%0)\n }\n arm b {\n call take()\n }\n }\n call take()\n call give(%0)",
    ],
)
async def test_streams_outside_a_together_have_ended_and_are_discarded(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever walk touches them first."""
    await agrees(program(body), {"x": 3}, tmp_path, monkeypatch)


async def test_what_the_host_makes_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission does not know it, and lets it pass."""
    body = "%1 y: i64[] = call make(%0)\n %2 z: i64[] = compute (7 - %1 * 3) % 1009 // 2\n call give(%2 + 1)"
    await agrees(program(body), {"x": 3}, tmp_path, monkeypatch)
