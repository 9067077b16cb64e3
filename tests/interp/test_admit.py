"""What a request is admitted with: the interpreter and the runtime take the same values, and refuse others with the same words."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mstarc.interp import HashMachine, RequestRefused, interpret
from mstarc.ir.core import Program
from mstarc_runtime.conductor.params import check_inputs, check_params
from mstarc_runtime.errors import BadRequest
from mstarc_runtime.package import load_conductor
from mstarc_runtime.program import ConductorProgram, Part
from tests.codegen.written import compiled

SPEC = """
model m
config { width = a.width }
param steps : int in 1..8 = 2
param scale : float in 0.0..2.0 = 1.0
param free  : int = 0
param loud  : bool = false
param mode  : enum(fast, exact) = fast
param note  : text = "x"
type box = (at: i64[2], tag: text?)
extern take(n: int, q: float, ok: bool, word: text, b: box?) -> i64
node a : stateless { op f(x: f32[T, width], y: f32[T]?, z: i64?, k: u8[N]?, g: bool[3]?, v: i64) -> o: i64 }
walk w(x: f32[T, width], y: f32[T]?, z: i64?, k: u8[N]?, g: bool[3]?, v: i64) { emit a.f(x, y, z, k, g, v) as scalar }
request r(
    x: f32[T, width], y: f32[T]?, z: i64?, k: u8[N]?, g: bool[3]?, n: int?, q: float?, ok: bool?, word: text?, b: box?
) -> scalar {
    w(x, y, z, k, g, take(if present(n) then 1 else 2, scale, loud, note, b) + steps + free)
}
"""
BINDING = "config: {a: {width: 2}}\ncomponents: {a: math.sin}\nexterns: {take: math.sin}\n"
X = [[1, 2.5], [3, 4]]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, ConductorProgram]:
    found, linked = compiled(tmp_path_factory.mktemp("admit"), SPEC, BINDING)
    return found, load_conductor(linked)


def by_interpreter(program: Program, inputs: dict[str, Any], params: dict[str, Any]) -> str:
    try:
        interpret(program, HashMachine(program, {"a": {"width": 2}}), inputs, params=params)
    except RequestRefused as refusal:
        return f"{refusal.field}: {refusal}"
    return ""


def by_runtime(program: ConductorProgram, inputs: dict[str, Any], params: dict[str, Any]) -> str:
    try:
        check_inputs(program.ENTRIES[0], inputs, SimpleNamespace(width=2))
        check_params(program, params, SimpleNamespace())
    except BadRequest as refusal:
        return f"{refusal.field}: {refusal}"
    return ""


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"x": [[1, 2], [3]]}, {}, "x: input `x` is ragged: one item has the shape [2], another [1]"),
    ({"x": [1, [2]]}, {}, "x: input `x` is ragged: a list holds numbers and lists"),
    ({"x": [[1, True]]}, {}, "x: input `x` must be f32, not true or false"),
    ({"x": [[1, None]]}, {}, "x: input `x` must be f32, not null"),
    ({"x": [[1, math.nan]]}, {}, "x: input `x` must be finite and in the range of f32"),
    ({"x": [[1, 10**400]]}, {}, "x: input `x` must be finite and in the range of f32"),
    ({"x": "hello"}, {}, "x: input `x` must be f32, not text"),
    ({"x": [[1, 2, 3]]}, {}, "x: input `x` has the length 3 in dim 1; it must be 2"),
    ({"x": 1}, {}, "x: input `x` has 0 dims; it must have 2"),
    ({"x": X, "y": [1.0]}, {}, "y: input `y` has the length 1 in dim 0, but `x` says that T is 2"),
    ({"x": X, "z": 2**63}, {}, "z: input `z` must be in the range of i64"),
    ({"x": X, "z": True}, {}, "z: input `z` must be i64, not true or false"),
    ({"x": X, "z": 1.0}, {}, "z: input `z` must be i64, not floating-point numbers"),
    ({"x": X, "k": [0, 256]}, {}, "k: input `k` must be in the range of u8"),
    ({"x": X, "k": [-1]}, {}, "k: input `k` must be in the range of u8"),
    ({"x": X, "g": [1, 0, 1]}, {}, "g: input `g` must be bool, not whole numbers"),
    ({"x": X, "n": 2.5}, {}, "n: input `n` must be a whole number, not 2.5"),
    ({"x": X, "n": "3"}, {}, "n: input `n` must be a number, not '3'"),
    ({"x": X, "n": -(2**63) - 1}, {}, "n: input `n` must be a whole number that 64 bits hold"),
    ({"x": X, "q": math.inf}, {}, "q: input `q` must be finite, not inf"),
    ({"x": X, "ok": 1}, {}, "ok: input `ok` must be true or false, not 1"),
    ({"x": X, "word": 5}, {}, "word: input `word` must be text, not 5"),
    ({"x": X, "word": "\ud800"}, {}, "word: input `word` is not valid UTF-8 text"),
    ({"x": X, "b": {"at": [1, 2, 3]}}, {}, "at: input `at` has the length 3 in dim 0; it must be 2"),
    ({"x": X}, {"steps": 9}, "steps: `steps` must be in 1..8, not 9"),
    ({"x": X}, {"steps": 2.5}, "steps: `steps` must be a whole number, not 2.5"),
    ({"x": X}, {"steps": True}, "steps: `steps` must be a number, not True"),
    ({"x": X}, {"scale": 10**400}, "scale: `scale` must be a number that 64 bits hold"),
    ({"x": X}, {"free": 2**63}, "free: `free` must be a whole number that 64 bits hold"),
    ({"x": X}, {"loud": "yes"}, "loud: `loud` must be true or false, not 'yes'"),
    ({"x": X}, {"mode": "slow"}, "mode: `mode` must be one of fast, exact, not 'slow'"),
    ({"x": X}, {"mode": ["fast"]}, "mode: `mode` must be one of fast, exact, not ['fast']"),
    ({"x": X}, {"note": 1}, "note: `note` must be text, not 1"),
    ({"x": X, "xx": 1}, {}, "xx: request `r` takes no input `xx`; did you mean `x`?"),
    ({}, {}, "x: request `r` needs the input `x`"),
    ({"x": None}, {}, "x: request `r` needs the input `x`"),
    ({"x": X}, {"step": 1}, "step: unknown parameter `step`; did you mean `steps`?"),
]


@pytest.mark.parametrize(("inputs", "params", "says"), REFUSED, ids=[said.partition(":")[0] for _, _, said in REFUSED])
def test_both_refuse_with_the_same_words(
    inputs: dict[str, Any], params: dict[str, Any], says: str, package: tuple[Program, ConductorProgram]
) -> None:
    program, conductor = package
    assert (by_interpreter(program, inputs, params), by_runtime(conductor, inputs, params)) == (says, says)


@pytest.mark.parametrize(
    ("inputs", "params"),
    [
        ({"x": X, "y": [1, 2], "z": -(2**63), "k": [0, 255], "g": [True, False, True]}, {}),
        ({"x": X, "y": None, "n": 3.0, "q": 1, "ok": True, "word": "é", "b": {"at": [1, 2]}}, {"steps": 3.0, "free": None}),
        ({"x": [], "y": []}, {}),
        ({"x": [[2.0**128 - 2.0**103 - 2.0**76, 0]]}, {"scale": 2, "mode": "exact", "loud": True}),
    ],
)  # fmt: skip
def test_both_take_the_same(
    inputs: dict[str, Any], params: dict[str, Any], package: tuple[Program, ConductorProgram]
) -> None:
    program, conductor = package
    said = by_runtime(conductor, inputs, params)
    assert by_interpreter(program, inputs, params) == said
    assert said == ("" if inputs["x"] else "x: input `x` has 1 dims; it must have 2")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i64", "i32", "u8", "bool"])
def test_an_array_is_taken_as_its_numbers_are(dtype: str) -> None:
    """Arrays are checked by numpy, lists one by one."""
    from mstarc_runtime.conductor.params import _tensor

    least = {"i64": -(2**63), "i32": -(2**31), "u8": 0}.get(dtype, 0)
    edges = [0, 1, -1, 255, 256, 65519.0, 65520.0, 2**31, -(2**31) - 1, least, 3.5, True, math.nan, math.inf]
    edges += [2.0**63, 2.0**128 - 2.0**103, float(np.nextafter(2.0**128 - 2.0**103, 0)), -(2.0**128 - 2.0**119)]
    for edge in edges:
        one, many = (_taken(_tensor, dtype, value) for value in ([edge], np.asarray([edge])))
        assert one == many, (edge, one, many)


def _taken(read: Any, dtype: str, value: Any) -> str:
    try:
        return f"{read(dtype, value).dtype}"
    except ValueError as error:
        return str(error)


PARTS = """
model m
extern sizes(shown: list(image | audio)) -> i64[T]
node a : stateless { op f(x: i64[T]) -> o: i64 }
walk w(x: i64[T]) { emit a.f(x) as scalar }
request r(shown: list(image | audio)) -> scalar { w(sizes(shown)) }
"""


def test_both_take_parts_of_the_declared_kinds(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, PARTS, "components: {a: math.sin}\nexterns: {sizes: math.sin}\n")
    conductor = load_conductor(linked)
    image, video = Part("image", role="user", data=b"x"), Part("video", role="user", data=b"x")
    for shown, says in (
        ([image], ""),
        ([image, video], "shown: input `shown` takes parts of the kinds image, audio; part 1 is of kind 'video'"),
        ([{"kind": "video"}], "shown: input `shown` takes parts of the kinds image, audio; part 0 is of kind 'video'"),
        (image, "shown: input `shown` must be a list of parts, not Part"),
    ):
        assert by_interpreter(program, {"shown": shown}, {}) == by_runtime(conductor, {"shown": shown}, {}) == says
