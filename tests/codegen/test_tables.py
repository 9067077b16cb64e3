"""Loops that read rows of a value by `iter` read only the rows that they need: generated code = interpreter at the value's end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstarc.passes.form_regions import regions_of
from tests.codegen.written import Asked, agree, compiled

SPEC = """
model rows
param n    : int in LEAST..8 = 3
param live : bool = false
node net : stateless {
    op add(x: f32[4], row: f32[4]) -> y: f32[4] { batch stack }
    op mix(x: f32[4], y: f32[4]?) -> z: f32[4] { batch stack }
}
walk go(x: f32[4], rows: f32[N, 4]) {
    loop going times n carry x {
        y = net.add(x, rows[iter])
        BODY
    }
    emit x as tensor
}
request r(x: f32[4], rows: f32[N, 4]) -> tensor { go(x, rows) }
"""
BINDING = "components: {net: tests.codegen.test_tables.Net}\n"
SOME = "z = net.add(y, rows[iter + 1])  when {}\n        x = net.mix(y, z)"
ALWAYS = "x = net.add(y, rows[iter + 1])"


class Net:
    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Net:
        return cls()

    def add(self, x: Any, row: Any) -> Any:
        return torch.sin(x + row)

    def mix(self, x: Any, y: Any = None) -> Any:
        return x / 2 if y is None else x / 2 + y


def asked(rows: int, **params: Any) -> Asked:
    values = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    return Asked({"x": np.ones(4, np.float32), "rows": values}, params)


@pytest.mark.parametrize(
    ("body", "requests"),
    [
        (SOME.format("iter + 1 < n"), [asked(3), asked(4), asked(1, n=1), asked(0, n=0)]),
        (SOME.format("live"), [asked(3), asked(4, live=True), asked(0, n=0, live=True)]),
        (ALWAYS, [asked(4), asked(2, n=1), asked(0, n=0)]),
    ],
)
async def test_rows_that_no_iteration_reads_may_be_missing(tmp_path: Path, body: str, requests: list[Asked]) -> None:
    await agree(tmp_path, SPEC.replace("BODY", body).replace("LEAST", "0"), BINDING, requests)


@pytest.mark.parametrize(("body", "least", "region"), [(ALWAYS, 1, True), (ALWAYS, 0, False), (SOME, 1, False)])
def test_a_table_is_read_as_far_in_every_way(tmp_path: Path, body: str, least: int, region: bool) -> None:
    text = SPEC.replace("BODY", body.format("live")).replace("LEAST", str(least))
    program, _ = compiled(tmp_path, text, BINDING)
    assert bool(regions_of(program)["go"]) is region
