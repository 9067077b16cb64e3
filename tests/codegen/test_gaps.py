"""Constructs at the edges of a request and of a walk's control flow: generated code gives what the interpreter gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mstarc.codegen.package import compile_model
from mstarc_runtime.errors import BadRequest
from tests.codegen.written import Asked, agree, compiled, interpreted, same, served

BINDING = """
config: {n: {most: 7}}
components: {n: tests.codegen.gap_components.Sums}
externs: {doubled: tests.codegen.gap_components.doubled, chosen: tests.codegen.gap_components.chosen}
"""
HEAD = """model gaps
extern doubled(x: i64) -> i64
extern chosen(mode: text, data: bytes, more: i64?) -> i64
node n : stateless {
    op next(x: i64) -> y: i64
    op add(x: i64, more: i64?) -> y: i64
    op total(xs: i64[m]) -> y: i64
}
"""

STOPS = (
    HEAD
    + """
param end : int in 0..99 = 5
stream s : i64  by fixed(2)  at_end drop  capacity 4
walk give(x: i64) {
    loop giving times 12 carry x {
        send x -> s
        x = n.next(x)
    }
}
walk take() {
    seen = n.next(0)
    loop rounds max 3 carry seen {
        seen = n.add(seen, 10)
        for two in s {
            sum = n.total(two)
            stop when sum > end
            emit sum as scalar
        }
        emit seen as tensor
    }
    emit seen as action
}
request r(x: i64) -> scalar?, tensor?, action {
    together {
        giving: give(x)
        taking: take()
    }
}
"""
)


async def test_stop_inside_a_for_ends_the_loop_around_it(tmp_path: Path) -> None:
    asked = [Asked({"x": x}, {"end": end}) for x, end in ((0, 1), (0, 0), (3, 15), (0, 99))]
    found = await agree(tmp_path, STOPS, BINDING, asked)
    assert [got.causes["take.rounds"] for got in found] == ["stop", "stop", "stop", "max"]
    assert [len(got.events.get("scalar", [])) for got in found] == [1, 0, 3, 6]
    assert [len(got.events.get("tensor", [])) for got in found] == [0, 0, 0, 3]


WHENS = (
    HEAD
    + """
param mode : enum(plain, odd) = plain
walk show(x: i64, more: i64?) { emit n.add(x, more) as scalar }
walk one(x: i64) -> y: i64 { y = n.next(x) }
request r(x: i64) -> scalar {
    require x > 0
    more = doubled(x) when mode == odd
    y = one(x) when mode == plain
    show(x, more)
    show(x, y)
    show(x, y) when present(y)
}
"""
)


async def test_when_on_statements_of_a_request(tmp_path: Path) -> None:
    found = await agree(tmp_path, WHENS, BINDING, [Asked({"x": 5}), Asked({"x": 5}, {"mode": "odd"})])
    assert [[int(x) for x in got.events["scalar"]] for got in found] == [[105, 11, 11], [15, 105]]


TYPED = (
    HEAD
    + """
config { most = n.most }
type spot = (ids: i64[T], start: i64, name: text)
param length : int in 1..most = 3
param width  : int in length..2 * most = 7
param salt   : bytes
walk show(part: spot, k: i64) {
    emit n.total(part.ids) as tensor
    emit n.add(part.start, k) as scalar
}
request r(mode: enum(small, bigger), where: spot, more: i64?) -> tensor, scalar {
    show(where, chosen(mode, salt, more))
}
"""
)


def spot(*ids: int) -> dict[str, Any]:
    return {"ids": np.array(ids), "start": 40, "name": "here"}


async def test_inputs_of_declared_types_and_enums_and_params_of_bytes(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, TYPED, BINDING)
    given = Asked({"mode": "bigger", "where": spot(1, 2, 4)}, {"salt": b"abc"})
    (got,) = await served(linked, [given])
    due = interpreted(
        program, linked, Asked({**given.inputs, "where": SimpleNamespace(kind="spot", **spot(1, 2, 4))}, given.params)
    )
    same(got, due, 0)
    assert (int(got.events["tensor"][0]), int(got.events["scalar"][0])) == (7, 40 + 6 + 3)
    (text,) = await served(linked, [Asked(given.inputs, {"salt": "YWJj"})])
    same(text, due, 0)


@pytest.mark.parametrize(
    ("inputs", "params", "says"),
    [
        ({"mode": "large"}, {}, "`mode` must be one of small, bigger"),
        ({"where": 3}, {}, "`where` must be an object with the fields of `spot`"),
        ({"where": {"ids": [1], "start": 1}}, {}, "input `where` needs the field `name`"),
        ({"where": {**spot(1), "begin": 2}}, {}, "input `where` takes no field `begin`"),
        ({"where": {**spot(1), "ids": [[1]]}}, {}, "`ids` has 2 dims"),
        ({}, {"salt": "a b"}, "`salt` must be bytes as base64 text"),
        ({}, {"length": 8}, "`length` must be in 1..7, not 8"),
        ({}, {"length": 5, "width": 4}, "`width` must be in 5..14, not 4"),
    ],
)
async def test_what_does_not_fit_is_refused(
    tmp_path: Path, inputs: dict[str, Any], params: dict[str, Any], says: str
) -> None:
    _, linked = compiled(tmp_path, TYPED, BINDING)
    good = {"mode": "small", "where": spot(1), **inputs}
    with pytest.raises(BadRequest) as error:
        await served(linked, [Asked(good, {"salt": b"a", **params})])
    assert says in str(error.value)


KEEPING = """model keeping
cache   kv   : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 4)
context a, b on kv max 64
node lm : transformer(kv) {
    state seen : i64 = 0
    op step(token: i64) -> y: f32[2]  { attend causal  positions seq }
}
walk w(x: i64) { emit lm.step(x) writes (a, b) as tensor }
request r(x: i64) -> tensor { w(x) }
"""


def test_cells_on_several_contexts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.walk").write_text(KEEPING)
    (tmp_path / "x.yaml").write_text("components: {lm: nowhere.Lm}\n")
    found = compile_model(tmp_path / "x.walk", tmp_path / "package")
    assert str(found.fault).startswith("not built yet: op `lm.step`, which draws or keeps cells, on several contexts")
