"""Results of externs against what the spec declares: of walks and of requests, and in the interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.program import Part
from mstarc_runtime.worker.results import ComponentError
from tests.codegen.written import Asked, compiled, interpreted, served

HERE = "tests.runtime.test_extern_results"
SPEC = """
model host
config { width = n.width }
type piece = (ids: i64[T], weight: f32[width])
extern early(how: i64) -> ids: i64[T], size: int, note: text, flag: bool
type other = (at: i64)
extern part(how: i64) -> piece
extern several(how: i64) -> list(piece | other | text)
extern late(how: i64) -> f32[width]
node n : stateless { op f(x: f32[width]) -> y: f32[width] }
walk w(how: i64, ids: i64[T], weight: f32[width]) {
    emit ids as tensor
    emit weight as action
    emit n.f(late(how)) as tensor
}
request r(how: i64) -> tensor, action {
    ids, _, _, _ = early(how)
    whole = part(how)
    for each in several(how) {
        case piece { w(how, each.ids, each.weight) }
        case other { }
        case text  { }
    }
    w(how, whole.ids, whole.weight)
}
"""
BINDING = (
    "config: {n: {width: 3}}\n"
    f"components: {{n: {HERE}.Same}}\n"
    f"externs: {{early: {HERE}.early, part: {HERE}.part, several: {HERE}.several, late: {HERE}.late}}\n"
)
IDS = np.arange(4)
ROW = np.ones(3, np.float32)


class Same:
    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Same:
        return cls()

    def f(self, x: Any) -> Any:
        return x


def early(how: int) -> Any:
    wrong = {1: (IDS.astype(np.float32), 1, "", True), 2: (IDS, 1.5, "", True), 3: (IDS, 1, b"", True), 4: (IDS, 1, "")}
    return wrong.get(how, (IDS, np.int64(1), "", np.bool_(True)))


def part(how: int) -> Any:
    if how == 5:
        return ROW
    if how == 16:
        return Part("other", ids=IDS, weight=ROW)
    return Part("piece", ids=IDS[None] if how == 6 else IDS, weight=ROW[:2] if how == 7 else ROW)


def several(how: int) -> Any:
    wrong = {
        11: [Part("text", text="a"), Part("peace", ids=IDS, weight=ROW)],
        12: [IDS],
        13: [Part("piece", ids=IDS)],
        14: [Part("other", at=1.5)],
        15: (each for each in [Part("other", at=2)]),
    }
    return wrong.get(how, [Part("text", text="a"), Part("other", at=2)])


def late(how: int) -> Any:
    return {8: np.ones(4, np.float32), 9: np.ones(3), 10: [1.0, 1.0, 1.0]}.get(how, ROW)


WRONG = {
    1: r"`{here}\.early` gives float32 \[4\] as `ids` of `extern early`, which the spec declares as i64\[any\]",
    2: "gives a float as `size` of `extern early`, which the spec declares as int",
    3: "gives a bytes as `note` of `extern early`, which the spec declares as text",
    4: "gives 3 results for `extern early`, which has 4",
    5: r"gives float32 \[3\] as `.*` of `extern part`, which the spec declares as `piece`",
    6: r"gives int64 \[1, 4\] as `.*\.ids` of `extern part`, which the spec declares as i64\[any\]",
    7: r"gives float32 \[2\] as `.*\.weight` of `extern part`, which the spec declares as f32\[3\]",
    8: r"gives float32 \[4\] as `.*` of `extern late`, which the spec declares as f32\[3\]",
    9: r"gives float64 \[3\] as `.*` of `extern late`",
    11: r"gives a part of kind `peace` as `.*\[1\]` of `extern several`, whose list holds `piece`, `other`, `text`",
    12: r"gives int64 \[4\] as `.*\[0\]` of `extern several`, whose list holds",
    13: r"gives a NoneType as `.*\[0\]\.weight` of `extern several`, which the spec declares as f32\[3\]",
    14: r"gives a float as `.*\[0\]\.at` of `extern several`, which the spec declares as i64",
    15: "gives a generator as `.*` of `extern several`, which the spec declares as list",
    16: "gives a part of kind `other` as `.*` of `extern part`, which the spec declares as `piece`",
    10: "gives a list as `.*` of `extern late`",
}


async def test_a_wrong_extern_is_named(tmp_path: Path) -> None:
    program, linked = compiled(tmp_path, SPEC, BINDING)
    (good,) = await served(linked, [Asked({"how": 0})])
    assert [list(value) for value in good.events["tensor"]] == [[0, 1, 2, 3], [1, 1, 1]]
    for how, message in WRONG.items():
        due = message.replace("{here}", HERE.replace(".", r"\."))
        with pytest.raises(RequestFailed, match=due) as raised:
            await served(linked, [Asked({"how": how})])
        assert raised.value.status == 500
        with pytest.raises(ComponentError, match=due):
            interpreted(program, linked, Asked({"how": how}))
