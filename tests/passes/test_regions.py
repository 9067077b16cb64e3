"""Running ahead, fused producers and static loops as one region: the facts, on IR text."""

from __future__ import annotations

import re

import pytest

from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.ir.verify import verify
from mstarc.passes.fuse_vertical import Fusion, fused_text, vertical_of
from mstarc.passes.loop_regions import WholeLoop, whole_loops_of
from mstarc.passes.pipeline import find_pass, run_pass
from mstarc.passes.speculate import Speculation, speculations_of

HEAD = """mstarc.ir 1
model t
param steps: int low 1 high 90 = 9
param live: bool = false
extern ask(x: i64[]) -> (y: i64[])
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c on kv max 99
context d on kv max 99
sampler s(temperature = 1.0)
node a: transformer on kv {
  op step(x: i64[]) -> (y: f32[9]) { attend causal positions seq takes 1 }
  op look(x: f32[9]) -> (y: f32[9]) { attend full positions seq takes 1 frozen }
}
node b: stateless {
  op f(x: f32[9]) -> (y: f32[9])
  op told(x: f32[9], h: host i64[]) -> (y: f32[9])
  op off(x: i64[]) -> (y: i64[]) { async_off }
  op four(x: i64[4]) -> (y: f32[9])
  op many(x: i64[dim.T]) -> (y: f32[9])
}
node m: stateless {
  op f(x: i64[]) -> (y: i64[])
  state memory: f32[9] = 0.0
}
"""


def dense(text: str) -> str:
    """Value ids in the order of definition, walk by walk: texts are put together from pieces. The one loop's result comes last."""
    walks = re.split(r"(?=^walk )", text, flags=re.M)
    return "".join(map(_renumbered, walks))


def _renumbered(walk: str) -> str:
    defined = re.findall(r"(-> )?%(\d+) \w+:", walk)
    order = [ident for arrow, ident in defined if not arrow] + [ident for arrow, ident in defined if arrow]
    return re.sub(r"%(\d+)", lambda m: f"%{order.index(m[1])}", walk)


def program(text: str) -> Program:
    found = parse_program(HEAD + dense(text))
    verify(found)
    return found


def ahead(body: str, stop: str = "stop %1 == 3 with (%1)", streams: str = "") -> Speculation:
    """The facts of a `max` loop that carries %1."""
    text = f"""{streams}
walk w(%0 x: i64[]) {{
  loop go max 9 carry %1 t: i64[] = %0 then %1 -> %5 after: i64[] do {{
    {stop}
    {body}
  }}
}}
"""
    return speculations_of(program(text))[0]


STEP = "%2 y: f32[9] = invoke a.step(%1) writes c"


def test_what_is_cut_back_and_what_is_held() -> None:
    found = ahead(f'{STEP} %3 n: i64[] = sample s(%2) site "n" emit %3 as text')
    assert found.legal
    assert (found.device_stops, found.contexts, found.samplers, found.sites) == (1, ("c",), ("s",), ("w.n",))
    assert found.held == ("text",)
    assert found.rollback == ("c", "s")


def test_an_end_that_the_host_knows_needs_no_rollback() -> None:
    found = ahead(STEP, stop="stop iter.go == 3 with (%1)")
    assert (found.legal, found.device_stops, found.rollback) == (True, 0, ())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%2 y: host i64[] = extern ask(%1)", "extern `ask` runs on the host"),
        ("%2 y: i64[] = next q", "it takes from `q`"),
        ("fork d from c", "`fork d` replaces a context"),
        ("drop c", "`drop` empties `c`"),
        ("%2 y: i64[] = invoke m.f(%1)", "`m` keeps `memory` from call to call"),
        ("%2 y: i64[] = invoke b.off(%1)", "`b.off` says `async off`"),
        (
            "loop more max 3 do { stop %1 == 4 }",
            "loop `more` inside it ends on a device value",
        ),
    ],
)
def test_what_nothing_undoes(body: str, reason: str) -> None:
    stream = "stream q: i64[] by fixed(size = 1) at_end partial capacity 4\n" if "next" in body else ""
    found = ahead(body, streams=stream)
    assert not found.legal
    assert [text for text in found.reasons if text.startswith(reason)] == list(found.reasons)
    assert found.rollback == ()


def fused(policy: str, body: str, sends: str = "send %1 to q", where: str = "", loop: str = STEP) -> Fusion:
    text = f"""
stream q: i64[]{where} by {policy} at_end drop capacity 64
walk w(%0 x: i64[]) {{
  loop go max 9 carry %1 t: i64[] = %0 then %3 -> %5 after: i64[] do {{
    stop %1 == 3 with (%1)
    {sends}
    {loop}
    %3 n: i64[] = sample s(%2) site "n"
  }}
}}
walk u() {{ for %0 c: chunk(q, i64[]) in q {{ {body} }} }}
"""
    return vertical_of(program(text))[0]


FIRE = "%1 y: f32[9] = invoke b.four(%0) emit %1 as tensor"


@pytest.mark.parametrize(
    ("policy", "unroll"),
    [
        ("fixed(size = 4)", 4),
        ("sliding_window(size = 4, stride = 1)", 1),
        ("sliding_window(size = 4, stride = 3)", 3),
        ("left_context(chunk = 2, left = 2)", 2),
    ],
)
def test_the_producer_is_unrolled_to_the_stride(policy: str, unroll: int) -> None:
    found = fused(policy, FIRE)
    assert found.legal, found.reasons
    assert (found.unroll, found.firings, found.compacts) == (unroll, 1, False)
    assert fused_text(found) == f"{unroll} a.step + 1 b.four"


def test_items_under_a_where_are_counted_on_the_device() -> None:
    found = fused("fixed(size = 4)", FIRE, where=" where dim.item >= 2")
    assert (found.legal, found.unroll, found.compacts) == (True, 4, True)


@pytest.mark.parametrize(
    ("policy", "body", "reason"),
    [
        ("fixed(size = 4)", "%1 y: host i64[] = extern ask(3)", "a `extern` stands in the consumer"),
        (
            "fixed(size = 4)",
            "%1 y: f32[9] = invoke b.many(%0) emit %1 as tensor",
            "`b.many` takes chunks of any length",
        ),
    ],
)
def test_consumers_that_need_the_host(policy: str, body: str, reason: str) -> None:
    found = fused(policy, body)
    assert not found.legal
    assert any(text.startswith(reason) for text in found.reasons), found.reasons
    assert (found.unroll, found.firings) == (0, 0)


def test_a_loop_that_may_not_run_ahead_is_not_fused() -> None:
    found = fused("fixed(size = 4)", FIRE, loop=f"%4 k: i64[] = invoke m.f(%1) {STEP}")
    assert found.reasons == ("loop `go` may not run ahead: `m` keeps `memory` from call to call",)


def whole(body: str, bound: str = "param.steps") -> WholeLoop:
    text = f"""
walk w(%0 x: f32[9]) {{
  loop go times {bound} carry %1 t: f32[9] = %0 then %1 -> %9 after: f32[9] do {{
    {body}
  }}
}}
"""
    return whole_loops_of(program(text))[0]


LOOK = "%2 y: f32[9] = invoke a.look(%1) reads c"


def test_a_static_loop_is_one_region() -> None:
    found = whole(f"{LOOK} emit %2 as tensor")
    assert (found.legal, found.steps, found.conditions, found.variants) == (True, "param.steps", (), ())
    assert [phase.calls for phase in found.phases] == [("a.look on c",)]


def test_conditions_over_iter_make_phases() -> None:
    found = whole(
        "%2 on: host bool[] = compute iter.go < 3"
        " %3 y: f32[9] = invoke a.look(%1) reads c"
        " when %2 { %4 z: f32[9] = invoke a.look(%1) reads d } -> (%4 to %5 z_2: f32[9]?)"
    )
    assert found.conditions == ("on",)
    assert [(phase.holds, phase.calls) for phase in found.phases] == [
        ((True,), ("a.look on c", "a.look on d")),
        ((False,), ("a.look on c",)),
    ]


def test_conditions_of_the_request_choose_a_variant() -> None:
    found = whole("when param.live { emit %1 as tensor } when not param.live { emit %1 as video }")
    assert (found.legal, found.conditions, found.variants) == (True, (), ("live",))
    assert len(found.phases) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("%2 y: f32[9] = invoke b.told(%1, iter.go)", "`b.told` takes the host value `iter`, another one each step"),
        ("%2 y: host i64[] = extern ask(3)", "extern `ask` runs on the host between two steps"),
        ("%2 y: i64[] = next q", "it waits for items of `q`"),
        ("fork d from c", "contexts are forked or dropped between two steps"),
    ],
)
def test_what_keeps_a_static_loop_apart(body: str, reason: str) -> None:
    text = body
    found = whole(text) if "next" not in body else whole_of_taker(body)
    assert found.reasons == (reason,)
    assert found.phases == ()


def whole_of_taker(body: str) -> WholeLoop:
    text = f"""stream q: i64[] by fixed(size = 1) at_end partial capacity 4
walk w(%0 x: f32[9]) {{
  loop go times 3 carry %1 t: f32[9] = %0 then %1 -> %9 after: f32[9] do {{ {body} }}
}}
"""
    return whole_loops_of(program(text))[0]


def test_a_host_argument_that_stays_is_no_reason() -> None:
    assert whole("%2 y: f32[9] = invoke b.told(%1, param.steps)").legal


@pytest.mark.parametrize("name", ["speculate", "fuse-vertical", "loop-regions"])
def test_they_are_passes_of_the_pipeline(name: str) -> None:
    text = """
stream q: i64[] by fixed(size = 4) at_end drop capacity 64
walk w(%0 x: i64[]) {
  loop go max 9 carry %1 t: i64[] = %0 then %3 -> %4 after: i64[] do {
    stop %1 == 3 with (%1)
    send %1 to q
    %2 y: f32[9] = invoke a.step(%1) writes c
    %3 n: i64[] = sample s(%2) site "n"
  }
  loop on times 4 do { emit iter.on as scalar }
}
walk u() { for %0 c: chunk(q, i64[]) in q { %1 y: f32[9] = invoke b.four(%0) emit %1 as tensor } }
"""
    lines = run_pass(find_pass(name), program(text)).facts
    expected = {
        "speculate": [
            "loop w.go: may run ahead; cut back: c, s, w.n; held: q",
            "loop w.on: its end is known before it starts",
        ],
        "fuse-vertical": ["loop w.go -> q -> walk u: one region of 4 a.step + 1 b.four"],
        "loop-regions": ["loop w.on: one region of 4 steps"],
    }
    assert list(lines) == expected[name]
