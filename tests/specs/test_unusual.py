"""Unusual programs, two or more for each of the twelve sentences: the engine gives what the interpreter gives, and that is the sentence.

What a sentence forbids is refused when the model is checked, with the code that is named here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.codegen.written import Asked, Got, agree
from tests.specs.test_sentences import LM, SUMS, binding, codes, numbers

MODES = "param mode : enum(plain, every) = plain\nparam k : int in 0..9 = 3\nparam f : float in 0.0..9.0 = 1.5\n"


def walk(body: str, more: str = "", out: str = "scalar, tensor?") -> str:
    return f"{SUMS}{MODES}{more}walk w(x: i64) {{\n{body}\n}}\nrequest r(x: i64) -> {out} {{ w(x) }}\n"


async def scalars(folder: Path, text: str, *asked: Asked, extern: bool = False) -> list[list[Any]]:
    found = await agree(folder, text, binding("n", extern=extern), asked or [Asked({"x": 2})])
    return [numbers(got.events.get("scalar", [])) for got in found]


# ---------------------------------------------------------------------------------------------------------------- 1 phases


async def test_1_a_stop_mixes_what_the_host_and_the_device_know(tmp_path: Path) -> None:
    """A word of an enum, a number and a device value in one condition, in a loop that runs for a batch of requests."""
    text = walk(
        """    loop l max 6 carry x {
        emit x as scalar
        x = n.next(x)
        stop when mode == every and x > k or x == 7
    }""",
        out="scalar",
    )
    asked = [Asked({"x": 2}), Asked({"x": 2}, {"mode": "every"}), Asked({"x": 4}, {"mode": "every", "k": 9})]
    assert await scalars(tmp_path, text, *asked) == [[2, 3, 4, 5, 6], [2, 3], [4, 5, 6]]


async def test_1_a_length_is_a_host_value(tmp_path: Path) -> None:
    text = walk(
        """    loop l times k carry x {
        collect x as xs
        x = n.next(x)
    }
    emit len(xs) as scalar when len(xs) > 2
    emit n.total(xs) as scalar""",
        out="scalar",
    )
    assert await scalars(tmp_path, text, Asked({"x": 1}), Asked({"x": 1}, {"k": 2})) == [[3, 6], [3]]


def test_1_a_device_value_in_the_bound_of_a_loop(tmp_path: Path) -> None:
    assert codes(tmp_path, walk("    y = n.next(x)\n    loop l times y { emit x as scalar }")) & {"MC305", "MC201"}


# ----------------------------------------------------------------------------------------------------------------- 2 draws

DRAW = """model m
param top : int in 0..4 = 0
sampler pick { temperature = 0, suppress = 1..2 except 2, top_k = top }
sampler other { temperature = 0, min_tokens = 2, ends = 0 }
node t : stateless { op logits(x: i64) -> logits: f32[4] }
walk w(x: i64) { BODY }
request r(x: i64) -> text { w(x) }
"""


async def drawn(folder: Path, body: str, *asked: Asked) -> list[list[Any]]:
    found = await agree(folder, DRAW.replace("BODY", body), binding("t"), asked or [Asked({"x": 1})])
    return [numbers(got.events["text"]) for got in found]


async def test_2_two_samplers_have_two_histories(tmp_path: Path) -> None:
    body = "loop l times 4 { emit sample(pick, t.logits(x)) as text  emit sample(other, t.logits(x)) as text }"
    assert await drawn(tmp_path, body) == [[0, 1, 0, 1, 0, 0, 0, 0]]


async def test_2_a_word_decides_when_to_stop_drawing(tmp_path: Path) -> None:
    """In a loop of torch components that runs for a batch of requests."""
    text = DRAW.replace("param top", "param mode : enum(plain, every) = plain\nparam top")
    body = """y = sample(pick, t.logits(x))
    loop l max 4 carry y {
        emit y as text
        stop when mode == every and y == 0
        y = sample(pick, t.logits(y))
    }"""
    asked = [Asked({"x": 1}), Asked({"x": 1}, {"mode": "every"})]
    found = await agree(tmp_path, text.replace("BODY", body), binding("t"), asked)
    assert [numbers(got.events["text"]) for got in found] == [[0, 0, 0, 0], [0]]


async def test_2_a_guarded_draw_that_does_not_happen_is_no_draw(tmp_path: Path) -> None:
    body = "loop l times 3 { _ = sample(other, t.logits(x)) when iter == top  emit sample(other, t.logits(x)) as text }"
    asked = [Asked({"x": 1}, {"top": top}) for top in (0, 1, 4)]
    assert await drawn(tmp_path, body, *asked) == [[1, 0, 0], [1, 0, 0], [1, 1, 0]]


# ----------------------------------------------------------------------------------------------------------------- 3 sends

ARMS = """
stream s : i64  by fixed(1)  after_end empty  capacity 1
stream q : i64  by fixed(2)  at_end pad(repeat)  capacity 2
walk give(x: i64) { GIVE }
walk take(x: i64) { TAKE }
request r(x: i64) -> scalar, tensor? { together { giving: give(x)  taking: take(x) } }
"""


def arms(give: str, take: str) -> str:
    text = SUMS + MODES + ARMS.replace("GIVE", give).replace("TAKE", take)
    return "\n".join(
        line for line in text.splitlines() if not line.startswith("stream") or f"-> {line.split()[1]}" in give
    ).replace(", tensor?", "" if "as tensor" not in text else ", tensor")


async def test_3_a_guarded_send_of_a_guarded_value(tmp_path: Path) -> None:
    give = "loop l times 5 carry x { send x -> s when iter % 2 == 0  x = n.next(x) }"
    assert await scalars(tmp_path, arms(give, "for c in s { emit c as scalar }")) == [[2, 4, 6]]


async def test_3_a_consumer_that_ends_early_lets_the_producer_go_on(tmp_path: Path) -> None:
    give = "loop l times 9 carry x { send x -> s  x = n.next(x) }\n    emit x as tensor"
    take = "loop l max 9 { y = next(s)  emit n.add(0, y) as scalar  stop when iter == 2 }"
    (got,) = await agree(tmp_path, arms(give, take), binding("n"), [Asked({"x": 0})])
    assert (numbers(got.events["scalar"]), numbers(got.events["tensor"])) == ([0, 1, 2], [9])


async def test_3_a_host_value_can_be_sent(tmp_path: Path) -> None:
    assert await scalars(
        tmp_path, arms("loop l times k { send iter * 2 -> s }", "for c in s { emit c as scalar }")
    ) == [[0, 2, 4]]


# ----------------------------------------------------------------------------------------------------------------- 4 takes


async def test_4_a_padded_tail_repeats_its_last_item(tmp_path: Path) -> None:
    give = "loop l times 3 carry x { send x -> q  x = n.next(x) }"
    take = "for two in q { emit n.total(two) as scalar when two.new == 2  emit n.total(two) as scalar when two.tail }"
    assert await scalars(tmp_path, arms(give, take)) == [[5, 8]]


async def test_4_a_stream_without_an_item(tmp_path: Path) -> None:
    give = "loop l times k carry x { send x -> q  x = n.next(x) }"
    take = "emit x as scalar\n    for two in q { emit n.total(two) as scalar }\n    emit x as scalar"
    assert await scalars(tmp_path, arms(give, take), Asked({"x": 2}, {"k": 0})) == [[2, 2]]


async def test_4_fields_of_a_chunk_are_host_values(tmp_path: Path) -> None:
    give = "loop l times 5 carry x { send x -> q  x = n.next(x) }"
    take = "for two in q { emit two.index * 10 + two.new as scalar  emit n.total(two) as scalar when two.first }"
    assert await scalars(tmp_path, arms(give, take)) == [[2, 5, 12, 21]]


# ------------------------------------------------------------------------------------------------------------ 5 end of stream


async def test_5_next_before_the_first_item_waits_and_after_the_end_is_absent(tmp_path: Path) -> None:
    give = "y = n.next(n.next(n.next(x)))\n    send y -> s"
    take = "a = next(s)\n    b = next(s)\n    emit n.add(0, a) as scalar\n    emit n.add(0, b) as scalar"
    assert await scalars(tmp_path, arms(give, take)) == [[5, 100]]


def test_5_next_without_after_end_where_counts_differ(tmp_path: Path) -> None:
    text = arms(
        "loop l times 3 carry x { send x -> s  x = n.next(x) }", "loop l times 4 { y = next(s)  emit y as scalar }"
    )
    assert "MC407" in codes(tmp_path, text.replace("after_end empty  ", ""))


# -------------------------------------------------------------------------------------------------------------- 6 together

PAIR = """
walk a(x: i64) { emit x as scalar }
walk b(x: i64) -> y: i64 { y = n.next(x) }
walk c(x: i64) { loop l times 3 carry x { x = n.next(x)  emit x as tensor } }
"""


async def test_6_an_arm_of_several_statements_and_an_arm_that_is_not_taken(tmp_path: Path) -> None:
    text = (
        SUMS + MODES + PAIR + "request r(x: i64) -> scalar, tensor? {\n"
        "    together {\n        one: { y = b(x)  z = b(y)  a(z) }\n        two: if wants(tensor) { c(x) }\n    }\n}\n"
    )
    with_it = Asked({"x": 1}, wants=frozenset({"scalar", "tensor"}))
    found = await agree(tmp_path, text, binding("n"), [Asked({"x": 1}), with_it])
    assert [numbers(got.events["scalar"]) for got in found] == [[3], [3]]
    assert [numbers(got.events.get("tensor", [])) for got in found] == [[], [2, 3, 4]]


def test_6_two_arms_with_one_sampler(tmp_path: Path) -> None:
    text = DRAW.replace("BODY", "emit sample(pick, t.logits(x)) as text").replace("-> text {", "-> text, scalar {")
    text = text.replace("{ w(x) }", "{ together { one: w(x)  two: v(x) } }")
    assert "MC104" in codes(tmp_path, text + "walk v(x: i64) { emit sample(pick, t.logits(x)) as scalar }\n")


# ----------------------------------------------------------------------------------------------------------------- 7 stops


async def test_7_a_stop_of_the_inner_loop_leaves_the_outer_one(tmp_path: Path) -> None:
    text = walk(
        """    loop outer times 3 carry x {
        loop inner max 5 carry y = x {
            y = n.next(y)
            stop when y % 3 == 0
            emit y as scalar
        }
        x = n.next(y)
    }
    emit x as scalar""",
        out="scalar",
    )
    assert await scalars(tmp_path, text, Asked({"x": 1}), Asked({"x": 2})) == [[2, 5, 8, 10], [5, 8, 10]]


async def test_7_two_stops_and_the_first_that_holds_counts(tmp_path: Path) -> None:
    text = walk(
        """    loop l max 9 carry x, y = x {
        stop when x > 5
        y = n.next(y)
        emit y as scalar
        stop when y == k + 4
        x = n.next(x)
    }
    emit x as scalar
    emit y as scalar""",
        out="scalar",
    )
    assert await scalars(tmp_path, text, Asked({"x": 4}), Asked({"x": 4}, {"k": 1})) == [
        [5, 6, 6, 6],
        [5, 4, 5],
    ]


async def test_7_a_stop_in_the_first_iteration_before_anything(tmp_path: Path) -> None:
    text = walk(
        "    loop l max 5 carry x { stop when x == 2  x = n.next(x)  emit x as scalar }\n    emit x as scalar",
        out="scalar",
    )
    assert await scalars(tmp_path, text) == [[2]]


# ---------------------------------------------------------------------------------------------------------- 8 loop results


async def test_8_what_is_collected_before_a_stop_stays(tmp_path: Path) -> None:
    text = walk(
        """    loop l max 5 carry x {
        collect x as above
        stop when x == 4
        collect x as below when iter > 0
        x = n.next(x)
    }
    emit n.total(above) as scalar
    emit len(above) as scalar
    emit len(below) as scalar""",
        out="scalar",
    )
    assert await scalars(tmp_path, text) == [[9, 3, 1]]


async def test_8_names_that_swap(tmp_path: Path) -> None:
    """All carried names take their next values at once."""
    text = walk(
        "    loop l times 3 carry a = x, b = 10 { t = a  a = b  b = t }\n    emit a as scalar\n    emit b as scalar",
        out="scalar",
    )
    assert await scalars(tmp_path, text) == [[10, 2]]


async def test_8_a_loop_in_a_loop_collects_each_time_anew(tmp_path: Path) -> None:
    text = walk(
        """    loop outer times 2 carry x {
        loop inner times k carry x {
            collect x as xs
            x = n.next(x)
        }
        emit n.total(xs) as scalar
    }""",
        out="scalar",
    )
    assert await scalars(tmp_path, text, Asked({"x": 1}), Asked({"x": 1}, {"k": 1})) == [[6, 15], [1, 2]]


# ------------------------------------------------------------------------------------------------------- 9, 10 contexts


async def contexts(folder: Path, body: str, params: dict[str, Any] | None = None) -> Got:
    text = f"{LM}walk w(ids: i64[T], zero: f32[1]) {{\n{body}\n}}\nrequest r(ids: i64[T], zero: f32[1]) -> tensor {{ w(ids, zero) }}\n"
    given = {"ids": np.array([2, 4]), "zero": np.zeros(1, np.float32)}
    (got,) = await agree(folder, text, binding("lm"), [Asked(given, params or {})], atol=1e-6)
    return got


async def test_9_a_fork_of_what_is_empty_and_a_fork_of_a_fork(tmp_path: Path) -> None:
    got = await contexts(
        tmp_path,
        """    lm.read(ids) writes copy
    fork copy from main
    lm.read(ids) writes main
    lm.read(ids) writes copy
    emit lm.peek(zero) reads copy as tensor
    fork copy from main
    fork side from copy
    drop copy, main
    fork main from side
    emit lm.peek(zero) reads main as tensor""",
    )
    np.testing.assert_allclose(numbers(got.events["tensor"]), [[2, 2], [2, 2]], atol=1e-6)


async def test_9_a_context_that_is_off_ignores_forks_both_ways(tmp_path: Path) -> None:
    got = await contexts(
        tmp_path,
        """    lm.read(ids) writes (main, side)
    fork copy from main
    fork copy from side
    fork side from main
    drop side
    emit lm.peek(zero) reads copy as tensor""",
        {"guided": False},
    )
    np.testing.assert_allclose(numbers(got.events["tensor"]), [[2, 2]], atol=1e-6)


async def test_10_the_counter_of_a_fork_goes_with_it(tmp_path: Path) -> None:
    got = await contexts(
        tmp_path,
        """    lm.block(ids) writes main
    fork copy from main
    emit lm.read(ids) writes copy as tensor
    emit lm.block(ids) writes main as tensor
    emit lm.read(ids) writes main as tensor""",
    )
    assert [row[1] for row in numbers(got.events["tensor"])] == [2, 1, 3]


async def test_10_in_a_loop_with_a_guarded_write(tmp_path: Path) -> None:
    got = await contexts(
        tmp_path,
        "    loop l times 4 {\n        lm.read(ids) writes main when iter % 2 == 0\n        emit lm.peek(zero) reads main as tensor\n    }",
    )
    assert [row[1] for row in numbers(got.events["tensor"])] == [2, 2, 4, 4]


# ------------------------------------------------------------------------------------------------------------ 11 randomness


async def test_11_a_guarded_noise_and_noise_in_loops(tmp_path: Path) -> None:
    """The j-th draw of a site is counted by the draws that happen, in every walk by itself."""
    text = (
        SUMS + MODES + "walk w(x: i64) {\n    loop l times 4 {\n        a = noise(f32[2]) when iter != k\n"
        "        b = noise(f32[2])\n        emit b as tensor\n        emit guide(b, a, 2.0) as tensor\n    }\n}\n"
        "walk v() {\n    a = noise(f32[2])\n    emit a as tensor\n}\n"
        "request r(x: i64) -> tensor {\n    w(x)\n    v()\n    v()\n}\n"
    )
    asked = [Asked({"x": 1}, {"k": k}, seed=4) for k in (0, 3, 9)]
    found = await agree(tmp_path, text, binding("n"), asked, atol=1e-6)
    first, second, third = [np.array(numbers(got.events["tensor"])) for got in found]
    a, b = ([2 * rows[k] - rows[k + 1] for k in range(0, 8, 2)] for rows in (first, second))
    np.testing.assert_allclose(a[1:], b[:3], atol=1e-6)  # the first draw that happens is the first draw
    np.testing.assert_array_equal(first[0], first[1])
    for rows in (second, third):
        np.testing.assert_array_equal(rows[::2], first[::2])
    assert not np.allclose(first[-2], first[-1]), "a walk that runs again goes on counting"


def test_11_nothing_is_drawn_on_the_host(tmp_path: Path) -> None:
    text = walk("    z = noise(f32[2])\n    emit x as scalar when z[0] > 0.0")
    assert "MC305" in codes(tmp_path, text)


# ------------------------------------------------------------------------------------------------------------------ 12 ends


async def test_12_a_failure_in_one_request_of_a_batch(tmp_path: Path) -> None:
    """An op that fails for one request of its batch: what it emitted stays, the others do not notice."""
    from mstarc_runtime.conductor.engine import Engine
    from mstarc_runtime.conductor.local import LocalCluster
    from mstarc_runtime.errors import RequestFailed
    from mstarc_runtime.package import load_conductor
    from tests.codegen.written import compiled

    text = walk("    loop l max 5 carry x { emit x as scalar  x = n.total(n.next(x))  stop when x == 9 }", out="scalar")
    text = text.replace("op total(xs: i64[m]) -> y: i64", "op total(xs: i64) -> y: i64")
    text = text.replace("n.total", "bad.once")
    text = text.replace("model m\n", "model m\nnode bad : stateless { op once(x: i64) -> y: i64 { batch stack } }\n")
    _, linked = compiled(tmp_path, text, binding("n").rstrip() + "\n  bad: tests.specs.test_unusual.Fails\n")
    engine = Engine(linked, load_conductor(linked), LocalCluster(linked))
    await engine.start()
    try:
        runs = [await engine.submit("r", {"x": x}, {}, seed=1) for x in (0, 5, 20)]
        seen: list[list[Any]] = []
        for run in runs:
            values: list[Any] = []
            seen.append(values)
            try:
                async for event in run.events():
                    values.append(int(event.value))
            except RequestFailed as error:
                values.append(str(error)[-14:])
    finally:
        await engine.stop()
    assert seen == [[0, 1, 2, "no three, ever"], [5, 6, 7, 8], [20, 21, 22, 23, 24]]


class Fails:
    """Fails for 3, in a batch and alone."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Fails:
        return cls()

    def once(self, x: Any) -> Any:
        if (np.asarray(x) == 3).any():
            raise ValueError("no three, ever")
        return x
