"""MC502, MC505, MC506, MC507, and what owns a context (MC104)."""

from __future__ import annotations

import pytest

from tests.passes.sources import codes

DECLS = """
cache kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
cache kw : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
context main, copy on kv max 64
context side on kw max 64
node lm : transformer(kv) {
    op read(ids: i64[T])          { attend causal  positions seq }
    op score(x: i64) -> y: i64    { attend full  positions seq  frozen }
}
node ear : transformer(kw) { op read(ids: i64[T]) { attend causal  positions seq } }
walk fill(ids: i64[T]) { lm.read(ids) writes main }
walk aside(ids: i64[T]) { ear.read(ids) }
walk clone() { fork copy from main }
walk clear() { drop main }
walk ask(x: i64) { emit lm.score(x) reads main as tensor }
walk ask_copy(x: i64) { emit lm.score(x) reads copy as scalar }
"""
ALL = "request all(ids: i64[T], x: i64) -> tensor, scalar { aside(ids)  fill(ids)  clone()  ask_copy(x)  ask(x)  clear() }\n"


def request(body: str, extra: str = "") -> str:
    head = "param deep : bool = true\n" + DECLS + extra + ALL
    return (
        head
        + f"request r(ids: i64[T], x: i64) -> tensor, scalar {{ fill(ids)  clone()  ask_copy(x)  ask(x)  {body} }}\n"
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", []),
        ("ask(x)", []),
        ("clear()  ask(x)", ["MC502"]),
        ("clear()  fill(ids)  ask(x)", []),
        ("clear()  if deep { fill(ids) }  ask(x)", []),
        ("clear()  clone()  ask_copy(x)", ["MC502"]),
        ("clear()  ask_copy(x)", []),
        ("together { one: ask(x)  two: ask_copy(x) }", []),
        ("together { one: ask(x)  two: fill(ids) }", ["MC104"]),
        ("together { one: ask(x)  two: clone() }", []),
        ("together { one: ask_copy(x)  two: clone() }", ["MC104"]),
        ("together { one: ask(x)  two: clear() }", ["MC104"]),
    ],
)
def test_order_and_ownership(body: str, expected: list[str]) -> None:
    assert codes(request(body)) == expected


@pytest.mark.parametrize(
    ("walk", "expected"),
    [
        ("lm.read(ids) writes side", ["MC507"]),
        ("lm.read(ids) writes (main, copy)", []),
        ("fork side from main", ["MC507"]),
        ("emit lm.score(x) reads copy writes main as tensor", ["MC506"]),
    ],
)
def test_calls(walk: str, expected: list[str]) -> None:
    extra = f"walk other(ids: i64[T], x: i64) {{ {walk} }}\n"
    assert codes(request("other(ids, x)", extra)) == expected


def test_a_context_that_nobody_writes() -> None:
    assert codes(request("", "context spare on kv max 64\n")) == ["MC505"]
    extra = "context spare, other on kv max 64\nwalk odd() { fork other from spare  drop spare }\n"
    assert codes(request("odd()", extra)) == ["MC505"]
