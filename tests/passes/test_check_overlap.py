"""MC409: trims of `4 * n - 3` samples behind overlapping chunks."""

from __future__ import annotations

import pytest

from tests.passes.sources import codes, messages, piped


def pipe(policy: str, taker: str, declarations: str = "") -> str:
    return piped(f"stream s : i64 by {policy} capacity 16", f"for u in s {{ {taker} }}", declarations=declarations)


EXACT = "emit last(b.wave(u), 4 * u.new) as tensor"


@pytest.mark.parametrize(
    ("policy", "taker", "expected"),
    [
        ("left_context(3, 1) at_end partial", EXACT, []),
        ("sliding_window(4, 3) at_end partial", EXACT, []),
        ("left_context(3, 1) at_end partial", "emit b.wave(u) as tensor", ["MC409"]),
        ("sliding_window(4, 3) at_end partial", "emit b.wave(u) as tensor", ["MC409"]),
        ("left_context(3, 1) at_end partial overlap ok", "emit b.wave(u) as tensor", []),
        ("fixed(3) at_end partial", "emit b.wave(u) as tensor", []),
        ("left_context(3, 1) at_end partial", "emit last(b.wave(u), 4 * u.new - 3) as tensor", ["MC409"]),
        ("left_context(3, 1) at_end partial", "emit last(b.wave(u), 12) as tensor", ["MC409"]),
        ("left_context(3, 1) at_end partial", "emit last(b.wave(u), u.new * 2 * 2) as tensor", []),
        ("left_context(3, 1) at_end partial", "emit last(b.wave(u), hop * u.new) as tensor", []),
        ("left_context(3, 1) at_end partial", "emit last(b.many(u), u.new) as tensor", ["MC007"]),
        ("left_context(3, 1) at_end partial", "emit u.new as tensor", []),
        ("left_context(3, 0) at_end partial", EXACT, ["MC409"]),
        ("left_context(3, 0) at_end partial", "emit b.many(u) as tensor", []),
    ],
)
def test_trims(policy: str, taker: str, expected: list[str]) -> None:
    assert codes(pipe(policy, taker, "config { hop = 4 }\n")) == expected


def test_the_context_must_supply_the_seam() -> None:
    (message,) = messages(pipe("left_context(3, 0) at_end partial", EXACT), "MC409")
    assert message.endswith("4 * 0 - 3 = -3 is below 0")


def test_a_context_is_not_fed_the_overlap() -> None:
    declarations = (
        "cache kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)\ncontext main on kv max 64\n"
        "node lm : transformer(kv) { op read(ids: i64[T]) -> y: i64 { attend causal  positions seq } }\n"
    )
    taker = "emit lm.read(u) writes main as tensor"
    assert codes(pipe("left_context(3, 1) at_end partial", taker, declarations)) == ["MC409"]
    assert codes(pipe("fixed(3) at_end partial", taker, declarations)) == []
