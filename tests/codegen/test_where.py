"""What a stream's `where` may read besides the item: params, lets, configs and what the client asked for, of the item's own request."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mstarc.codegen.package import compile_model
from tests.codegen.written import Asked, agree

SPEC = """
model filtered
config { two = 2 }
param cut   : int in 0..100 = 5
param scale : float in 0.0..4.0 = 1.5
param loud  : bool = true
param mode  : enum(plain, every) = plain
let chosen = mode
let both = loud and cut > 2
node sums : stateless {
    op next(x: i64) -> y: i64  { BATCH }
    op total(xs: i64[n]) -> y: i64
}
extern look(x: i64) -> i64
stream s : i64  where WHERE  by fixed(size = 2)  at_end partial  capacity 6
walk tell(x: i64) {
    loop telling max 12 carry x {
        BODY
        send x -> s
        x = sums.next(x)
    }
}
walk hear() { for two_items in s { emit sums.total(two_items) as scalar } }
request r(x: i64) -> scalar {
    together {
        one: tell(x)
        two: hear()
    }
}
"""
BINDING = """
components: {sums: tests.codegen.where_components.Sums}
externs: {look: tests.codegen.where_components.look}
"""
WHERES: dict[str, Callable[[int, Mapping[str, Any]], bool]] = {
    "item < cut": lambda item, p: item < p["cut"],
    "item % two == 0 and item < 2 * cut + 1": lambda item, p: item % 2 == 0 and item < 2 * p["cut"] + 1,
    "item < scale * 4": lambda item, p: item < p["scale"] * 4,
    "loud or item % 3 == 0": lambda item, p: p["loud"] or item % 3 == 0,
    "both": lambda item, p: p["loud"] and p["cut"] > 2,
    "not both and item > 3": lambda item, p: not (p["loud"] and p["cut"] > 2) and item > 3,
    "loud": lambda item, p: p["loud"],
    "two == 2": lambda item, p: True,
    "two == 3": lambda item, p: False,
    "wants(scalar) and item > cut": lambda item, p: item > p["cut"],
}


def spec(where: str, region: bool) -> str:
    """A loop that runs for a batch of requests, or one that an extern keeps in its walk's coroutine."""
    text = SPEC.replace("WHERE", where).replace("BATCH", "batch stack" if region else "")
    return text.replace("BODY", "" if region else "stop when look(x) > 6")


@pytest.mark.parametrize("region", [True, False])
@pytest.mark.parametrize("where", WHERES)
async def test_each_item_is_tested_with_its_own_request(tmp_path: Path, where: str, region: bool) -> None:
    rng = random.Random(where)
    asked = []
    for _ in range(6):
        params = {"cut": rng.randrange(0, 12), "scale": rng.choice([0.5, 1.0, 2.5]), "loud": rng.random() < 0.5}
        asked.append(Asked({"x": rng.randrange(0, 6)}, params))
    found = await agree(tmp_path, spec(where, region), BINDING, asked)
    for one, got in zip(asked, found, strict=True):
        kept = [x for x in range(one.inputs["x"], one.inputs["x"] + 12) if WHERES[where](x, one.params)]
        due = [sum(kept[k : k + 2]) for k in range(0, len(kept), 2)]
        assert [int(value) for value in got.events.get("scalar", [])] == due


@pytest.mark.parametrize("where", ["mode == every", "mode == plain and item > 3", "chosen == every or loud"])
def test_a_word_is_refused_at_its_place(tmp_path: Path, where: str) -> None:
    path = tmp_path / "x.walk"
    path.write_text(spec(where, True), encoding="utf-8")
    path.with_suffix(".yaml").write_text(BINDING, encoding="utf-8")
    fault: Any = compile_model(path, tmp_path / "out").fault
    assert "a text or a word of an enum in the `where` of stream `s`" in str(fault) and fault.span.start > 0
