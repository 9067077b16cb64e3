"""Each op of a node with the method of its component. What does not fit together is found here, before any request."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from mstarc_runtime.abi.linked import Linked, NodeLink, OpLink
from mstarc_runtime.checkpoints import bound_by, names_in, resolve
from mstarc_runtime.errors import LoadError, meant
from mstarc_runtime.worker.handed import handed_names
from mstarc_runtime.worker.results import ResultCheck


@dataclass(frozen=True, slots=True)
class BoundOp:
    """An op with the method that implements it."""

    name: str  # node.op
    node: NodeLink
    link: OpLink
    method: Callable[..., Any]
    check: ResultCheck
    arrays: str = "torch"  # the array library of the component


def nodes_of_rank(linked: Linked, rank: int) -> list[NodeLink]:
    """The nodes whose ops walks of this rank call."""
    wanted = {node for walk in linked.walks if walk.rank == rank for node in walk.nodes}
    return [node for node in linked.nodes if node.name in wanted]


def bound_ops(node: NodeLink, component: Any, library: str) -> Iterator[BoundOp]:
    """The ops of a node. library: of the component's arrays. Raises LoadError for a method that is missing or takes other arguments."""
    for link in node.ops:
        name = f"{node.name}.{link.name}"
        method = getattr(component, link.name, None)
        if method is None:
            near = meant(link.name, names_in(component))
            raise LoadError(f"component `{node.component}` has no method `{link.name}` for op `{name}`{near}")
        _check_signature(node, link, method)
        if library == "numpy" and link.samples:
            raise LoadError(f"op `{name}` is handed a sampler, which takes torch tensors: not with ARRAYS = numpy")
        yield BoundOp(name, node, link, method, ResultCheck(name, node.component, link), library)


def library_of(node: NodeLink) -> str:
    """The array library that a node's component asks for: "torch" or "numpy". Raises LoadError."""
    with bound_by(f"components.{node.name}"):
        name = getattr(resolve(node.component), "ARRAYS", "torch")
    if name not in ("numpy", "torch"):
        raise LoadError(f'`{node.component}` says ARRAYS = {name!r}; it can be "numpy" or "torch"')
    if name == "numpy" and node.kind == "transformer":
        raise LoadError(
            f"`{node.component}` is of a transformer node, which takes torch tensors: not with ARRAYS = numpy"
        )
    return str(name)


def _check_signature(node: NodeLink, link: OpLink, method: Callable[..., Any]) -> None:
    """A method that cannot take the op's arguments is found at start-up, not on a request."""
    number = len(link.params)
    before = (("run",) if node.kind == "transformer" else ()) + handed_names(node, link)
    try:
        inspect.signature(method).bind(*before, *[None] * number)
    except TypeError as error:
        given = ", ".join((*before, f"{number} argument{'' if number == 1 else 's'}"))
        does_not_fit = f"`{node.component}.{link.name}` does not fit op `{node.name}.{link.name}`"
        raise LoadError(f"{does_not_fit}, which hands it {given}: {error}") from error
