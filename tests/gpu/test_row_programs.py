"""Operations on a number per row give the same values written down together as one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.kernels import device_for_kernels

DEVICE = torch.empty(0, device=device_for_kernels()).device
from mstarc_runtime.worker import row_programs  # noqa: E402
from mstarc_runtime.worker.row_programs import RowPrograms  # noqa: E402

pytestmark = pytest.mark.gpu
INTEGERS, FLAGS = (torch.int64, torch.int8), (torch.bool,)


def tensors(rows: int, seed: int) -> dict[str, Tensor]:
    """Named tensors; those in capitals may not be written."""
    draw = torch.Generator().manual_seed(seed)

    def drawn(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (rows,), generator=draw)

    found = {
        "a": drawn(-2, 6),
        "b": drawn(-2, 6),
        "c": drawn(0, 3).to(torch.int8),
        "on": drawn(0, 2).bool(),
        "off": drawn(0, 2).bool(),
        "F": torch.rand(rows, generator=draw) * 5,
        "D": torch.rand(rows, generator=draw).double() * 5,
        "THREE": torch.tensor(3).expand(rows),
        "TRUE": torch.tensor(True).expand(rows),
    }
    return {name: tensor.to(DEVICE) for name, tensor in found.items()}


def compute(held: dict[str, Tensor], seed: int, times: int = 30) -> dict[str, Tensor]:
    """Random operations on the tensors, new values beside them."""
    rng = random.Random(seed)

    def one(*dtypes: torch.dtype, written: bool = False) -> Any:
        names = [name for name, tensor in held.items() if tensor.dtype in dtypes and not (written and name.isupper())]
        return held[rng.choice(names)]

    def whole() -> Any:
        return one(*INTEGERS)

    def flag() -> Any:
        return one(*FLAGS)

    made: list[Callable[[], Any]] = [
        lambda: whole() == rng.choice((3, whole())),
        lambda: whole() != whole(),
        lambda: whole() < rng.choice((2.5, 1, whole())),
        lambda: one(torch.float32, torch.float64) >= rng.choice((whole(), 1.5)),
        lambda: flag() & flag(),
        lambda: whole() | one(*INTEGERS, *FLAGS),
        lambda: flag() ^ flag(),
        lambda: ~flag(),
        lambda: torch.where(flag(), one(*INTEGERS, *FLAGS), whole()),
        lambda: torch.where(flag(), one(torch.float32), one(torch.float64)),
        lambda: torch.where(flag(), whole(), -1),
        lambda: whole() + rng.choice((2, whole(), flag())),
        lambda: whole() - whole(),
        lambda: one(*INTEGERS, *FLAGS).clone(),
        lambda: flag().logical_not(),
        lambda: whole().double().mul(2).long(),  # no such operation
    ]
    changed: list[Callable[[], Any]] = [
        lambda: one(torch.int64, written=True).add_(one(*INTEGERS, *FLAGS), alpha=rng.choice([1, 2])),
        lambda: one(*INTEGERS, written=True).masked_fill_(flag(), 3),
        lambda: one(*FLAGS, written=True).logical_and_(~flag()),
        lambda: one(*FLAGS, written=True).logical_or_(one(*INTEGERS, *FLAGS)),
        lambda: one(*INTEGERS, written=True).copy_(one(*INTEGERS, *FLAGS)),
        lambda: one(*FLAGS, written=True).copy_(one(*INTEGERS, *FLAGS)),
    ]
    for n in range(times):
        if rng.random() < 0.7:
            held[f"n{n}"] = rng.choice(made)()
        else:
            rng.choice(changed)()
    return held


@pytest.mark.parametrize("seed", range(12))
@torch.inference_mode()
def test_random_operations(seed: int) -> None:
    rows = random.Random(seed).choice([1, 2, 5, 16, 33, 64])
    wanted = compute(tensors(rows, seed), seed)
    with RowPrograms(DEVICE, rows):
        found = compute(tensors(rows, seed), seed)
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("inference", [False, True])
def test_one_kernel_for_all(monkeypatch: pytest.MonkeyPatch, inference: bool) -> None:
    programs: list[tuple[str, ...]] = []
    compiled = row_programs._kernel

    def kernel(lines: tuple[str, ...], pointers: int) -> Any:
        programs.append(lines)
        return compiled(lines, pointers)

    monkeypatch.setattr(row_programs, "_kernel", kernel)
    active, done = (torch.tensor([flag, True, False, True], device=DEVICE) for flag in (True, False))
    count = torch.arange(4, device=DEVICE)
    with torch.inference_mode(inference), RowPrograms(DEVICE, 4):
        running = active & (count < 3)
        ending = running & ((count == 1) | done)
        active.logical_and_(~ending)
        count.add_(running)
        assert not programs
        twice = count * 2  # no operation of programs, so it runs what is written down
        assert len(programs) == 1
    assert len(programs) == 1
    assert twice.tolist() == [2, 4, 4, 6]
    assert active.tolist() == [True, False, False, True]


def test_views_that_overlap_are_computed_one_after_the_other() -> None:
    line = torch.arange(6, device=DEVICE)
    with RowPrograms(DEVICE, 5):
        line[:5].add_(1)
        line[1:].add_(1)
    assert line.tolist() == [1, 3, 4, 5, 6, 6]


def test_what_an_op_computes_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[tuple[str, ...]] = []
    compiled = row_programs._kernel

    def kernel(lines: tuple[str, ...], pointers: int) -> Any:
        programs.append(lines)
        return compiled(lines, pointers)

    monkeypatch.setattr(row_programs, "_kernel", kernel)
    count = torch.arange(4, device=DEVICE)
    with RowPrograms(DEVICE, 4) as mode:
        count.add_(1)
        sums = mode.outside(lambda value: [value + 1, value + 2])(count)
        assert len(programs) == 1
        with pytest.raises(ZeroDivisionError):
            mode.outside(lambda: 1 // 0)()
        more = sums[0] + sums[1]
        assert len(programs) == 1
    assert len(programs) == 2
    assert more.tolist() == [5, 7, 9, 11]
