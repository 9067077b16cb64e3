"""`weights of`: a node takes the parameters of another, which are loaded once and are in memory once."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from mstarc.codegen.package import compile_model
from mstarc.ir.core import Invoke
from mstarc.ir.visit import every_op
from mstarc.plan.layout import layouts_of
from mstarc.plan.placement import Placement
from mstarc.plan.resident import held_by
from mstarc_runtime.abi.linked import Linked, RankLink
from mstarc_runtime.errors import LoadError
from mstarc_runtime.loading import load_components
from mstarc_runtime.worker.ops import OpTable
from tests.codegen.shared_components import Table
from tests.codegen.written import Asked, agree, compiled

HERE = "tests.codegen.shared_components"
SPEC = """
model shared
node first : stateless weights of table { op row(x: i64) -> y: f32[4] }
node table : stateless { op row(x: i64) -> y: f32[4]  op nearest(y: f32[4]) -> x: i64 }
node other : stateless weights of table { op row(x: i64) -> y: f32[4]  { batch stack } }
walk there(x: i64) {
    emit table.nearest(table.row(x)) as scalar
    emit first.row(x) as tensor
}
walk back(x: i64) { emit other.row(x) as tensor }
request r(x: i64) -> scalar, tensor {
    there(x)
    back(x)
}
"""
BINDING = f"components: {{first: {HERE}.Table, table: {HERE}.Table, other: {HERE}.Reverse}}\n"


def linked(folder: Path, binding: str = BINDING) -> Linked:
    return compiled(folder, SPEC, binding)[1]


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "loaded", 0)


def test_all_have_the_tensors_of_one(tmp_path: Path) -> None:
    of = linked(tmp_path)
    found = load_components(of, of.nodes, "cpu")
    assert Table.loaded == 1
    assert found["first"] is found["table"] and found["other"] is not found["table"], (
        "of one class they are one component"
    )
    assert len({component.rows.data_ptr() for component in found.values()}) == 1


def test_a_rank_that_calls_only_nodes_that_share_has_the_weights_once(tmp_path: Path) -> None:
    """The owner is loaded there as well, without being called."""
    of = linked(tmp_path)
    ranks = {"there": 0, "back": 1}
    walks = [msgspec.structs.replace(walk, rank=ranks[walk.name]) for walk in of.walks]
    of = msgspec.structs.replace(of, walks=walks, ranks=[RankLink(rank=0), RankLink(rank=1)])
    said: list[str] = []
    table = OpTable(of, 1, lambda done, total, what: said.append(what))
    assert said == ["loading table", "loading other", "loaded"]
    assert Table.loaded == 1
    assert table.bound("other.row").method.__self__.rows.shape == (16, 4)  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        table.bound("table.row")


def test_a_class_that_cannot_share(tmp_path: Path) -> None:
    of = linked(tmp_path, BINDING.replace("Reverse", "Alone"))
    with pytest.raises(
        LoadError, match=r"`other` has the weights of `table`, and its class .*Alone` neither is that of `table` nor"
    ):
        load_components(of, of.nodes, "cpu")


async def test_the_engine_gives_what_the_interpreter_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "load", classmethod(lambda cls, *given: cls(_rows())))
    found = await agree(tmp_path, SPEC, BINDING, [Asked({"x": x}) for x in (0, 5, 15)])
    for got, x in zip(found, (0, 5, 15), strict=True):
        assert [int(value) for value in got.events["scalar"]] == [x]
        for value, row in zip(got.events["tensor"], (x, 15 - x), strict=True):
            np.testing.assert_array_equal(value, _rows()[row])


def _rows() -> torch.Tensor:
    return torch.arange(64, dtype=torch.float32).view(16, 4)


def test_a_plan_counts_them_once(tmp_path: Path) -> None:
    of = linked(tmp_path)
    plan = compile_model(tmp_path / "x.walk", tmp_path / "package").plan
    assert plan is not None
    layouts = layouts_of(plan, Placement()).values()
    calls = [
        (op, layout.at[id(op)]) for layout in layouts for op in every_op(layout.walk.body) if isinstance(op, Invoke)
    ]
    assert {op.node for op, _ in calls} == {"table", "first", "other"}
    assert held_by(0, calls, of, 4).nodes == {"table": 1.0}
