"""Batches through a captured stateless op equal the op itself; capture is direct execution here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mstarc_runtime.arrays import TorchArrays
from mstarc_runtime.engines.stack_graphs import StackGraph
from mstarc_runtime.sampling.op_noise import OpNoise
from mstarc_runtime.sampling.philox import DrawKey
from tests.engines.test_op_graphs import Counted

INPUTS = [torch.zeros(3), torch.zeros((), dtype=torch.int64)]
CPU = torch.device("cpu")


def plain(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    return x.cumsum(1) * n[:, None], n + 1


def noisy(noise: Any, x: Tensor, n: Tensor) -> Tensor:
    drawn: Tensor = noise.normal(3) + 10 * noise.normal(2)[:, :1] * n[:, None]
    return x + drawn


def test_batches_of_every_size() -> None:
    runner = Counted()
    graph = StackGraph(plain, INPUTS, "", 5, CPU, runner)
    assert runner.captured == 4  # 1, 2, 4, 5
    kept = []
    for rows in range(1, 6):
        columns = [torch.randn(rows, 3), torch.arange(rows)]
        found = graph.run(columns, [])
        kept.append((found[0], plain(*columns)[0]))
        assert torch.equal(found[1], columns[1] + 1)
    assert all(torch.equal(one, other) for one, other in kept)  # later replays change nothing
    assert graph.fits([torch.zeros(5, 3), torch.zeros(5)])
    assert not graph.fits([torch.zeros(6, 3), torch.zeros(6)])
    assert not graph.fits([torch.zeros(2, 4), torch.zeros(2)])


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_draws_are_those_of_the_generator(rows: int) -> None:
    graph = StackGraph(noisy, INPUTS, "walk/n.op", 4, CPU, Counted())
    keys = [DrawKey(seed, "walk/n.op", seed % 5) for seed in (7, 2**63 + 3, -4 % 2**64, 11)][:rows]
    columns = [torch.randn(rows, 3), torch.arange(rows)]
    wanted = noisy(OpNoise(TorchArrays(), keys, stacked=True), *columns)
    torch.testing.assert_close(graph.run(columns, keys), wanted)
