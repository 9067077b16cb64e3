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
