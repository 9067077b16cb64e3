"""MC411, MC501, MC508 to MC513."""

from __future__ import annotations

from pathlib import Path

import pytest

from mstarc.workspace import load_model
from tests.passes.sources import NODES, codes, messages

WALKS = NODES + "walk w(x: i64) { emit a.f(x) as tensor }\nwalk v(x: i64) -> y: i64 { y = a.f(x) }\n"


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("request r(x: i64) -> tensor { y = v(x)  w(y) }", []),
        ("request r(x: i64) -> tensor { v(x)  w(x) }", ["MC501"]),
        ("request r(x: i64) -> tensor { w(x) }", ["MC510"]),
        ("request r(x: i64) -> tensor, audio? { y = v(x)  w(y) }", ["MC509"]),
        ("request r(x: i64) -> scalar { y = v(x)  w(y) }", ["MC509", "MC509"]),
        ("request r(x: i64) -> tensor { if deep { y = v(x)  w(y) } }", []),
        ("request r(x: i64) -> tensor { require n > 1  y = v(x)  w(y) }", []),
        ("request r(x: i64) -> tensor { y = v(x)  require n > 1  w(y) }", ["MC511"]),
        ("request r(x: i64) -> tensor { if deep { require n > 1 }  y = v(x)  w(y) }", ["MC511"]),
        ("request r(x: i64) -> tensor { require n > 4  y = v(x)  w(y) }", ["MC512"]),
        ("request r(x: i64) -> tensor { require n > 3 or n < 1  y = v(x)  w(y) }", []),
        ("request r(x: i64) -> tensor { require n < 1 and deep  y = v(x)  w(y) }", ["MC512"]),
        ("", ["MC513"]),
    ],
)
def test_requests(request_text: str, expected: list[str]) -> None:
    declarations = "param n : int in 1..4 = 2\nparam deep : bool = true\n"
    assert codes(declarations + WALKS + request_text) == expected


ENDS = (
    NODES
    + "stream s : i64 by fixed(1) capacity 4\nwalk w(x: i64) { send a.f(x) -> s }\nwalk e() { for u in s { emit u as tensor } }\n"
)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (ENDS + "request r(x: i64) -> tensor { w(x)  e() }", "runs in no arm beside it"),
        (ENDS + "request r(x: i64) -> tensor { together { { w(x)  e() } } }", "runs in the same arm"),
        (
            ENDS.replace("send a.f(x) -> s", "emit x as scalar")
            + "request r(x: i64) -> tensor, scalar { together { w(x)  e() } }",
            "is never sent on",
        ),
        (
            ENDS.replace("for u in s { emit u as tensor }", "emit 1 as tensor")
            + "request r(x: i64) -> tensor { together { w(x)  e() } }",
            "is never taken from",
        ),
        (
            ENDS.split("walk")[0] + "walk w(x: i64) { emit a.f(x) as tensor }\nrequest r(x: i64) -> tensor { w(x) }",
            "is neither sent on",
        ),
    ],
)
def test_streams_with_one_end(text: str, part: str) -> None:
    (message,) = messages(text, "MC411")
    assert part in message


def test_a_stream_between_two_arms_has_both() -> None:
    assert codes(ENDS + "request r(x: i64) -> tensor { together { w(x)  e() } }") == []


@pytest.mark.parametrize(
    ("param", "expected"),
    [
        ("p : int in 1..8 = 8", []),
        ("p : int in 1..8 = 9", ["MC508"]),
        ("p : int in 1..8 = 0", ["MC508"]),
        ("p : int in 8..1 = 4", ["MC508"]),
        ("p : float in 0.0..1.0 = 1.0", []),
        ("p : float in 0.0..1.0 = 1.5", ["MC508"]),
        ("p : int in 1..8 = if deep then 2 else 9", ["MC508"]),
        ("p : int in 1..8 = if deep then 2 else 8", []),
        ("p : int in 1..8 = n", []),
        ("p : int in 1..3 = n", ["MC508"]),
        ("p : int in 1..5 = n + 1", []),
        ("p : int in 1..4", []),
    ],
)
def test_defaults(param: str, expected: list[str]) -> None:
    declarations = f"param n : int in 1..4 = 2\nparam deep : bool = true\nparam {param}\n"
    assert codes(declarations + WALKS + "request r(x: i64) -> tensor { y = v(x)  w(y) }") == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("node a : stateless { op f(x: i64) -> y: i64 }", []),
        ("node a : stateless { op f(x: i64) -> y: i64  op g(x: i64) -> y: i64 }", ["no walk calls op `a.g`"]),
        (
            "node a : stateless { op f(x: i64) -> y: i64 }\nnode b : stateless { op g(x: i64) -> y: i64  op h(x: i64) -> y: i64 }",
            ["no walk calls an op of node `b`, which is loaded all the same"],
        ),
        (
            "node a : stateless weights of b { op f(x: i64) -> y: i64 }\nnode b : stateless { op g(x: i64) -> y: i64 }",
            [],
        ),
    ],
)
def test_ops_that_nothing_calls(tmp_path: Path, nodes: str, expected: list[str]) -> None:
    path = tmp_path / "t.walk"
    path.write_text(
        f"model t\n{nodes}\nwalk w(x: i64) {{ emit a.f(x) as tensor }}\nrequest r(x: i64) -> tensor {{ w(x) }}\n"
    )
    found = [d for d in load_model(path).checked.findings if d.rule.code != "MC908"]
    assert [(d.rule.code, d.message) for d in found] == [("MC515", message) for message in expected]


@pytest.mark.parametrize(
    ("cond", "expected"),
    [
        ("n > 8", ["`n > 8` is never true in request `r`"]),
        ("n > 0", ["`n > 0` is always true, so the `else` is never taken in request `r`"]),
        ("n > 1", []),
        ("deep", []),
        ("false", ["`false` is never true in request `r`"]),
    ],
)
def test_branches_that_no_request_takes(cond: str, expected: list[str]) -> None:
    params = "param n : int in 1..8 = 2\nparam deep : bool = false\n"
    text = f"{params}{WALKS}request r(x: i64) -> tensor {{ if {cond} {{ y = v(x)  w(y) }} else {{ w(x) }} }}\n"
    assert messages(text, "MC516") == expected


def test_a_require_that_refuses_nobody() -> None:
    text = f"param n : int in 1..8 = 2\n{WALKS}request r(x: i64) -> tensor {{ require n > 0  y = v(x)  w(y) }}\n"
    assert messages(text, "MC512") == ["`require n > 0` is always true, so it refuses nobody"]
