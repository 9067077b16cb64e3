"""MC104 and MC105 between arms, and between statements of `parallel`."""

from __future__ import annotations

import pytest

from tests.passes.sources import NODES, codes, findings, in_walk

WALKS = (
    NODES
    + """
sampler word { temperature = 0 }
stream s : i64 by fixed(1) capacity 4
walk show(x: i64) { emit a.f(x) as tensor }
walk tell(x: i64) { emit a.f(x) as scalar }
walk blur(x: i64) { emit a.noise(x) as scalar }
walk give(x: i64) { send a.f(x) -> s }
walk add(x: i64) { send x -> s }
walk eat() { for u in s { emit u as tensor } }
"""
)
CALLS = "request all(x: i64) -> tensor, scalar { show(x)  tell(x)  blur(x)  together { g: { give(x)  add(x) }  e: eat() } }\n"


@pytest.mark.parametrize(
    ("arms", "expected"),
    [
        ("show(x)  tell(x)", []),
        ("show(x)  show(x)", ["MC104"]),
        ("{ show(x)  show(x) }  tell(x)", []),
        ("tell(x)  blur(x)", ["MC104"]),
        ("blur(x)  blur(x)", ["MC104", "MC104"]),  # the modality, and the drawing site
        ("{ give(x)  add(x) }  eat()", []),
        ("give(x)  add(x)  eat()", ["MC105"]),
        ("give(x)  give(x)  eat()", ["MC105"]),
    ],
)
def test_arms(arms: str, expected: list[str]) -> None:
    text = WALKS + CALLS + f"request r(x: i64) -> tensor?, scalar? {{ show(x)  tell(x)  together {{ {arms} }} }}\n"
    found = [c for c in codes(text) if c in ("MC104", "MC105")]
    assert found == expected


def test_nested_arms_count_for_the_arm_around_them() -> None:
    text = "request r(x: i64) -> tensor, scalar { together { one: { together { show(x)  tell(x) } }  two: tell(x) } }\n"
    (found,) = [d for d in findings(WALKS + CALLS + text) if d.rule.code == "MC104"]
    assert found.message == "two arms use modality `scalar`: `one` and `two`"
    assert [label.text for label in found.secondary] == ["`one` uses it here", "these run at once"]


def test_statements_of_parallel() -> None:
    free = "parallel { y = a.f(x)  z = a.f(x) }  emit a.g(y, z) as tensor"
    assert codes(in_walk(free)) == []
    assert codes(in_walk("parallel { y = a.noise(x)  z = a.noise(x) }  emit a.g(y, z) as tensor")) == ["MC104"]
    assert codes(in_walk("parallel { emit a.f(x) as tensor  emit x as tensor }")) == ["MC104"]
