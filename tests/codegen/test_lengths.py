"""Lengths that a request makes negative: it fails with the expression and where it stands, on the interpreter and on the engine alike, and
a request beside it does not notice.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc.interp.errors import ExecutionError
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from tests.codegen.written import Asked, compiled, interpreted

HEAD = """
model m
param less : int in 0..20 = 0
cache   kv   : kv(layers = 2, heads = 2, kv_heads = 1, head_dim = 4)
context main on kv max 100
node lm : transformer(kv) {
    op read(ids: i64[T])     { attend causal  positions seq }
    op look(rows: f32[N, 8]) { attend full  takes N - less  positions same  advance 1 }
    op drift(x: f32[N, 8], t: f32) -> v: f32[N, 8]  { attend full  takes N  positions same  frozen }
}
"""
NOISE = """
walk w(ids: i64[T]) {
    lm.read(ids) writes main
    x = noise(f32[len(ids) - less, 8])
    emit lm.drift(x, 0.5) reads main as tensor
}
request r(ids: i64[T]) -> tensor { w(ids) }
"""
IN_A_LOOP = """
walk w(ids: i64[T]) {
    lm.read(ids) writes main
    x = noise(f32[len(ids), 8])
    loop l times 3 carry x {
        z = noise(f32[len(ids) - less, 8])
        x = x + lm.drift(x, 0.5) reads main + z
    }
    emit x as tensor
}
request r(ids: i64[T]) -> tensor { w(ids) }
"""
TAKES = """
walk w(ids: i64[T]) {
    lm.read(ids) writes main
    lm.look(noise(f32[len(ids), 8])) writes main
    emit lm.drift(noise(f32[4, 8]), 0.5) reads main as tensor
}
request r(ids: i64[T]) -> tensor { w(ids) }
"""
BINDING = "components: {lm: tests.codegen.branch_components.Lm}\n"


@pytest.mark.parametrize(
    ("walk", "interpreter", "engine"),
    [
        (NOISE, "`len(ids) - less` is -4, and a length", "noise `x` is to be f32[-4, 8], and a length is 0 or more"),
        (IN_A_LOOP, "noise `z`: `len(ids) - less` is -4", "noise `z` is to be f32[-4, 8], and a length is 0 or more"),
        (
            TAKES,
            "`takes` of op `lm.look`: `N - less` is -4",
            "`takes` of op `look`: `(dim 0 of argument 1 - less)` is -4",
        ),
    ],
)
async def test_a_negative_length_ends_its_request_alone(
    walk: str, interpreter: str, engine: str, tmp_path: Path
) -> None:
    program, linked = compiled(tmp_path, HEAD + walk, BINDING)
    ids = np.arange(5)
    bad, good = Asked({"ids": ids}, {"less": 9}), Asked({"ids": ids}, {"less": 0}, seed=1)
    with pytest.raises(ExecutionError) as told:
        interpreted(program, linked, bad)
    assert interpreter in str(told.value)
    running = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await running.start()
    try:
        runs = [await running.submit("r", dict(one.inputs), dict(one.params), seed=one.seed) for one in (bad, good)]
        async with asyncio.timeout(20):
            with pytest.raises(RequestFailed) as failed:
                await values(runs[0])
            (value,) = await values(runs[1])
        assert engine in str(failed.value)
        np.testing.assert_allclose(value, interpreted(program, linked, good).events["tensor"][0], rtol=1e-4, atol=1e-5)
    finally:
        await running.stop()


async def values(run: Any) -> list[Any]:
    return [event.value async for event in run.events()]
