"""Expressions that no config decides, as formulas of the runtime (`mstarc_runtime.abi.formula`)."""

from __future__ import annotations

from typing import Any

from mstarc.ir.fold import FoldError, fold
from mstarc.ir.types import Apply, Binary, Expr, IfThen, Index, ListOf, Lit, Ref, Slice, Tensor, Unary
from mstarc.plan.evaluate import ConfigScope, parse_expr, parse_type
from mstarc.plan.model import OpPlan
from mstarc_runtime.abi.formula import OPS, Formula


class Opened:
    """Formulas under a config. With an op, its host params and the free dims of its arguments have values too."""

    def __init__(self, scope: ConfigScope, op: OpPlan | None = None) -> None:
        self._scope, self._op = scope, op

    def formula(self, text: str) -> Formula:
        """What configs decide is a number already. Raises FoldError for a name that has no value in a call."""
        return self._of(parse_expr(text))

    def _of(self, expr: Expr) -> Formula:
        try:
            return fold(expr, self._scope)
        except FoldError as error:
            return self._open(expr, error)

    def _open(self, expr: Expr, why: FoldError) -> Formula:
        match expr:
            case Ref(scope="param", name=name):
                return {"param": name}
            case Ref(scope="let", name=name):
                return self._of(self._scope.let(name))
            case Ref(scope="dim", name=name) if self._op is not None:
                return self._argument(name)
            case Unary(op, x):
                return _node("neg" if op == "-" else op, self._of(x))
            case Binary(op, a, b):
                return _node(op, self._of(a), self._of(b))
            case IfThen(cond, a, b):
                return _node("if", self._of(cond), self._of(a), self._of(b))
            case Index(base, (index,)) if not isinstance(index, Slice):
                return _node("index", self._of(base), self._of(index))
            case Apply(fn, args) if fn in OPS or fn in ("wants", "given"):
                return _node(fn, *map(self._of, args))
            case ListOf(items):
                return [self._of(item) for item in items]
            case Lit() | _:
                raise why

    def _argument(self, name: str) -> Formula:
        """A host param by its value, a free dim by the first argument that has it."""
        assert self._op is not None
        for k, port in enumerate(self._op.params):
            if port.host and port.name == name:
                return {"arg": k}
        for k, port in enumerate(self._op.params):
            kind = parse_type(port.type)
            dims = kind.dims if isinstance(kind, Tensor) and not kind.optional else ()
            if Ref("dim", name) in dims:
                return {"rows": [k, dims.index(Ref("dim", name))]}
        raise FoldError(f"not built yet: op `{self._op.name}` needs `{name}`, which no argument has as a dim")


def _node(op: str, *parts: Any) -> Formula:
    return {"op": op, "of": list(parts)}
