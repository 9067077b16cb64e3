"""A component sees arrays of its own library, whatever else lives on its rank: numpy and torch classes side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mstarc_runtime.errors import LoadError
from mstarc_runtime.worker.ops import OpTable
from tests.codegen.written import Asked, compiled, interpreted, same, served

HERE = "tests.runtime.test_libraries"
SPEC = """
model mixed
config {{ width = plain.width }}
param steps : int in 1..20 = 5
extern look(x: i64) -> row: f32[width]
stream rows : f32[width] by sliding_window(size = 2, stride = 1)  at_end drop  overlap ok  capacity 8
node plain : stateless {{
    state seen: f32[width] = 0.0
    op keep(x: f32[width]) -> y: f32[width]  {{ {batch} }}
    op draw(x: f32[width]) -> y: f32[width]  {{ random {batch} }}
}}
node ends : stateless {{ op window(xs: f32[2, width]) -> y: f32[width] }}
node heavy : stateless {{ op turn(x: f32[width]) -> y: f32[width]  {{ {batch} }} }}
walk make(x: i64) {{
    row = look(x)
    y = plain.keep(row)
    loop around times steps carry y {{
        z = heavy.turn(y)
        y = plain.draw(plain.keep(z))
        emit y as tensor
        send y -> rows
    }}
    emit heavy.turn(plain.keep(heavy.turn(y))) as tensor
}}
walk take() {{
    for xs in rows {{ emit heavy.turn(ends.window(xs)) as action }}
}}
request r(x: i64) -> tensor, action {{
    together {{
        making: make(x)
        taking: take()
    }}
}}
"""


def its_own(kind: type, *values: Any) -> None:
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"a {kind.__name__} is due, not {type(value).__name__}")


class Plain:
    """numpy alone."""

    ARRAYS = "numpy"

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Plain:
        return cls()

    def keep(self, cells: Any, x: Any) -> Any:
        its_own(np.ndarray, cells.seen, x)
        cells.seen = cells.seen * np.float32(0.5) + x
        return cells.seen

    def draw(self, cells: Any, noise: Any, x: Any) -> Any:
        drawn = noise.normal(3)
        its_own(np.ndarray, cells.seen, drawn, x)
        return x + drawn

    def window(self, xs: Any) -> Any:
        its_own(np.ndarray, xs)
        return xs[1] - xs[0]


class Heavy:
    """torch alone; gives numpy where `LOOSE`, which a result may be."""

    LOOSE = False

    @classmethod
    def load(cls, checkpoint: Any, config: Any, device: str) -> Heavy:
        return cls()

    def turn(self, x: Any) -> Any:
        its_own(torch.Tensor, x)
        found = torch.sin(x)
        return found.numpy() if self.LOOSE else found


class Loose(Heavy):
    LOOSE = True


def look(x: Any) -> Any:
    """A host's row."""
    return np.arange(3, dtype=np.float32) + np.float32(x)


def binding(heavy: str) -> str:
    return (
        f"config: {{plain: {{width: 3}}}}\nexterns: {{look: {HERE}.look}}\n"
        f"components: {{plain: {HERE}.Plain, ends: {HERE}.Plain, heavy: {HERE}.{heavy}}}\n"
    )


@pytest.mark.parametrize("batch", ["", "batch stack"])
@pytest.mark.parametrize("heavy", ["Heavy", "Loose"])
async def test_beside_each_other(tmp_path: Path, batch: str, heavy: str) -> None:
    """In coroutines, regions and streams, one request and several; the interpreter too."""
    program, linked = compiled(tmp_path, SPEC.format(batch=batch), binding(heavy))
    asked = [Asked({"x": 1}, seed=3), Asked({"x": 2}, {"steps": 9}, seed=4), Asked({"x": 5}, seed=5)]
    due = [interpreted(program, linked, one) for one in asked]
    for got, want in zip(await served(linked, asked), due, strict=True):
        same(got, want, atol=1e-5)


PLAIN = """
model alone
param heat : float in 0.0..5.0 = 1.5
sampler pick { temperature = heat }
node n : stateless { op f(x: f32[3]) -> y: i64  { samples pick } }
node m : stateless { op turn(x: f32[3]) -> y: f32[3] }
walk w(x: f32[3]) {
    emit n.f(x) as scalar
    emit m.turn(x) as tensor
}
request r(x: f32[3]) -> scalar, tensor { w(x) }
"""


class Picker(Plain):
    def f(self, pick: Any, x: Any) -> Any:
        return pick(x)


def test_a_sampler_is_refused_to_numpy_beside_torch_too(tmp_path: Path) -> None:
    _, linked = compiled(tmp_path, PLAIN, f"components: {{n: {HERE}.Picker, m: {HERE}.Heavy}}\n")
    with pytest.raises(LoadError, match=r"op `n\.f` is handed a sampler, which takes torch tensors"):
        OpTable(linked, 0)
