"""Regions whose values differ in size from request to request: a flow with guided and plain steps over contexts that may be off. Generated
code on the paged engine = interpreter, for requests of many kinds in one batch, and what the engine did not run.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mstarc.interp.errors import ExecutionError
from mstarc.passes.form_regions import regions_of
from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.device_regions import DeviceOptions
from tests.codegen import branch_components
from tests.codegen.written import Asked, Got, compiled, interpreted, same, served
from tests.runtime.device_harness import LateRunner

SPEC = """
model ragged
param steps  : int in 2..9 = 4
param bend   : float in 0.1..9.0 = 3.0
param text   : float in 0.0..9.0 = 4.0
param image  : float in 0.0..9.0 = 2.0
param above  : float in 0.0..1.0 = 0.4
param renorm : enum(global, channel, text_channel) = global
param least  : float in 0.0..1.0 = 0.0
param stir   : float in 0.0..1.0 = 0.0
type words   = (ids: i64[T])
type picture = (rows: f32[N, 8])
extern parts(ids: i64[A], order: text) -> list(words | picture)
cache   kv : kv(layers = 2, heads = 2, kv_heads = 1, head_dim = 4)
context main on kv max 100
context no_text  on kv max 100 when text > 1
context no_image on kv max 100 when text > 1 and image > 1
node lm : transformer(kv) {
    op read(ids: i64[T])                                { attend causal  positions seq }
    op look(rows: f32[N, 8])                            { attend full  takes N  positions same advance 1 }
    op drift(x: f32[N, 8], t: f32) -> v: f32[N, 8]      { attend full  takes N  positions same  frozen }
}
walk tell(part: words) {
    fork no_text from main
    lm.read(part.ids) writes (main, no_image)
}
walk see(part: picture) {
    lm.look(part.rows) writes main
    fork no_text from main
}
walk draw(h: i64, w: i64) {
    times = shift(linspace(1, 0, steps), bend)
    x = noise(f32[h * w, 8])
    loop denoise times steps - 1 carry x {
        t  = times[iter]
        on = above < t
        parallel {
            v = lm.drift(x, t) reads main
            a = lm.drift(x, t) reads no_text   when on
            b = lm.drift(x, t) reads no_image  when on
        }
        y = x - (t - times[iter + 1]) * guide(v, a, b, text, image, renorm, least)
        z = noise(f32[h * w, 8])
        x = y + stir * z
        SHOWN
    }
    emit x as tensor
}
request r(ids: i64[A], order: text, h: i64, w: i64) -> tensor {
    for part in parts(ids, order) {
        case words   { tell(part) }
        case picture { see(part) }
    }
    draw(h, w)
}
"""
BINDING = """
components:
  lm: tests.codegen.branch_components.Lm
externs:
  parts: tests.codegen.branch_components.parts
"""
PLAIN, SHOWN = SPEC.replace("SHOWN", ""), SPEC.replace("SHOWN", "emit x as tensor")


def drawing(order: str, h: int, w: int, seed: int, **params: Any) -> Asked:
    return Asked({"ids": [3, 1, 4, 1][: 2 + seed % 3], "order": order, "h": h, "w": w}, params, seed=seed)


#: of different sizes, lengths, guided steps (above 1.0: none), scales and kinds of renorm
MANY = [
    drawing("pw", 2, 3, 0),
    drawing("w", 1, 1, 1, renorm="channel", least=0.3),
    drawing("pwp", 4, 2, 2, steps=7, above=0.8),
    drawing("wpw", 3, 3, 3, above=0.0, renorm="text_channel", bend=1.0),
    drawing("pw", 1, 2, 4, text=1.0),
    drawing("pw", 2, 1, 5, image=1.0, stir=0.5),
    drawing("", 2, 2, 6, above=1.0, steps=2, stir=0.1),
]


def test_the_loop_is_a_region_with_a_body_for_each_phase(tmp_path: Path) -> None:
    program, _ = compiled(tmp_path, PLAIN, BINDING)
    region = regions_of(program)["draw"]["denoise"]
    assert region.ragged
    assert [body.method for body in region.bodies] == ["draw_denoise", "draw_denoise_2"]


async def test_requests_of_many_sizes_in_one_batch_are_what_they_are_alone(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, PLAIN, BINDING)
    due = [interpreted(program, linked, one) for one in MANY]
    batches = []
    for shuffle in (None, 1, 2):
        branch_components.CALLS.clear()
        for got, want in zip(await served(linked, MANY, shuffle), due, strict=True):
            same(got, want, 1e-5)
        batches += [rows for kind, op, rows in branch_components.CALLS if (kind, op) == ("PagedRun", "drift")]
    assert max(batches) > 3, "no batch held several requests with their branches"


async def test_a_rank_whose_regions_are_captured_runs_this_one_on_the_host(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, PLAIN, BINDING)
    options = DeviceOptions(LateRunner(1), unroll=3)
    for got, one in zip(await served(linked, MANY, regions=options), MANY, strict=True):
        same(got, interpreted(program, linked, one), 1e-5)


@pytest.mark.parametrize(
    ("order", "params", "guided"),
    [
        ("w", {}, 2),  # `no_image` is `main`, `no_text` is empty
        ("pw", {}, 3),
        ("wp", {}, 2),  # the fork after the picture makes `no_text` what `main` is
        ("", {}, 1),  # all are empty
        ("pw", {"image": 1.0}, 2),
        ("pw", {"text": 1.0}, 1),
    ],
)
async def test_equal_branches_are_run_once(tmp_path: Path, order: str, params: dict[str, Any], guided: int) -> None:
    program, linked = compiled(tmp_path, PLAIN, BINDING)
    asked = drawing(order, 2, 2, 8, above=0.7, **params)
    branch_components.CALLS.clear()
    (got,) = await served(linked, [asked])
    calls = [rows for kind, op, rows in branch_components.CALLS if (kind, op) == ("PagedRun", "drift")]
    assert calls == [guided, guided, 1], "shifted times 1, 0.857, 0.6"
    same(got, interpreted(program, linked, asked), 1e-5)


async def test_steps_in_a_pool_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests whose pages lie on the host have them back before their own calls of a step."""
    program, linked = compiled(tmp_path, PLAIN, BINDING)
    long = [replace(one, inputs={**one.inputs, "order": str(one.inputs["order"]) * 8}) for one in MANY]
    due = [interpreted(program, linked, one) for one in long]
    moved = []
    swap_out = PagedPool.swap_out

    def moves(pool: PagedPool, page: int) -> int | None:
        moved.append(page)
        return swap_out(pool, page)

    monkeypatch.setattr(PagedPool, "swap_out", moves)
    caches = [msgspec.structs.replace(cache, pages=24, swap=300) for cache in linked.caches]
    full = msgspec.structs.replace(linked, caches=caches)
    for shuffle in (None, 1):
        for got, want in zip(await served(full, long, shuffle), due, strict=True):
            same(got, want, 1e-5)
    assert moved


async def run_with_one_that_ends(tmp_path: Path, spec: str, cancelled: int = -1) -> tuple[list[Got], list[str]]:
    """What many requests show, and what those that failed say; one may be cancelled after two values."""
    _, linked = compiled(tmp_path, spec, BINDING)
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked, 3))
    await engine.start()
    failures: list[str] = []

    async def shown(run: Any, number: int) -> Got:
        values: list[Any] = []
        try:
            async for event in run.events():
                values.append(event.value)
                if number == cancelled and len(values) == 2:
                    run.cancel()
        except RequestFailed as error:
            failures.append(str(error))
        return Got({"tensor": values}, dict(run.outcome.causes))

    try:
        runs = [await engine.submit("r", dict(one.inputs), dict(one.params), (), seed=one.seed) for one in MANY]
        async with asyncio.timeout(30):
            found = await asyncio.gather(*(shown(run, k) for k, run in enumerate(runs)))
        async with asyncio.timeout(5):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
    finally:
        await engine.stop()
    return list(found), failures


async def test_a_cancelled_request_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, SHOWN, BINDING)
    found, failures = await run_with_one_that_ends(tmp_path, SHOWN, cancelled=2)
    assert len(found[2].events["tensor"]) < 7
    for k, (got, one) in enumerate(zip(found, MANY, strict=True)):
        if k != 2:
            same(got, interpreted(program, linked, one), 1e-5)
    assert len(failures) <= 1


async def test_a_request_that_fails_in_a_step_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call of the batch fails, then that request's own; the rest of the iteration goes on without it."""
    program, linked = compiled(tmp_path, PLAIN, BINDING)
    due = [interpreted(program, linked, one) for one in MANY]
    plain = branch_components.Lm.drift

    def drift(self: branch_components.Lm, run: Any, x: Any, t: Any) -> Any:
        if any(rows == 9 and time < 0.6 for rows, time in zip(run.rows, t.tolist(), strict=True)):
            raise ValueError("nine rows are too many now")
        return plain(self, run, x, t)

    monkeypatch.setattr(branch_components.Lm, "drift", drift)
    found, failures = await run_with_one_that_ends(tmp_path, PLAIN)
    assert len(failures) == 1
    assert "nine rows" in failures[0]
    for k, (got, want) in enumerate(zip(found, due, strict=True)):
        if k != 3:
            same(got, want, 1e-5)


UNEVEN = """
model uneven
param n : int in 1..5 = 3
node net : stateless { op turn(x: f32[N]) -> y: f32[N] }
walk go(x: f32[N]) {
    loop turns times n carry x {
        y = net.turn(x)
        x = x * 2 - y
        emit x as tensor
    }
    emit x as tensor
}
request r(x: f32[N]) -> tensor { go(x) }
"""


async def test_arithmetic_that_fails_for_one_request_ends_it_alone(tmp_path: Path) -> None:
    """A component gives one of three requests a result of another length than the walk computes with."""
    program, linked = compiled(tmp_path, UNEVEN, "components: {net: tests.codegen.branch_components.Turn}\n")
    assert regions_of(program)["go"]["turns"].ragged
    sizes = (2, 5, 3)
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        runs = [await engine.submit("r", {"x": np.ones(size, np.float32)}, {}, (), seed=0) for size in sizes]
        with pytest.raises(RequestFailed, match="size"):
            [event async for event in runs[1].events()]
        for k in (0, 2):
            async with asyncio.timeout(10):
                values = [event.value async for event in runs[k].events()]
            x = np.ones(sizes[k], np.float32)
            due = [x := x * 2 - np.sin(x) for _ in range(3)]
            np.testing.assert_allclose(values, [*due, x], rtol=1e-6)
    finally:
        await engine.stop()


DRIFT = (
    PLAIN[: PLAIN.index("    loop denoise")]
    + """    loop denoise max 9 carry x {
        v = lm.drift(x, times[0]) reads main
        x = x - 0.1 * v
        stop when iter == h
    }
"""
    + PLAIN[PLAIN.index("    emit x as tensor") :]
)


@pytest.mark.parametrize("spec", [PLAIN, DRIFT], ids=["guided", "drifting"])
async def test_a_call_of_no_entries_gives_nothing_to_compute_with(tmp_path: Path, spec: str) -> None:
    """An image of no rows: the interpreter refuses it, and so does the engine, while a request beside it goes on."""
    program, linked = compiled(tmp_path, spec, BINDING)
    none, one = drawing("w", 0, 1, 1), drawing("w", 2, 2, 2)
    with pytest.raises(ExecutionError, match="does not apply"):
        interpreted(program, linked, none)
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        runs = [await engine.submit("r", dict(asked.inputs), {}, (), seed=asked.seed) for asked in (none, one)]
        with pytest.raises(RequestFailed, match="absent" if spec is DRIFT else "draw"):
            [event async for event in runs[0].events()]
        async with asyncio.timeout(10):
            (value,) = [event.value async for event in runs[1].events()]
        (due,) = interpreted(program, linked, one).events["tensor"]
        np.testing.assert_allclose(value, due, rtol=1e-4, atol=1e-5)
    finally:
        await engine.stop()
