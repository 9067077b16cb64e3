"""MC201, MC204 and MC205 at their edges."""

from __future__ import annotations

import pytest

from tests.passes.sources import codes, in_walk, messages


@pytest.mark.parametrize(
    ("declaration", "loop", "expected"),
    [
        ("", "times 1", []),
        ("", "times 0", ["MC201"]),
        ("", "max 0", ["MC201"]),
        ("param n : int in 0..4 = 1\n", "times n", []),
        ("param n : int in 0..4 = 1\n", "times n - 1", ["MC201"]),
        ("param n : int in 1..4 = 1\n", "times n - 1", []),
        ("param n : int in 1..4 = 1\n", "times n * 2 + 1", []),
        ("param n : int in 1..4 = 1\n", "times min(n, 2) - 1", []),
        ("param n : int in 1..4 = 1\n", "times 9 // n", []),
        ("param n : int = 1\n", "times n", ["MC201"]),
        ("param n : int = 1\n", "times min(n, 4)", ["MC201"]),
        ("param n : int = 1\n", "times max(min(n, 4), 1)", []),
        ("param n : int in 1..4 = 1\nlet m = n + 1\n", "times m", []),
        ("param fast : bool = false\n", "times if fast then 2 else 8", []),
        ("param fast : bool = false\n", "times if fast then 0 - 2 else 8", ["MC201"]),
        ("config { n = 3 }\n", "times n", []),
        ("config { n = a.n }\n", "times n", []),
    ],
)
def test_bounds(declaration: str, loop: str, expected: list[str]) -> None:
    assert codes(in_walk(f"loop l {loop} carry x {{ x = a.f(x) }}  emit x as tensor", declaration)) == expected


def test_a_dynamic_loop_runs_at_least_once() -> None:
    body = "loop l max n carry x { stop when x == 0  x = a.f(x) }  emit x as tensor"
    assert codes(in_walk(body, "param n : int in 1..4 = 1\n")) == []
    (message,) = messages(in_walk(body, "param n : int in 0..4 = 1\n"), "MC201")
    assert message == "the bound `n` of loop `l` can be 0, below 1"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = a.f(x)  collect y as ys", ["MC204"]),
        ("y = a.f(x)  z = a.f(y)  collect z as ys", ["MC204"]),
        ("y = a.noise(x)  collect y as ys", []),
        ("y = a.g(x, iter)  collect y as ys", []),
        ("loop k times 2 carry x { x = a.f(x) }  collect x as ys", ["MC204"]),
        ("loop k times 2 carry x { x = a.g(x, iter) }  collect x as ys", ["MC204"]),
    ],
)
def test_a_body_that_repeats_itself(body: str, expected: list[str]) -> None:
    assert codes(in_walk(f"loop l times 4 {{ {body} }}  emit ys as tensor")) == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("x == 0", []),
        ("y == 0", ["MC205"]),
        ("iter == 2", []),
        ("y == iter", []),
        ("n == 2", []),
    ],
)
def test_a_flag_that_cannot_change(stop: str, expected: list[str]) -> None:
    body = f"y = a.f(x)  loop l max 4 carry x {{ stop when {stop}  x = a.g(x, y) }}  emit x as tensor"
    assert codes(in_walk(body, "param n : int in 1..4 = 1\n")) == expected
