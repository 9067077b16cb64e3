"""Which stateless ops of a rank are captured before its first request, and with which shapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from mstarc_runtime.arrays import Arrays
from mstarc_runtime.engines.op_graphs import Capture
from mstarc_runtime.engines.shape_graphs import Form, ShapeGraphs
from mstarc_runtime.engines.stack_graphs import StackGraph
from mstarc_runtime.errors import describe
from mstarc_runtime.worker.handed import handed_count
from mstarc_runtime.worker.kv import DTYPES

if TYPE_CHECKING:
    from mstarc_runtime.loading import Progress
    from mstarc_runtime.worker.ops import BoundOp

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
    stateless = bound.node.kind == "stateless" and bound.arrays == "torch"
    if not stateless or link.batch == "stack" or handed_count(bound.node, link) or not link.inputs or not link.results:
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
    arrays: Arrays,
    capture: Capture,
    progress: Progress,
) -> dict[str, StackGraph]:
    """By name, the ops with `batch stack` that can be captured, for calls of one walk. Of one that cannot, the log says why."""
    found: dict[str, StackGraph] = {}
    for bound in ops:
        if not _is_fixed_stack(bound):
            continue
        inputs = [arrays.zeros(port.dtype, [dim or 0 for dim in port.dims]) for port in bound.link.inputs]
        site = f"{walk}/{bound.name}" if bound.link.random else ""

        def method(*args: Any, bound: BoundOp = bound) -> Any:
            results = bound.method(*args)
            bound.check.columns(results)
            return results

        def report(done: int, total: int, name: str = bound.name) -> None:
            progress(done, total, f"capturing {name}")

        try:
            found[bound.name] = StackGraph(method, inputs, site, most_rows(bound.name), arrays.device, capture, report)
        except Exception as error:
            log.warning("`%s` is not captured: %s", bound.name, describe(error))
    return found


def _is_fixed_stack(bound: BoundOp) -> bool:
    """Whether an op takes all its arguments batched, each of one shape, and is handed a generator at most."""
    link = bound.link
    if bound.node.kind != "stateless" or link.batch != "stack" or bound.arrays != "torch" or not link.inputs:
        return False
    kept = bool(bound.node.states or link.samples or any(link.optional))
    return not kept and all(None not in port.dims for port in link.inputs)
