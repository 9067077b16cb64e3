"""Context provenance: which branches need not run, on IR text, on bagel, and held against the interpreter on random programs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from mstarc.interp import HashMachine, interpret
from mstarc.interp.errors import RequestRefused
from mstarc.ir.core import Program
from mstarc.ir.text import parse_program
from mstarc.passes.provenance import EMPTY, Branch, canonical, drop, fork, meet, provenance, provenance_of, write
from mstarc.passes.shape import every_shape, shape_of
from mstarc.workspace import load_model

ROOT = Path(__file__).resolve().parents[2]
HEAD = """mstarc.ir 1
model t
param cut: bool = false
param scale: float low 0.0 high 9.0 = 2.0
param n: int low 0 high 5 = 2
cache kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 2)
context c0 on kv max 99999
context c1 on kv max 99999
context c2 on kv max 99999
context c3 on kv max 99999 when param.scale > 1.0
node llm: transformer on kv {
  op step(token: i64[]) -> (logits: f32[40]) { attend causal positions seq }
  op peek(x: i64[]) -> (y: f32[4]) { attend full positions same takes 2 frozen }
  op luck(x: i64[]) -> (y: f32[4]) { attend full positions same takes 2 frozen random }
}
"""


def branches(program: Program, **shape: Any) -> dict[str, tuple[str, str]]:
    """result -> (fate, twin)."""
    return {b.result: (b.fate, b.twin) for b in provenance(program, shape_of(program, **shape))}


def walk(body: str) -> Program:
    return parse_program(
        HEAD + f"walk w(%0 x: host i64[]) {{\n{body}\n}}\nrequest r() -> (tensor) {{\n  call w(1)\n}}\n"
    )


BRANCHES = """
  parallel {
    %90 v: f32[4] = invoke llm.peek(%0) reads c0
    %91 a: f32[4] = invoke llm.peek(%0) reads c1
    %92 b: f32[4] = invoke llm.peek(%0) reads c2
    %93 z: f32[4] = invoke llm.peek(2) reads c1
    when param.cut {
      %94 g: f32[4] = invoke llm.peek(%0) reads c1
    } -> (%94 to %95 g_2: f32[4]?)
    %96 d: f32[4] = invoke llm.peek(%0) reads c3
    %97 e: f32[4] = invoke llm.luck(%0) reads c0
    %98 f: f32[4] = invoke llm.luck(%0) reads c1
  }
  emit %90 as tensor
"""


def test_contexts_that_one_call_wrote_are_equal() -> None:
    found = branches(walk("_ = invoke llm.step(%0) writes c0, c1" + BRANCHES), params={"cut": True})
    assert found["v"] == ("runs", "") and found["b"] == ("empty", "")
    assert found["a"] == ("same", "v") and found["g"] == ("same", "a"), "a guarded call may take an unguarded one's"
    assert found["z"] == ("runs", ""), "its argument is another"
    assert found["f"] == ("runs", ""), "it draws"
    assert branches(walk("_ = invoke llm.step(%0) writes c0, c1" + BRANCHES))["g"] == ("absent", "")


def test_two_equal_calls_do_not_make_equal_contexts() -> None:
    found = branches(walk("_ = invoke llm.step(%0) writes c0\n_ = invoke llm.step(%0) writes c1" + BRANCHES))
    assert found["a"] == ("runs", "")


def test_a_fork_is_equal_until_a_write() -> None:
    grown = "_ = invoke llm.step(%0) writes c0\nfork c1 from c0"
    assert branches(walk(grown + BRANCHES))["a"] == ("same", "v")
    assert branches(walk(grown + "\n_ = invoke llm.step(%0) writes c1" + BRANCHES))["a"] == ("runs", "")
    assert branches(walk(grown + "\ndrop c1" + BRANCHES))["a"] == ("empty", "")


def test_what_a_condition_may_change_is_not_known() -> None:
    body = "_ = invoke llm.step(%0) writes c0, c1\nwhen %0 > 3 {\n_ = invoke llm.step(%0) writes c1\n}"
    # the walk is called with 1, so the guard is false; a param that is open decides nothing
    assert branches(walk(body + BRANCHES))["a"] == ("same", "v")
    unknown = body.replace("%0 > 3", "param.n > 3")
    assert branches(walk(unknown + BRANCHES))["a"] == ("same", "v")
    assert branches(walk(unknown + BRANCHES), params={"n": 5})["a"] == ("runs", "")
    program = walk(unknown + BRANCHES)
    assert all({b.result: b.fate for b in facts}["a"] == "runs" for _, facts in provenance_of(program))


def test_a_loop_that_writes_both_keeps_them_equal() -> None:
    loop = "loop l times param.n do {\n_ = invoke llm.step(%0) writes c0, c1\n}"
    assert branches(walk(loop + BRANCHES))["a"] == ("same", "v")
    assert branches(walk(loop + BRANCHES), params={"n": 0})["v"] == ("empty", "")
    one = "loop l times param.n do {\n_ = invoke llm.step(%0) writes c0\n_ = invoke llm.step(%0) writes c1\n}"
    assert branches(walk(one + BRANCHES))["a"] == ("runs", "")


def test_a_context_that_is_off_is_absent_and_no_one_takes_its_value() -> None:
    body = "_ = invoke llm.step(%0) writes c0, c3" + BRANCHES
    assert branches(walk(body))["d"] == ("same", "v")
    assert branches(walk(body), params={"scale": 1.0})["d"] == ("absent", "")
    # a fork from a context that is off does nothing: c1 stays empty
    forked = "_ = invoke llm.step(%0) writes c0, c3\nfork c1 from c3" + BRANCHES
    assert branches(walk(forked))["a"] == ("same", "v")
    assert branches(walk(forked), params={"scale": 1.0})["a"] == ("empty", "")
    for shape, facts in provenance_of(walk(forked)):
        fates = {b.result: b.fate for b in facts}
        assert fates["d"] == "same" and fates["a"] == "runs", (shape, "whether c3 is on is open")


def test_a_branch_that_guide_leaves_out() -> None:
    body = """
  parallel {
    %1 v: f32[4] = invoke llm.peek(%0) reads c0
    %2 a: f32[4] = invoke llm.peek(%0) reads c1
    %3 b: f32[4] = invoke llm.peek(%0) reads c2
  }
  %4 x: f32[4] = compute guide(%1, %2, %3, param.scale, 1.0)
  emit %4 as tensor"""
    written = "_ = invoke llm.step(%0) writes c0\n_ = invoke llm.step(%0) writes c1\n_ = invoke llm.step(%0) writes c2"
    found = branches(walk(written + body))
    assert (found["a"], found["b"]) == (("runs", ""), ("unread", ""))
    assert branches(walk(written + body), params={"scale": 1.0})["a"] == ("unread", "")
    read = branches(walk(written + body + "\n  emit %3 as tensor"))
    assert read["b"] == ("runs", "")


def test_classes() -> None:
    start = {"a": EMPTY, "b": EMPTY, "c": EMPTY}
    both = write(start, ("a", "b"))
    assert canonical(both) == {"a": 1, "b": 1, "c": 0}
    assert canonical(meet(both, write(start, ("a",)))) == {"a": 1, "b": 2, "c": 0}
    assert canonical(fork(both, "c", "a")) == {"a": 1, "b": 1, "c": 1}
    assert drop(both, ("a",))["a"] == EMPTY


# --------------------------------------------------------------------------------------------------------------------- bagel


@pytest.fixture(scope="module")
def bagel() -> Program:
    program = load_model(ROOT / "specs/bagel.walk").bound
    assert program is not None
    return program


def draw(program: Program, **shape: Any) -> tuple[str, ...]:
    """What becomes of v, a and b."""
    found = {b.result: b for b in provenance(program, shape_of(program, wants=["image"], **shape))}
    return tuple(f"is {found[k].twin}" if found[k].fate == "same" else found[k].fate for k in "vab")


def test_bagel_from_text(bagel: Program) -> None:
    text: dict[str, Any] = {"given": ["text"], "parts": ("text_part",)}
    assert draw(bagel, **text) == ("runs", "empty", "absent")
    assert draw(bagel, **text, params={"cfg_img": 2.0}) == ("runs", "empty", "is v")
    assert draw(bagel, **text, params={"cfg_img": 2.0, "think": True}) == ("runs", "empty", "runs")
    assert draw(bagel, **text, params={"cfg_text": 1.0}) == ("runs", "absent", "absent")
    two = {"given": ["text"], "parts": ("text_part", "text_part")}
    assert draw(bagel, **two, params={"cfg_img": 2.0}) == ("runs", "runs", "is v")


def test_bagel_edits_with_three_branches(bagel: Program) -> None:
    parts = ("image_part", "text_part")
    assert draw(bagel, given=["image", "text"], parts=parts) == ("runs", "runs", "runs")
    # a text, then an image: the text before the image is in all but `no_image`
    assert draw(bagel, given=["image", "text"], parts=tuple(reversed(parts))) == ("runs", "is v", "runs")


def test_bagel_whatever_the_parts(bagel: Program) -> None:
    facts = {(tuple(sorted(s.kinds)), s.params["think"]): b for s, b in provenance_of(bagel) if s.wants == {"image"}}
    fates = {key: tuple(b.fate for b in branches) for key, branches in facts.items()}
    assert fates[("text_part",), False] == ("runs", "runs", "same")
    assert fates[("text_part",), True] == ("runs", "runs", "runs")
    assert fates[("image_part",), False] == ("runs", "same", "empty")
    assert fates[("image_part", "text_part"), False] == ("runs", "runs", "runs")


def test_a_shape_that_the_request_does_not_have(bagel: Program) -> None:
    for shape, name in (({"given": ["audio"]}, "audio"), ({"wants": ["video"]}, "video"), ({"request": "x"}, "x")):
        with pytest.raises(RequestRefused, match=name):
            shape_of(bagel, **shape)  # type: ignore[arg-type]
    with pytest.raises(RequestRefused, match="cfg_text"):
        provenance(bagel, shape_of(bagel, params={"cfg_text": 21.0}))
    assert len(list(every_shape(bagel))) == 18


# ------------------------------------------------------------------------------------------------- against the interpreter


class Writer:
    """A random request over four contexts, with the branches of a `parallel` emitted where it comes to one."""

    def __init__(self, seed: int) -> None:
        self.random, self.ids, self.loops = random.Random(seed), 100, 0

    def text(self) -> str:
        walks, calls = [], []
        for k in range(self.random.randint(1, 3)):
            walks.append(f"walk w{k}(%0 x: host i64[]) {{\n{self.block(2)}\n{self.branches()}\n}}")
            calls.append(f"  call w{k}(1)")
        return HEAD + "\n".join(walks) + "\nrequest r() -> (tensor) {\n" + "\n".join(calls) + "\n}\n"

    def block(self, depth: int) -> str:
        return "\n".join(self.op(depth) for _ in range(self.random.randint(1, 4)))

    def op(self, depth: int) -> str:
        some = self.random.sample(["c0", "c1", "c2", "c3"], self.random.randint(1, 3))
        pick = self.random.randrange(7)
        if pick < 3:
            return f"_ = invoke llm.step({self.random.randint(0, 2)}) writes {', '.join(some)}"
        if pick == 3 and len(some) > 1:
            return f"fork {some[0]} from {some[1]}"
        if pick == 4:
            return f"drop {some[0]}"
        if pick == 5 and depth:
            cond = self.random.choice(["param.cut", "param.n > 1", "param.scale > 1.0", "%0 == 1"])
            return f"when {cond} {{\n{self.block(depth - 1)}\n}}"
        if pick == 6 and depth:
            self.loops += 1
            return f"loop l{self.loops} times param.n do {{\n{self.block(depth - 1)}\n}}"
        return ""

    def branches(self) -> str:
        lines, emits = [], []
        for k in range(4):
            self.ids += 2
            call = f"%{self.ids} v{self.ids}: f32[4] = invoke llm.peek(%0) reads c{k}"
            lines.append(call)
            emits.append(
                f"emit %{self.ids} as tensor" if k < 3 else f"when param.scale > 1.0 {{\nemit %{self.ids} as tensor\n}}"
            )
        return "parallel {\n" + "\n".join(lines) + "\n}\n" + "\n".join(emits)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_claimed_equal_is_equal(seed: int) -> None:
    program = parse_program(Writer(seed).text())
    for params in ({}, {"cut": True, "n": 0}, {"scale": 0.5, "n": 1}, {"cut": True, "n": 3}):
        out = interpret(program, HashMachine(program), {}, params=params)
        values = [event.value for event in out.events]
        exact = provenance(program, shape_of(program, params=params))
        for claims in (exact, *(facts for shape, facts in provenance_of(program) if agrees(shape.params, params))):
            hold(claims, values, params.get("scale", 2.0) > 1.0)


def agrees(known: Any, params: dict[str, Any]) -> bool:
    return all({"cut": False, **params}[name] == value for name, value in known.items())


def hold(claims: tuple[Branch, ...], values: list[Any], on: bool) -> None:
    """Each claim of equality holds between the emitted values of its walk."""
    emitted = [branch for branch in claims if on or branch.context != "c3"]
    assert len(emitted) == len(values)
    found = {(b.walk, b.result): value for b, value in zip(emitted, values, strict=True)}
    for branch in emitted:
        if branch.fate == "same":
            assert found[branch.walk, branch.result].same(found[branch.walk, branch.twin]), branch
        assert branch.fate != "absent" or not on or branch.context != "c3"


def test_the_random_programs_claim_something() -> None:
    claimed = [
        sum(b.fate == "same" for b in provenance(program, shape_of(program)))
        for program in (parse_program(Writer(seed).text()) for seed in range(60))
    ]
    assert sum(count > 0 for count in claimed) > 20
