"""What ops are handed beside their arguments: generated code on the engine gives the interpreter's values, alone and in a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mstarc_runtime.sampling.philox import DrawKey, KeyedGenerator
from tests.codegen.written import Asked, agree

NOISE = """
model noisy
param steps : int in 1..50 = 3
node n : stateless {{ op jitter(x: i64) -> y: f32[3]  {{ random {batch} }} }}
walk once(x: i64) {{ emit n.jitter(x) as tensor }}
walk often(x: i64) {{
    loop around times steps carry x {{
        emit n.jitter(x) as scalar
        x = x + 1
    }}
}}
request r(x: i64) -> tensor, scalar {{
    once(x)
    often(x)
    once(x)
}}
"""
ASKED = [Asked({"x": 1}, seed=5), Asked({"x": 6}, {"steps": 4}, seed=5), Asked({"x": 30}, seed=6)]


@pytest.mark.parametrize(("batch", "name"), [("", "Plain"), ("batch stack", "Stacked")])
async def test_noise_of_stateless_ops(tmp_path: Path, batch: str, name: str) -> None:
    """Also with rows that fail in a batch (x = 7) and are run again alone: what they had drawn is drawn again."""
    binding = f"components:\n  n: tests.codegen.handed_components.{name}\n"
    found = await agree(tmp_path, NOISE.format(batch=batch), binding, ASKED)
    for got, one in zip(found, ASKED, strict=True):
        for j, value in enumerate(got.events["tensor"]):
            generator = KeyedGenerator(DrawKey(one.seed, "once/n.jitter", j))
            due = one.inputs["x"] + generator.normal(3) + 10 * generator.normal(3)
            np.testing.assert_allclose(value, due, rtol=1e-6)
    drawn = [tuple(value) for got in found for values in got.events.values() for value in values]
    assert len(set(drawn)) == len(drawn)


STIRRED = """
model stirred
param steps : int in 1..50 = 4
cache   kv : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
context a, b on kv max 100
node lm : transformer(kv) { op stir(token: i64) -> row: f32[8]  { attend causal  positions seq  random } }
walk w(x: i64) {
    loop around times steps carry x {
        emit lm.stir(x) writes (a, b) as tensor
        x = (x + 3) % 20
    }
    emit lm.stir(x) writes b as tensor
}
request r(x: i64) -> tensor { w(x) }
"""


async def test_noise_of_a_transformer_op_on_two_contexts(tmp_path: Path) -> None:
    binding = "components:\n  lm: tests.codegen.handed_components.Lm\n"
    asked = [Asked({"x": 1}, seed=5), Asked({"x": 6}, {"steps": 9}, seed=6), Asked({"x": 6}, seed=7)]
    found = await agree(tmp_path, STIRRED, binding, asked, atol=1e-5)
    assert [len(got.events["tensor"]) for got in found] == [5, 10, 5]


# ------------------------------------------------------------------------------------------------------------ samplers

SAMPLES = """
model filled
param heat  : float in 0.0..5.0 = 1.5
param steps : int in 1..50 = 5
sampler pick {{ temperature = heat, top_k = 9, repetition_penalty = 1.2 }}
node n : stateless {{
    op logits(x: i64) -> logits: f32[30]
    op fill(x: i64) -> ids: i64[4]  {{ samples pick {batch} }}
}}
walk w(x: i64) {{
    loop around times steps carry x {{
        emit n.fill(x) as tensor
        emit sample(pick, n.logits(x)) as text
        x = x + 1
    }}
}}
request r(x: i64) -> tensor, text {{ w(x) }}
"""


@pytest.mark.parametrize("batch", ["", "batch stack"])
async def test_an_op_draws_with_the_sampler_of_its_walk(tmp_path: Path, batch: str) -> None:
    """In-op draws and others of the walk have one history and one count of draws; a batch that fails is drawn again alone."""
    asked = [
        Asked({"x": 1}, {"steps": 9}, seed=3),
        Asked({"x": 6}, seed=3),
        Asked({"x": 30}, {"heat": 0.0}, seed=4),
        Asked({"x": 1}, {"steps": 9}, seed=8),
    ]
    found = await agree(
        tmp_path, SAMPLES.format(batch=batch), "components:\n  n: tests.codegen.handed_components.Filler\n", asked
    )
    ids = [[list(map(int, row)) for row in got.events["tensor"]] for got in found]
    assert ids[0] != ids[3] and len(ids[0]) == 9


FIRST = """
model firsts
param least : int in 0..9 = 3
sampler pick { temperature = 0, min_tokens = least + 1, ends = 0..19 }
node n : stateless { op logits(x: i64) -> logits: f32[30] }
walk w(x: i64) {
    loop around times 8 carry x {
        x = sample(pick, n.logits(x))
        emit x as text
    }
}
request r(x: i64) -> text { w(x) }
"""


async def test_min_tokens_keep_the_ends_from_the_first_draws(tmp_path: Path) -> None:
    binding = "components:\n  n: tests.codegen.handed_components.Filler\n"
    asked = [Asked({"x": x}, {"least": least}) for x, least in ((1, 0), (1, 3), (2, 7))]
    for one, got in zip(asked, await agree(tmp_path, FIRST, binding, asked), strict=True):
        first = one.params["least"] + 1
        assert all(int(x) >= 20 for x in got.events["text"][:first])
    assert any(int(x) < 20 for x in got.events["text"]) or one.params["least"] == 7


# --------------------------------------------------------------------------------------------------------------- cells

CELLS = """
model keeping
config {{ width = n.width }}
param start : int in 0..9 = 2
param steps : int in 1..50 = 6
let half = start * 0.5
node n : stateless {{
    state seen : i64 = start + 1
    state mean : f32[width] = half
    state flag : bool = false
    op count(x: i64) -> seen: i64, mean: f32[width], flag: bool {{ {batch} }}
}}
walk w(x: i64) {{
    loop around times steps carry x {{
        seen, mean, flag = n.count(x)
        emit seen as scalar
        emit mean as tensor
        x = x + 1
    }}
    _, _, flag = n.count(x)
    emit flag as action
}}
request r(x: i64) -> scalar, tensor, action {{ w(x) }}
"""


@pytest.mark.parametrize(("batch", "name"), [("", "Keeper"), ("batch stack", "StackedKeeper")])
async def test_cells_are_the_requests_own(tmp_path: Path, batch: str, name: str) -> None:
    """They begin anew in each request, count in each call once (also if a batch fails in between), and end with the request."""
    binding = f"config:\n  n:\n    width: 3\ncomponents:\n  n: tests.codegen.handed_components.{name}\n"
    asked = [Asked({"x": 1}, {"steps": 12}), Asked({"x": 6}), Asked({"x": 20}, {"start": 5})]
    found = await agree(tmp_path, CELLS.format(batch=batch), binding, asked)
    for one, got in zip(asked, found, strict=True):
        start = one.params.get("start", 2)
        assert [int(x) for x in got.events["scalar"]] == [start + 2 + i for i in range(one.params.get("steps", 6))]
    assert [bool(got.events["action"][0]) for got in found] == [True, True, False]


# ----------------------------------------------------------------------------------------------------------- positions

PLACES = """
model placed
param steps : int in 1..50 = 4
extern line(n: int) -> place: i64[T], span: i64
extern plane(n: int) -> place: i64[3, T], span: i64
cache   kv   : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
context a, b on kv max 200
node lm : transformer(kv) {
    op look(ids: i64[T], place: host i64[T], span: host i64) -> row: f32[8]
        { attend causal  takes T  positions at place advance span + 1 }
    op plane(ids: i64[T], place: host i64[3, T], span: host i64) -> row: f32[8]
        { attend full  takes T  positions at place advance span }
    op step(token: i64) -> row: f32[8]  { attend causal  positions seq }
}
walk w(ids: i64[T]) {
    place, span = line(len(ids))
    emit lm.look(ids, place, span) writes a as tensor
    emit lm.look(ids, place, span) writes a as tensor
    loop around times steps { emit lm.step(iter) writes a as tensor }
    axes, turn = plane(len(ids))
    emit lm.plane(ids, axes, turn) writes b as tensor
    emit lm.step(3) writes b as tensor
}
request r(ids: i64[T]) -> tensor { w(ids) }
"""


async def test_positions_at(tmp_path: Path) -> None:
    names = "components:\n  lm: tests.codegen.handed_components.Placed\nexterns:\n"
    names += "".join(f"  {name}: tests.codegen.handed_components.{name}\n" for name in ("line", "plane"))
    asked = [Asked({"ids": np.array(ids)}) for ids in ([3, 1, 4], [5, 9, 2, 6, 5], [7])]
    asked.append(Asked({"ids": np.array([3, 1, 4])}, {"steps": 9}))
    found = await agree(tmp_path, PLACES, names, asked, atol=1e-5)
    assert [len(got.events["tensor"]) for got in found] == [8, 8, 8, 13]
