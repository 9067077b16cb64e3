"""The twelve sentences of the language's semantics (`specs/README.md`, "Semantics in twelve sentences"), one test or more each.

A program's text is compiled and served, in two orders of turns and with other requests in its batches; all must give what the
interpreter gives, and that is compared with what the sentence says.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from mstarc.workspace import load_model
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.package import load_conductor
from mstarc_runtime.sampling.philox import DrawKey, normals
from tests.codegen.written import Asked, agree, compiled, served

PLACE = "tests.codegen.gap_components"
SUMS = """model m
node n : stateless {
    op next(x: i64) -> y: i64
    op add(x: i64, more: i64?) -> y: i64
    op total(xs: i64[m]) -> y: i64
}
"""


def binding(*nodes: str, extern: bool = False) -> str:
    classes = {"n": "Sums", "t": "Table", "lm": "Places"}
    lines = ["components:", *(f"  {node}: {PLACE}.{classes[node]}" for node in nodes)]
    return "\n".join([*lines, *(["externs:", f"  doubled: {PLACE}.doubled"] if extern else [])]) + "\n"


def codes(folder: Path, text: str) -> set[str]:
    (folder / "m.walk").write_text(text)
    return {found.rule.code for found in load_model(folder / "m.walk").checked.findings}


def numbers(values: list[Any]) -> list[Any]:
    return [np.asarray(value).tolist() for value in values]


async def test_sentence_1_phases(tmp_path: Path) -> None:
    """A device value steers in `stop when` and `where` only; through an extern it becomes a host value."""
    walk = "walk w(x: i64) {{ y = n.next(x)  {line} }}\nrequest r(x: i64) -> scalar {{ w(x) }}\n"
    assert "MC305" in codes(tmp_path, SUMS + walk.format(line="emit y as scalar when y > 3"))
    text = SUMS + "extern doubled(x: i64) -> i64\n" + walk.format(line="z = doubled(y)  emit z as scalar when z > 7")
    found = await agree(tmp_path, text, binding("n", extern=True), [Asked({"x": 2}), Asked({"x": 5})])
    assert [numbers(got.events.get("scalar", [])) for got in found] == [[], [12]]


async def test_sentence_2_draws(tmp_path: Path) -> None:
    """The lowest id on ties; an id counts for the penalty from then on, also one that nothing uses."""
    text = """model m
sampler pick { temperature = 0, repetition_penalty = 2.0, suppress = 3 }
node t : stateless { op logits(x: i64) -> logits: f32[4] }
walk w(x: i64) {
    a = sample(pick, t.logits(x))
    unused = sample(pick, t.logits(x))
    emit a as text
    loop more times 3 { emit sample(pick, t.logits(x)) as text }
}
request r(x: i64) -> text { w(x) }
"""
    (got,) = await agree(tmp_path, text, binding("t"), [Asked({"x": 1})])
    assert numbers(got.events["text"]) == [
        0,
        2,
        0,
        0,
    ]  # 1 was drawn and not shown; when all are penalised, 0 leads again


STREAM = (
    SUMS
    + """
param count : int in 1..100000 = 9
stream s : i64  where item % 2 == 0  by fixed(1)  capacity 2
walk give(x: i64) {
    loop giving times count carry x {
        send x -> s
        x = n.next(x)
    }
    emit x as scalar
}
walk take() { for item in s { emit item as tensor } }
request r(x: i64) -> scalar, tensor? {
    together {
        giving: give(x)
        taking: if wants(tensor) { take() }
    }
}
"""
)


async def test_sentence_3_sends(tmp_path: Path) -> None:
    """Items in order, none where `where` is false; without a consumer they vanish, and the producer never waits."""
    asked = [Asked({"x": 1}, wants=frozenset({"scalar", "tensor"})), Asked({"x": 1}, wants=frozenset({"scalar"}))]
    heard, alone = await agree(tmp_path, STREAM, binding("n"), asked)
    assert numbers(heard.events["tensor"]) == [2, 4, 6, 8]
    assert numbers(alone.events["scalar"]) == [10] and "tensor" not in alone.events


async def test_sentence_4_takes(tmp_path: Path) -> None:
    """Full chunks in order, then the tail if `at_end` says so; two streams are taken together."""
    text = (
        SUMS
        + """
param count : int in 0..20 = 7
stream s : i64  by fixed(3)  at_end END  capacity 6
walk give(x: i64) { loop giving times count carry x { send x -> s  x = n.next(x) } }
walk take() { for c in s { emit n.total(c) as scalar } }
request r(x: i64) -> scalar? { together { giving: give(x)  taking: take() } }
"""
    )
    for end, due in (("drop", [3, 12]), ("partial", [3, 12, 6])):
        (got, none) = await agree(
            tmp_path, text.replace("END", end), binding("n"), [Asked({"x": 0}), Asked({"x": 0}, {"count": 0})]
        )
        assert numbers(got.events["scalar"]) == due and none.events == {}


async def test_sentence_5_end_of_stream(tmp_path: Path) -> None:
    """After the end `next` is absent at once and for ever."""
    text = (
        SUMS
        + """
stream s : i64  by fixed(1)  after_end empty  capacity 2
walk give(x: i64) { loop giving times 3 carry x { send x -> s  x = n.next(x) } }
walk take() { loop taking times 6 { emit n.add(0, next(s)) as scalar } }
request r(x: i64) -> scalar { together { giving: give(x)  taking: take() } }
"""
    )
    (got,) = await agree(tmp_path, text, binding("n"), [Asked({"x": 7})])
    assert numbers(got.events["scalar"]) == [7, 8, 9, 100, 100, 100]  # 100 stands for an absent one


async def test_sentence_6_together(tmp_path: Path) -> None:
    """What changes belongs to one arm, so no order of turns is seen."""
    walk = SUMS + "walk w(x: i64) { emit n.next(x) as scalar }\nwalk v(x: i64) { emit x as scalar }\n"
    arms = "request r(x: i64) -> scalar { together { a: w(x)  b: v(x) } }\n"
    assert codes(tmp_path, walk + arms) & {"MC104", "MC105"}
    _, linked = compiled(tmp_path, STREAM, binding("n"))
    asked = [Asked({"x": x}, wants=frozenset({"scalar", "tensor"})) for x in (1, 4)]
    first = [got.events for got in await served(linked, asked)]
    for shuffle in range(5):
        assert [got.events for got in await served(linked, asked, shuffle)] == first


async def test_sentence_7_stops(tmp_path: Path) -> None:
    """Effects above a stop have happened, those below have not, carried names keep what they have there."""
    text = (
        SUMS
        + """
param end : int in 0..99 = 5
walk w(x: i64) {
    loop l max 4 carry x {
        emit x as text
        x = n.next(x)
        stop when x == end
        emit x as tensor
    }
    emit x as scalar
}
request r(x: i64) -> text?, tensor?, scalar { w(x) }
"""
    )
    cut, whole = await agree(tmp_path, text, binding("n"), [Asked({"x": 3}), Asked({"x": 3}, {"end": 50})])
    assert [numbers(cut.events[name]) for name in ("text", "tensor", "scalar")] == [[3, 4], [4], [5]]
    assert [numbers(whole.events[name]) for name in ("text", "tensor", "scalar")] == [[3, 4, 5, 6], [4, 5, 6, 7], [7]]
    assert (cut.causes, whole.causes) == ({"w.l": "stop"}, {"w.l": "max"})


async def test_sentence_8_loop_results(tmp_path: Path) -> None:
    text = (
        SUMS
        + """
param count : int in 0..20 = 3
walk w(x: i64) {
    loop l times count carry x {
        collect x as xs
        x = n.next(x)
    }
    emit x as scalar
    emit xs as tensor
}
request r(x: i64) -> scalar, tensor { w(x) }
"""
    )
    some, none = await agree(tmp_path, text, binding("n"), [Asked({"x": 3}), Asked({"x": 3}, {"count": 0})])
    assert (numbers(some.events["scalar"]), numbers(some.events["tensor"])) == ([6], [[3, 4, 5]])
    assert (numbers(none.events["scalar"]), numbers(none.events["tensor"])) == ([3], [[]])


LM = """model m
param guided : bool = true
cache   kv   : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 4)
context main, copy on kv max 64
context side on kv max 64 when guided
node lm : transformer(kv) {
    op read(ids: i64[T]) -> seen: f32[2]     { attend causal  positions seq }
    op block(ids: i64[T]) -> seen: f32[2]    { attend full    positions same  advance 1 }
    op peek(x: f32[1]) -> seen: f32[2]       { attend full  takes 1  positions same  frozen }
}
"""


async def test_sentence_9_contexts(tmp_path: Path) -> None:
    """A mean of ids tells what a context holds: copied by a fork, untouched by a frozen read, empty after a drop.

    One that is off binds absent.
    """
    text = (
        LM
        + """
walk w(ids: i64[T], zero: f32[1]) {
    emit lm.read(ids) writes (main, side) as tensor
    fork copy from main
    lm.read(ids) writes main
    emit lm.peek(zero) reads copy as tensor
    emit lm.peek(zero) reads main as tensor
    emit present(lm.peek(zero) reads side) as scalar
    drop main
    emit lm.read(ids) writes main as tensor
}
request r(ids: i64[T], zero: f32[1]) -> tensor, scalar { w(ids, zero) }
"""
    )
    given = {"ids": np.array([2, 4]), "zero": np.zeros(1, np.float32)}
    on, off = await agree(tmp_path, text, binding("lm"), [Asked(given), Asked(given, {"guided": False})], atol=1e-6)
    seen = np.array(numbers(on.events["tensor"]))
    np.testing.assert_allclose(seen[:, 0], [3, 6 / 3, 12 / 5, 3], atol=1e-6)
    assert numbers(on.events["scalar"]) == [True] and numbers(off.events["scalar"]) == [False]


async def test_sentence_10_positions(tmp_path: Path) -> None:
    """`seq` counts entries, `same` gives one place to all, the counter moves apart from the length, frozen reads move nothing."""
    text = (
        LM
        + """
walk w(ids: i64[T], zero: f32[1]) {
    emit lm.read(ids) writes main as tensor
    emit lm.block(ids) writes main as tensor
    emit lm.peek(zero) reads main as tensor
    emit lm.read(ids) writes main as tensor
}
request r(ids: i64[T], zero: f32[1]) -> tensor { w(ids, zero) }
"""
    )
    given = {"ids": np.array([2, 4, 6]), "zero": np.zeros(1, np.float32)}
    (got,) = await agree(tmp_path, text, binding("lm"), [Asked(given)], atol=1e-6)
    assert [row[1] for row in numbers(got.events["tensor"])] == [2, 3, 4, 6]  # of the last row: 0..2, 3, 4, 4..6


async def test_sentence_11_randomness(tmp_path: Path) -> None:
    """The j-th draw of a site is a function of seed, walk, site and j: also in a batch, also of a walk that runs twice."""
    text = """model m
param steps : int in 1..9 = 2
walk w(x: i64) { loop l times steps { y = noise(f32[3])  half = noise(f16[2])  emit y as tensor  emit half as scalar } }
request r(x: i64) -> tensor, scalar { w(x)  w(x) }
"""
    asked = [Asked({"x": 1}, seed=4), Asked({"x": 2}, {"steps": 3}, seed=4), Asked({"x": 1}, seed=9)]
    for one, got in zip(asked, await agree(tmp_path, text, "components: {}\n", asked), strict=True):
        due = [normals((3,), DrawKey(one.seed, "w/y", j)).tolist() for j in range(2 * one.params.get("steps", 2))]
        assert numbers(got.events["tensor"]) == due


async def test_sentence_12_cancellation(tmp_path: Path) -> None:
    """A cancelled request gives everything back and changes no other one; nothing of it comes after."""
    _, linked = compiled(tmp_path, STREAM, binding("n"))
    (due,) = await served(linked, [Asked({"x": 1}, wants=frozenset({"scalar", "tensor"}))])
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        long = await engine.submit("r", {"x": 100000}, {"count": 100000}, ("scalar", "tensor"))
        short = await engine.submit("r", {"x": 1}, {}, ("scalar", "tensor"))
        seen: list[Any] = []
        async with asyncio.timeout(20):
            async for event in long.events():
                seen.append(event.value)
                if len(seen) == 3:
                    break
            long.cancel()
            other = [(event.modality, int(event.value)) async for event in short.events()]
            while any(engine.gauges().values()):
                await asyncio.sleep(0.001)
        assert [int(x) for x in seen] == [100000, 100002, 100004]
        assert sorted(other) == sorted((name, int(x)) for name, values in due.events.items() for x in values)
    finally:
        await engine.stop()
