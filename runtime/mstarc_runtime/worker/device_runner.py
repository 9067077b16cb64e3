"""How a device loop is run: captured into CUDA graphs on a GPU; and copies that come back later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from mstarc_runtime.worker.device_queues import Queues

Out = TypeVar("Out")
APART = 1 << 20  # bytes whose copy to the host would hold up the work behind it


class Fetch(Protocol):
    """Host copies of device tensors that are under way. `tensors` may be read once `ready()`."""

    tensors: list[Tensor]

    def ready(self) -> bool: ...


class Runner(Protocol):
    """Runs fixed-shape device work. queues: of a GPU; None where work is done before the call returns."""

    queues: Queues | None

    def capture(self, work: Callable[[], Out]) -> Callable[[], Out]:
        """The work as something to replay. Its outputs are overwritten by the next replay of any capture."""
        ...

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        """Copy to the host what the tensors hold at this point of the device's work, without waiting."""
        ...

    def beside(self) -> Runner:
        """A runner for work that may run at the same time as this one's."""
        ...


class PinnedFetch:
    """Copies into pinned memory, with an event behind them. Few bytes travel as one copy, since each takes longer to start than to run.
    Many are copied on the stream `out`, while the work that follows runs: it may write over what it finds, so they are copied on the
    device first, which takes a hundredth of the time."""

    def __init__(self, tensors: Sequence[Tensor], out: torch.cuda.Stream) -> None:
        if sum(tensor.nbytes for tensor in tensors) < APART:
            self.tensors = _copied_as_one(tensors)
            self._event = torch.cuda.current_stream(out.device).record_event()
            return
        kept = [tensor.clone() for tensor in tensors]
        out.wait_stream(torch.cuda.current_stream(out.device))
        with torch.cuda.stream(out):
            self.tensors = [_copied(tensor) for tensor in kept]
            self._event = out.record_event()
        for tensor in kept:
            tensor.record_stream(out)

    def ready(self) -> bool:
        return bool(self._event.query())


def _copied(tensor: Tensor) -> Tensor:
    """A copy in pinned memory that is under way."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _copied_as_one(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies that are under way together; the widest elements first, so that each tensor begins at a multiple of its own."""
    order = sorted(range(len(tensors)), key=lambda n: -tensors[n].element_size())
    rest = _copied(torch.cat([tensors[n].reshape(-1).view(torch.uint8) for n in order]))
    found: dict[int, Tensor] = {}
    for n in order:
        part, rest = rest[: tensors[n].nbytes], rest[tensors[n].nbytes :]
        found[n] = part.view(tensors[n].dtype).view(tensors[n].shape)
    return [found[n] for n in range(len(tensors))]


class GraphRunner:
    """CUDA graphs that share one memory pool, replayed on the queue that work goes to then."""

    def __init__(self, device: torch.device, queues: Queues | None = None) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._own = queues or Queues(device)
        self.queues: Queues | None = self._own

    def capture(self, work: Callable[[], Out]) -> Callable[[], Out]:
        """The work must have run once before, so that its kernels are compiled.

        Meanwhile other threads may ask for memory, and a kernel may be loaded that this process has not used yet: neither changes what is
        captured ("relaxed"). To wait for the device is an error in any mode.
        """
        graph = torch.cuda.CUDAGraph()
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, capture_error_mode="relaxed"),
        ):
            out = work()

        def replay() -> Out:
            graph.replay()
            return out

        return replay

    def fetch(self, tensors: Sequence[Tensor]) -> Fetch:
        return PinnedFetch(tensors, self._own.out)

    def beside(self) -> Runner:
        """Graphs of one pool must not run at the same time: they share memory."""
        return GraphRunner(self._device, self._own)
