"""Which stateless ops of a rank are captured before its first request, and with which shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from mstarc_runtime.engines.op_graphs import Capture
from mstarc_runtime.engines.shape_graphs import Form, ShapeGraphs
from mstarc_runtime.engines.stack_graphs import StackGraph
from mstarc_runtime.errors import describe
from mstarc_runtime.worker.handed import handed_count
from mstarc_runtime.worker.kv import DTYPES

if TYPE_CHECKING:
    from mstarc_runtime.loading import Progress
    from mstarc_runtime.worker.bound_ops import BoundOp

log = logging.getLogger("mstarc.worker")


def shape_graphs(
    ops: Iterable[BoundOp], device: torch.device, capture: Capture, progress: Progress
) -> dict[str, ShapeGraphs]:
    """By name, the ops that have usual shapes and can be captured. Of one that cannot, the log says why."""
    found: dict[str, ShapeGraphs] = {}
    for bound in ops:
        forms = usual_forms(bound)
        if not forms:
            continue

        def report(done: int, total: int, name: str = bound.name) -> None:
            progress(done, total, f"capturing {name}")

        try:
            found[bound.name] = ShapeGraphs(bound.method, forms, device, capture, report)
        except Exception as error:
            log.warning("`%s` is not captured: %s", bound.name, describe(error))
    return found


def usual_forms(bound: BoundOp) -> list[Form]:
    """The forms of the calls of one request that are known beforehand: what the component names, or what the spec fixes.

    None for an op that is handed more than its arguments, or takes several requests at once.
    """
    link = bound.link
    if link.batch == "stack" or not link.results or handed_count(bound.node, link):
        return []
    return _known_forms(bound)


def _known_forms(bound: BoundOp) -> list[Form]:
    """The forms of one request's arguments that are known beforehand, of a stateless op of torch."""
    link = bound.link
    if bound.node.kind != "stateless" or bound.arrays != "torch" or not link.inputs:
        return []
    usual = getattr(getattr(bound.method, "__self__", None), "usual_shapes", None)
    if usual is not None:
        shapes = usual(link.name)
    else:
        fixed = tuple(tuple(dim for dim in port.dims if dim is not None) for port in link.inputs)
        ragged = any(len(dims) != len(port.dims) for dims, port in zip(fixed, link.inputs, strict=True))
        shapes = [] if ragged or any(link.optional) else [fixed]
    dtypes = [DTYPES[port.dtype] for port in link.inputs]
    return [tuple(zip(dtypes, each, strict=True)) for each in shapes]


def stack_graphs(
    ops: Iterable[BoundOp],
    walk: str,
    most_rows: Callable[[str], int],
    device: torch.device,
    capture: Capture,
    progress: Progress,
) -> dict[str, list[StackGraph]]:
    """By name, the ops with `batch stack` that can be captured, for calls of one walk, with a graph for each form that is known. Of one
    that cannot, the log says why."""
    found: dict[str, list[StackGraph]] = {}
    for bound in ops:
        kept = bound.node.states or bound.link.samples
        forms = [] if kept or bound.link.batch != "stack" else _known_forms(bound)
        site = f"{walk}/{bound.name}" if bound.link.random else ""

        def method(*args: Any, bound: BoundOp = bound) -> Any:
            results = bound.method(*args)
            bound.check.columns(results)
            return results

        def report(done: int, total: int, name: str = bound.name) -> None:
            progress(done, total, f"capturing {name}")

        try:
            for form in forms:
                inputs = [torch.zeros(dims, dtype=dtype, device=device) for dtype, dims in form]
                graph = StackGraph(method, inputs, site, most_rows(bound.name), device, capture, report)
                found.setdefault(bound.name, []).append(graph)
        except Exception as error:
            log.warning("`%s` is not captured: %s", bound.name, describe(error))
    return found
