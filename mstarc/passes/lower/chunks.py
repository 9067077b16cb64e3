"""Types of what a stream hands out. Takes a stream's declaration; gives the type of an item or of a chunk of items."""

from __future__ import annotations

from mstarc.ir import declarations
from mstarc.ir.types import Expr, Lit, Ref, Tensor, Type
from mstarc.passes.lower.dims import Dims, substituted

_WHOLE = ("drop", "pad:zero", "pad:repeat")  # ends after which no chunk is shorter than the others


def is_single(stream: declarations.Stream) -> bool:
    """Whether a chunk is one item, bare: `fixed(1)`."""
    return stream.policy == "fixed" and dict(stream.args).get("size") == Lit(1)


def item_type(stream: declarations.Stream, dims: Dims) -> Type:
    """One item. Its free dims may differ from item to item, so they are new in each taking."""
    bound: dict[str, Expr] = {}

    def fresh(name: str) -> Ref | Expr:
        return bound.setdefault(name, dims.fresh(name))

    return substituted(stream.item, fresh)


def chunk_type(stream: declarations.Stream, dims: Dims) -> Type:
    """What one taking gives: the item, or items stacked along a new dim 0."""
    item = item_type(stream, dims)
    if is_single(stream) or not isinstance(item, Tensor):
        return item
    return Tensor(item.dtype, (_length(stream, dims), *item.dims))


def _length(stream: declarations.Stream, dims: Dims) -> Expr:
    args = dict(stream.args)
    if stream.policy in ("fixed", "sliding_window") and (stream.at_end in _WHOLE or stream.at_end == ""):
        return args["size"]
    if stream.policy == "left_context" and args["left"] == Lit(0) and stream.at_end in _WHOLE:
        return args["chunk"]
    return dims.fresh("n")
