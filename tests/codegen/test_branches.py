"""Branches over contexts with equal histories: generated code on the paged engine = interpreter, and what the engine did not run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mstarc_runtime.cache.pool import PagedPool
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from tests.codegen import branch_components
from tests.codegen.written import Asked, Got, compiled, interpreted, same, served

SPEC = """
model branches
param steps : int in 1..9 = 3
param think : bool = false
param text  : float in 0.0..9.0 = 4.0
param image : float in 0.0..9.0 = 2.0
type words   = (ids: i64[T])
type picture = (rows: f32[N, 8])
extern parts(ids: i64[A], order: text) -> list(words | picture)
cache   kv : kv(layers = 2, heads = 2, kv_heads = 1, head_dim = 4)
context main on kv max 100
context no_text  on kv max 100 when text > 1
context no_image on kv max 100 when text > 1 and image > 1
node lm : transformer(kv) {
    op read(ids: i64[T])                            { attend causal  positions seq }
    op look(rows: f32[N, 8])                        { attend full  takes N  positions same advance 1 }
    op flow(x: f32[3, 8], t: f32) -> v: f32[3, 8]   { attend full  takes 3  positions same  frozen }
}
walk tell(part: words) {
    fork no_text from main
    lm.read(part.ids) writes (main, no_image)
}
walk see(part: picture) {
    lm.look(part.rows) writes main
    fork no_text from main
}
walk note(ids: i64[T]) { lm.read(ids) writes main }
walk draw() {
    x = noise(f32[3, 8])
    loop denoise times steps carry x {
        on = iter > 0
        parallel {
            v = lm.flow(x, iter / steps) reads main
            a = lm.flow(x, iter / steps) reads no_text   when on
            b = lm.flow(x, iter / steps) reads no_image  when on
        }
        x = x - guide(v, a, b, text, image) / steps
    }
    emit x as tensor
}
request r(ids: i64[A], order: text) -> tensor {
    for part in parts(ids, order) {
        case words   { tell(part) }
        case picture { see(part) }
    }
    if think { note(ids) }
    draw()
}
"""
BINDING = """
components:
  lm: tests.codegen.branch_components.Lm
externs:
  parts: tests.codegen.branch_components.parts
"""


async def ran(folder: Path, *asked: Asked, spec: str = SPEC) -> list[tuple[str, int]]:
    """(op, rows of contexts) of each call that the paged engine made for requests that agree with the interpreter."""
    program, linked = compiled(folder, spec, BINDING)
    branch_components.CALLS.clear()
    found = await served(linked, asked)
    calls = [(op, rows) for kind, op, rows in branch_components.CALLS if kind == "PagedRun"]
    for one, got in zip(asked, found, strict=True):
        same(got, interpreted(program, linked, one), 1e-5)
    return calls


def flows(calls: list[tuple[str, int]]) -> list[int]:
    return [rows for op, rows in calls if op == "flow"]


async def test_an_equal_context_is_written_and_read_once(tmp_path: Path) -> None:
    """A text alone: `no_image` is `main`, `no_text` is empty. The text is run once, a guided step has two branches in one call."""
    calls = await ran(tmp_path, Asked({"ids": [3, 1, 4], "order": "w"}))
    assert calls == [("read", 1), ("flow", 1), ("flow", 2), ("flow", 2)]


@pytest.mark.parametrize(
    ("order", "params", "guided"),
    [
        ("w", {}, 2),
        ("ww", {}, 2),
        ("w", {"think": True}, 3),  # the thought is in `main` alone
        ("pw", {}, 3),
        ("wp", {}, 2),  # the fork after the picture makes `no_text` what `main` is
        ("p", {}, 2),
        ("", {}, 1),  # all are empty
        ("pw", {"image": 1.0}, 2),  # `no_image` is off
        ("pw", {"text": 1.0}, 1),
    ],
)
async def test_branches_that_run(tmp_path: Path, order: str, params: dict[str, Any], guided: int) -> None:
    calls = await ran(tmp_path, Asked({"ids": [3, 1, 4, 1], "order": order}, params, seed=7))
    assert flows(calls) == [1, guided, guided]


@pytest.mark.parametrize(
    ("text", "image", "guided"), [(4.0, 2.0, 3), (4.0, 1.0, 2), (4.0, 0.5, 2), (1.0, 2.0, 1), (0.0, 0.0, 1)]
)
@pytest.mark.parametrize("interval", [True, False])
async def test_a_branch_whose_scale_is_at_most_one_is_not_computed(
    tmp_path: Path, text: float, image: float, guided: int, interval: bool
) -> None:
    """Also where the author guards neither the contexts nor the calls by the scales."""
    spec = SPEC.replace(" when text > 1 and image > 1", "").replace(" when text > 1", "")
    spec = spec if interval else spec.replace(" when on", "").replace("        on = iter > 0\n", "")
    asked = Asked({"ids": [3, 1, 4], "order": "pw"}, {"text": text, "image": image}, seed=3)
    calls = await ran(tmp_path, asked, spec=spec)
    assert flows(calls) == [1 if interval else guided, guided, guided]
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--check", str(tmp_path)]
    assert subprocess.run(ruff, capture_output=True, check=False).returncode == 0, (
        "conditions that need lines of their own"
    )


async def test_requests_of_every_kind_at_once(tmp_path: Path) -> None:
    """Rows of several requests share a batch, and no branch of one is taken for another's."""
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("w", {}),
        ("w", {}),
        ("pw", {}),
        ("w", {"think": True}),
        ("", {"steps": 5}),
    ]
    asked = [Asked({"ids": [2, 7, 1], "order": order}, params, seed=k) for k, (order, params) in enumerate(kinds)]
    calls = await ran(tmp_path, *asked)
    alone = 2 * (1 + 2 + 2) + 2 * (1 + 3 + 3) + 5
    assert sum(flows(calls)) == alone


async def test_in_any_order_of_turns(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, SPEC, BINDING)
    asked = [Asked({"ids": [2, 7, 1], "order": order}, seed=k) for k, order in enumerate(("w", "pw", "wp", "ww"))]
    due = [interpreted(program, linked, one) for one in asked]
    for shuffle in range(6):
        for got, want in zip(await served(linked, asked, shuffle), due, strict=True):
            same(got, want, 1e-5)


async def test_forks_in_a_full_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool holds the largest request alone: contexts that share pages go to the host and come back, or one copies a page there."""
    program, linked = compiled(tmp_path, SPEC, BINDING)
    linked = replace(linked, caches=[replace(cache, pages=12, swap=80) for cache in linked.caches])
    moved: list[int] = []
    swap_out = PagedPool.swap_out

    def noted(pool: PagedPool, page: int) -> int | None:
        pool.poison = True
        moved.append(pool.refs(page))
        return swap_out(pool, page)

    monkeypatch.setattr(PagedPool, "swap_out", noted)
    orders = ("pww", "w", "wpw", "wwp", "pw", "ww", "pww")
    ids = [[(3 * k + n) % 20 for n in range(20 - k)] for k in range(len(orders))]
    asked = [Asked({"ids": ids[k], "order": order}, seed=k) for k, order in enumerate(orders)]
    due = [interpreted(program, linked, one) for one in asked]
    for shuffle in (None, *range(4)):
        for got, want in zip(await served(linked, asked, shuffle), due, strict=True):
            same(got, want, 1e-5)
    assert min(moved) == 1 < max(moved), "pages of one context, and such that forks share"


async def test_a_branch_that_fails_ends_its_request_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch of two requests fails, then one of them; the other's branches are what they are alone."""
    program, linked = compiled(tmp_path, SPEC, BINDING)
    plain = branch_components.Lm.flow

    def flow(self: branch_components.Lm, run: Any, x: Any, t: Any) -> Any:
        if (t > 0.6).any():  # the third step of three, not of two
            raise ValueError("too late")
        return plain(self, run, x, t)

    monkeypatch.setattr(branch_components.Lm, "flow", flow)
    asked = [Asked({"ids": [2, 7], "order": "w"}, {"steps": steps}, seed=steps) for steps in (3, 2)]
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        runs = [await engine.submit("r", dict(a.inputs), dict(a.params), (), seed=a.seed) for a in asked]
        with pytest.raises(RequestFailed, match="too late"):
            [event async for event in runs[0].events()]
        values = [event.value async for event in runs[1].events()]
        async with asyncio.timeout(5):
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
    finally:
        await engine.stop()
    same(Got({"tensor": values}, {}), interpreted(program, linked, asked[1]), 1e-5)
