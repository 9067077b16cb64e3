"""What expressions mean row by row, where every value has a row per request. Takes expressions of a straight body; gives ranks of a row.

A value whose dims are numbers and configs has one shape in every request, so its rows can be one array. Any other (`f32[N, c]` with an N
of the request, the result of a call on a context that may be off) is kept request by request: it is *ragged*.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from mstarc.ir.core import Value
from mstarc.ir.types import Apply, Binary, Expr, IfThen, Index, Lit, Ref, Slice, Tensor, Type, Unary, ValueId, Var
from mstarc.ir.visit import every_expr

#: rank of an expression that is one value for the whole batch
UNIFORM = -1


def stackable(kind: Type) -> bool:
    """Whether values of the type have one shape in every request: its dims are numbers and configs."""
    return (
        isinstance(kind, Tensor)
        and not kind.optional
        and all(
            isinstance(part, (Lit, Unary, Binary)) or (isinstance(part, Ref) and part.scope == "config")
            for dim in kind.dims
            for part in every_expr(dim)
        )
    )


def of_host(expr: Expr) -> bool:
    """Whether an expression is made of what the host knows of a request: numbers, params, configs, and the iteration."""
    return all(
        isinstance(part, (Lit, Unary, Binary, IfThen))
        or (isinstance(part, Ref) and part.scope != "dim")
        or (isinstance(part, Apply) and part.fn in ("wants", "given"))
        for part in every_expr(expr)
    )


class Ranks:
    """Ranks of expressions in a region, without the dim of rows; None where the expression has no meaning row by row. Only a table has
    a row for each iteration."""

    def __init__(self, values: Mapping[ValueId, Value], label: str, tables: Container[ValueId] = frozenset()) -> None:
        self._values, self._label, self._tables = values, label, tables

    def row(self, expr: Expr) -> bool:
        """Whether the expression has one row per request."""
        rank = self.of(expr)
        return rank is not None and rank != UNIFORM

    def may_be_absent(self, expr: Expr) -> bool:
        """Whether the expression is a value that some requests do not have."""
        return isinstance(expr, Var) and isinstance(kind := self._values[expr.id].type, Tensor) and kind.optional

    def stacks(self, expr: Expr) -> bool:
        """Whether the expression has one shape in every request."""
        return all(stackable(self._values[part.id].type) for part in every_expr(expr) if isinstance(part, Var))

    def of(self, expr: Expr) -> int | None:
        """Rank of a row; UNIFORM for literals and configs; None if it cannot be said elementwise."""
        match expr:
            case Lit():
                return UNIFORM
            case Ref(scope="config"):
                return UNIFORM
            case Ref(scope="iter", name=name):
                return 0 if name == self._label else None
            case Ref(scope="param" | "let"):
                return 0
            case Apply(fn="wants" | "given"):
                return 0
            case Apply("guide", args):
                return self._of_guide(args)
            case Var(ident):
                kind = self._values[ident].type
                return len(kind.dims) if isinstance(kind, Tensor) and not kind.optional else None
            case Unary(_, x):
                return self.of(x)
            case Binary(_, a, b):
                return _joined(self.of(a), self.of(b))
            case Index(Var(ident) as base, (at,)) if not isinstance(at, Slice):
                rank, places = self.of(base), (UNIFORM, 0) if ident in self._tables else (UNIFORM,)
                return rank - 1 if rank and self.of(at) in places else None
        return None

    def _of_guide(self, args: tuple[Expr, ...]) -> int | None:
        """As its first argument, where the branches are arrays like it and what comes after them is of the host."""
        rank, branches = self.of(args[0]), branches_of(args)
        like = all(self.of(arg) == rank or self.may_be_absent(arg) for arg in args[1:branches])
        return rank if rank and rank > 0 and like and all(map(of_host, args[branches:])) else None


def branches_of(args: tuple[Expr, ...]) -> int:
    """How many of the arguments of a `guide` in a straight line are arrays: (v, a, scale, ...) or (v, a, b, scale, scale, ...)."""
    return 2 if of_host(args[2]) else 3


def _joined(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or UNIFORM in (a, b):
        return None if a is None or b is None else max(a, b)
    return max(a, b) if a == b or 0 in (a, b) else None  # one number a row goes with all that the row holds
