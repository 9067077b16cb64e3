"""The two queues of a GPU: work beside does not wait, values that cross over are there, and their memory is not used again too early."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.kernels import INTERPRETED, device_for_kernels

DEVICE = device_for_kernels()
from mstarc_runtime.worker.device_queues import Queues  # noqa: E402
from mstarc_runtime.worker.device_runner import GraphRunner  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(INTERPRETED, reason="queues need a CUDA device")]
LONG = 400_000_000  # clock cycles: some 200 ms


def queues() -> Queues:
    """With the kernels of these tests loaded and memory at hand in both queues: getting either may wait for the device."""
    found = Queues(torch.device("cuda:0"))
    for side in (False, True):
        with found.on(side):
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
            for count in (1000, 1 << 20):
                x = torch.full((count,), 3.0, device="cuda")
                x += 1
                x *= 2
                assert (x + 1).eq(9).all()
        torch.cuda.synchronize()
    return found


def test_work_beside_does_not_wait_for_the_main_queue() -> None:
    found = queues()
    x = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
    busy = found.mark()
    with found.on(side=True):
        assert found.is_side()
        y = x + 1
        found.side.synchronize()
    assert not found.is_side()
    assert not busy.query()  # type: ignore[no-untyped-call]
    assert y.eq(2).all()


def test_a_value_that_crosses_over_is_there() -> None:
    found = queues()
    x = torch.zeros(1000, device="cuda")
    torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
    x += 5
    mark = found.mark()
    with found.on(side=True):
        found.wait(mark)
        y = x + 1
        found.side.synchronize()
    assert y.eq(6).all()


def test_memory_that_is_lent_is_not_used_again_too_early() -> None:
    found = queues()
    x = torch.full((1 << 20,), 3.0, device="cuda")
    where = x.data_ptr()
    torch.cuda.synchronize()
    with found.on(side=True):
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        y = x + 1
    found.lend(x, side=True)
    del x
    again = torch.full((1 << 20,), 7.0, device="cuda")
    assert again.data_ptr() != where
    torch.cuda.synchronize()
    assert y.eq(4).all()


def test_joined_work_waits_for_both_and_both_for_it() -> None:
    found = queues()
    x = torch.zeros(1000, device="cuda")
    with found.on(side=True):
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        x += 1
        with found.joined():
            assert not found.is_side()
            x *= 10
        x += 2
        found.side.synchronize()
    assert x.eq(12).all()


def test_the_queue_that_is_in_use_is_known() -> None:
    """Also inside one another, again, and after an error: as the library has it."""
    found = Queues(torch.device("cuda:0"))

    def used(side: bool) -> None:
        assert found.is_side() is side
        assert torch.cuda.current_stream() == (found.side if side else found.main)

    used(False)
    with found.on(side=False):
        used(False)
        with found.on(side=True), found.on(side=True):
            used(True)
            with found.joined():
                used(False)
                with pytest.raises(ValueError), found.on(side=True):
                    used(True)
                    raise ValueError
                used(False)
            used(True)
        used(False)
    used(False)


def test_large_results_are_copied_while_the_work_behind_them_runs() -> None:
    """They are what they were when they were fetched, although that work writes over them and over memory that is free."""
    queue = queues()
    runner = GraphRunner(torch.device("cuda:0"), queue)
    x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
    expected = x.tolist()
    for _ in range(2):  # the second time memory and kernels are at hand
        fetch = runner.fetch([x[:3], x])
        x += 1
        torch.cuda._sleep(LONG)  # type: ignore[no-untyped-call]
        busy = queue.mark()
        while not fetch.ready():
            pass
        early = not busy.query()  # type: ignore[no-untyped-call]
        assert [tensor.tolist() for tensor in fetch.tensors] == [expected[:3], expected]
        x -= 1
        del fetch
        noise = [torch.full((1 << 20,), -1.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        del noise
    assert early
