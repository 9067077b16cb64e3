"""What a GPU does between two replays of CUDA graphs, from a profile of torch: kernels of one launch share a correlation id."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch.profiler import profile

REPLAY = 50  # a launch of at least so many kernels is taken for a replay of a loop's graph


class Kernel(NamedTuple):
    """One kernel, copy or fill on the device; times in nanoseconds."""

    launch: int
    queue: int  # CUDA stream
    begin: int
    end: int


class Gap(NamedTuple):
    """Nanoseconds from the last kernel of a replay to the first of the next in its queue, and for how many of them no queue worked."""

    wall: int
    idle: int


def kernels_of(found: profile) -> list[Kernel]:
    """All that ran on the device."""
    from torch._C._autograd import DeviceType

    results = found.profiler.kineto_results if found.profiler is not None else None
    return [
        Kernel(
            event.correlation_id(), event.device_resource_id(), event.start_ns(), event.start_ns() + event.duration_ns()
        )
        for event in (results.events() if results is not None else ())
        if event.device_type() == DeviceType.CUDA
    ]


def replay_gaps(kernels: Iterable[Kernel], least: int = REPLAY) -> list[Gap]:
    """The gaps between replays that follow each other in one queue, by time."""
    every = sorted(kernels, key=lambda kernel: kernel.begin)
    launches: dict[tuple[int, int], list[Kernel]] = defaultdict(list)
    for kernel in every:
        launches[kernel.queue, kernel.launch].append(kernel)
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (queue, _), members in launches.items():
        if len(members) >= least:
            spans[queue].append((members[0].begin, max(kernel.end for kernel in members)))
    holes = _holes(every)
    gaps = []
    for replays in spans.values():
        for (_, begin), (end, _) in pairwise(replays):
            idle = sum(max(0, min(end, b) - max(begin, a)) for a, b in holes)
            gaps.append((begin, Gap(max(0, end - begin), idle)))
    return [gap for _, gap in sorted(gaps)]


def _holes(kernels: Iterable[Kernel]) -> list[tuple[int, int]]:
    """When nothing ran, between the first kernel and the last."""
    holes, end = [], None
    for kernel in kernels:
        if end is not None and kernel.begin > end:
            holes.append((end, kernel.begin))
        end = kernel.end if end is None else max(end, kernel.end)
    return holes


def told(gaps: list[Gap]) -> str:
    """One line: how many, and the median, the 95th percentile and the longest in microseconds."""
    if not gaps:
        return "no two replays followed each other"
    parts = []
    for name in ("wall", "idle"):
        of = sorted(getattr(gap, name) / 1000 for gap in gaps)
        parts.append(f"{name} {statistics.median(of):.1f} / {of[int(0.95 * (len(of) - 1))]:.1f} / {of[-1]:.1f}")
    return f"{len(gaps)} gaps between replays, µs, median / 95 % / longest: {', '.join(parts)}"
