"""Results of components against what the spec declares: what fits passes, what does not is told by op, port and both types."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstarc.cli.packages import link_package
from mstarc.codegen.package import compile_model, write_package
from mstarc_runtime.abi.linked import OpLink, PortLink
from mstarc_runtime.conductor.engine import Engine
from mstarc_runtime.conductor.local import LocalCluster
from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.package import load_conductor
from mstarc_runtime.worker.results import ComponentError, ResultCheck

ONE = ResultCheck(
    "n.f", "c.N", OpLink(name="f", params=[], results=1, outputs=[PortLink(name="y", dtype="f32", dims=[None, 3])])
)
TWO = ResultCheck(
    "n.g", "c.N",
    OpLink(name="g", params=[], results=2, outputs=[PortLink(name="a", dtype="i64"), PortLink(name="b", dtype="bool", dims=[2])]),
)  # fmt: skip
PACKED = ResultCheck(
    "n.p", "c.N",
    OpLink(name="p", params=[], results=1, result_kinds=["packed"], outputs=[PortLink(name="y", dtype="f32", dims=[None, 3])]),
)  # fmt: skip


def test_what_fits() -> None:
    for value in (np.zeros((5, 3), np.float32), torch.zeros(0, 3), torch.zeros(1, 3, dtype=torch.bfloat16)):
        ONE.outcome(value)
        PACKED.packed(value)
    ONE.columns(torch.zeros(2, 5, 3))
    for number in (3, np.int64(3), np.array(3), torch.tensor(3)):
        TWO.outcome((number, np.zeros(2, bool)))
    TWO.columns((np.zeros(4, np.int64), torch.zeros(4, 2, dtype=torch.bool)))
    ResultCheck("n.h", "c.N", OpLink(name="h", params=[], results=0)).outcome(None)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (
            ONE,
            np.zeros((5, 3)),
            r"`c\.N` gives float64 \[5, 3\] as `y` of `n\.f`, which the spec declares as f32\[any, 3\]",
        ),
        (ONE, np.zeros((5, 4), np.float32), r"gives float32 \[5, 4\] as `y`"),
        (ONE, np.zeros(3, np.float32), r"gives float32 \[3\] as `y`"),
        (ONE, torch.zeros(2, 5, 3), r"gives float32 \[2, 5, 3\] as `y`"),
        (ONE, None, "gives a NoneType as `y`"),
        (ONE, [[1.0] * 3], "gives a list as `y`"),
        (ONE, (np.zeros((5, 3), np.float32),) * 2, r"gives 2 results for `n\.f`, which has 1"),
        (TWO, (3.0, np.zeros(2, bool)), r"gives a float as `a` of `n\.g`, which the spec declares as i64"),
        (TWO, (np.int32(3), np.zeros(2, bool)), r"gives int32 \[\] as `a`"),
        (TWO, (3, np.zeros(2, np.uint8)), r"gives uint8 \[2\] as `b` of `n\.g`, which the spec declares as bool\[2\]"),
        (TWO, 3, "gives 1 results"),
    ],
)
def test_what_does_not(check: ResultCheck, value: Any, message: str) -> None:
    with pytest.raises(ComponentError, match=message):
        check.outcome(value)


def test_batches() -> None:
    for wrong in (torch.zeros(5, 3), torch.zeros(2, 5, 4)):
        with pytest.raises(ComponentError, match="as `y`"):
            ONE.columns(wrong)
    with pytest.raises(ComponentError, match="without a dim of requests"):
        TWO.columns((torch.tensor(1), torch.zeros(1, 2, dtype=torch.bool)))


# --- through a model


SPEC = """
model wrong
config { width = lm.width }
cache   kv   : kv(layers = 1, heads = 1, kv_heads = 1, head_dim = 8)
context main on kv max 16
node lm    : transformer(kv) { op read(ids: i64[T]) -> row: f32[width] { attend causal  positions seq } }
node plain : stateless { op f(x: f32[N]) -> y: f32[width] }
walk go(ids: i64[T], x: f32[N]) {
    emit plain.f(x) as tensor
    emit lm.read(ids) as tensor
}
request run(ids: i64[T], x: f32[N]) -> tensor { go(ids, x) }
"""


class Plain:
    """f gives [width]; the rows of x choose how it is wrong."""

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Plain:
        return cls()

    def f(self, x: Any) -> Any:
        return {1: torch.zeros(8), 2: torch.zeros(7), 3: torch.zeros(8, dtype=torch.int64)}[len(x)]


class Lm(Plain):
    """read gives [B, width], one number less if an id is 9."""

    def read(self, run: Any, ids: Any) -> Any:
        x = torch.zeros(len(ids), 1, 8)
        run.attend(0, x, x, x)
        return torch.zeros(len(run.rows), 7 if (ids == 9).any() else 8)


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[Engine]:
    (folder / "wrong.walk").write_text(textwrap.dedent(SPEC))
    (folder / "wrong.yaml").write_text(
        "config: {lm: {width: 8}}\ncomponents: {lm: tests.runtime.test_results.Lm, plain: tests.runtime.test_results.Plain}\n"
    )
    compiled = compile_model(folder / "wrong.walk", folder / "out")
    assert compiled.files, [d.message for d in compiled.model.checked.findings]
    write_package(compiled.files, folder / "out")
    program = link_package(str(folder / "out"), None).linked
    made = Engine(program, load_conductor(program), LocalCluster(program))
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def test_a_wrong_component_is_named_and_others_run(tmp_path: Path) -> None:
    async def ask(ids: list[int], rows: int) -> int:
        run = await made.submit("run", {"ids": ids, "x": [0.0] * rows})
        return len([event async for event in run.events()])

    async with engine(tmp_path) as made:
        assert await ask([1, 2], 1) == 2
        for ids, rows, message in (
            ([1], 2, r"float32 \[7\] as `y` of `plain\.f`, which the spec declares as f32\[8\]"),
            ([1], 3, r"int64 \[8\] as `y` of `plain\.f`"),
            ([1, 9], 1, r"float32 \[7\] as `row` of `lm\.read`, which the spec declares as f32\[8\]"),
        ):
            with pytest.raises(RequestFailed, match=message):
                await ask(ids, rows)
        assert await ask([1, 2], 1) == 2
