"""`<walk>_need(request, need, ...)`: what one call of a walk may write to each context at most. Takes a walk; gives a method.

An op writes the entries that it `takes`; inside a loop, that many times the loop's bound. What depends on a length that is not known
before the walk runs is `None`: up to the context's max. Drops and forks count only where they surely happen, in order; an
uncertain fork makes the target unknown. So the sum is an upper bound on every path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mstarc.codegen.expressions import Place, text
from mstarc.codegen.layout import Call
from mstarc.codegen.names import attribute, names_of, values_of
from mstarc.codegen.source import Method, Writer, method
from mstarc.ir.core import Block, Compute, Drop, ForChunks, Fork, Invoke, Loop, Op, Par, Program, Walk, When
from mstarc.ir.declarations import OpDecl
from mstarc.ir.types import Binary, Expr, FieldOf, Lit, Ref, Struct, Tensor, Type, Unary, ValueId, Var
from mstarc.ir.visit import every_expr, every_op
from mstarc.passes.effects import Names


@dataclass(frozen=True, slots=True)
class Unknown:
    """How often or how much is not known before the walk runs."""


def need_method(walk: Walk, program: Program) -> Method:
    """The method for one walk."""
    writer = _NeedWriter(walk, Names(program))
    writer.block(walk.body, (), sure=True)
    lines = [*writer.dim_lines(), *writer.writer.lines]
    params = ["request: RequestRun", "need: Need"]
    params += [f"{writer.names[value.id]}: Any" for value in walk.params]
    says = "walk {} writes at most" if lines else "walk {} writes no context"
    return method(f"{walk.name}_need", params, "None", says.format(walk.name), lines)


class _NeedWriter:
    def __init__(self, walk: Walk, declared: Names) -> None:
        self.declared = declared
        self.names = names_of(walk.params, walk.body)
        self.params = frozenset(value.id for value in walk.params)
        self.types: Mapping[ValueId, Type] = {v.id: v.type for v in values_of(walk.params, walk.body)}
        computed = (op for op in every_op(walk.body) if isinstance(op, Compute) and op.result.phase == "host")
        self.defs = {op.result.id: op.expr for op in computed}
        self.lengths = _lengths(walk, self.names)
        self.used: dict[str, str] = {}
        self.writer = Writer()
        self.place = Place("request", self.names, self.types, "request", lambda name: f"self.let_{name}(request)")

    def dim_lines(self) -> list[str]:
        """Assignments of the lengths that the amounts use."""
        return [f"        {_dim(name)} = need.rows({found})" for name, found in sorted(self.used.items())]

    def block(self, block: Block, times: Sequence[Expr | Unknown], sure: bool) -> None:
        """`times`: bounds of the loops around. `sure`: the block runs exactly once."""
        for op in block.ops:
            self._op(op, times, sure)

    def _op(self, op: Op, times: Sequence[Expr | Unknown], sure: bool) -> None:
        match op:
            case Invoke():
                self._invoke(op, times)
            case Loop():
                self.block(op.body, (*times, op.bound), sure=False)
            case ForChunks():
                self.block(op.body, (*times, Unknown()), sure=False)
            case When():
                self.block(op.body, times, sure=False)
            case Par():
                self.block(op.body, times, sure)
            case Drop() if sure:
                self.writer.add(Call("need.drop", tuple(f'"{name}"' for name in op.contexts)))
            case Fork():
                if sure:
                    self.writer.add(Call("need.fork", (f'"{op.target}"', f'"{op.source}"')))
                else:
                    self.writer.add(Call("need.write", (f'"{op.target}"', "None")))

    def _invoke(self, op: Invoke, times: Sequence[Expr | Unknown]) -> None:
        decl = self.declared.op(op)
        assert decl is not None, "the verifier knows every op"
        if decl.attrs.frozen or not op.writes:
            return
        amount = self._amount(op, decl, times)
        for context in op.writes:
            self.writer.add(Call("need.write", (f'"{context}"', amount)))

    def _amount(self, op: Invoke, decl: OpDecl, times: Sequence[Expr | Unknown]) -> str:
        """Python text of the most entries, or `None`."""
        total: Expr | None = self._known(_takes(decl), op, decl)
        for bound in times:
            count = None if isinstance(bound, Unknown) else self._known(bound, None, None)
            total = None if total is None or count is None else _product(total, count)
        if total is None:
            return "None"
        dims = sorted({part.name for part in every_expr(total) if isinstance(part, Ref) and part.scope == "dim"})
        for dim in dims:
            self.used[dim] = self.lengths[dim]
        place = replace(self.place, dims={dim: _dim(dim) for dim in dims})
        if isinstance(total, Ref) or not dims:
            return text(total, place)
        if len(dims) == 1:
            return f"None if {_dim(dims[0])} is None else {text(total, place)}"
        return f"None if None in ({', '.join(map(_dim, dims))}) else {text(total, place)}"

    def _known(self, expr: Expr, op: Invoke | None, decl: OpDecl | None) -> Expr | None:
        """The expression over params, configs and lengths of the walk's arguments; None if it needs anything else."""
        match expr:
            case Lit():
                return expr
            case Ref(scope="param" | "config" | "let"):
                return expr
            case Ref(scope="dim", name=name):
                if op is not None and decl is not None:
                    found = _dim_of_arg(name, op, decl, self.types)
                    return None if found is None else self._known(found, None, None)
                return expr if name in self.lengths else None
            case Var(ident) if ident in self.defs:
                return self._known(self.defs[ident], op, decl)
            case Unary(sign, x):
                inner = self._known(x, op, decl)
                return None if inner is None else Unary(sign, inner)
            case Binary(sign, a, b):
                left, right = self._known(a, op, decl), self._known(b, op, decl)
                return None if left is None or right is None else Binary(sign, left, right)
        return None


def _dim(name: str) -> str:
    return f"rows_{name}"


def _takes(decl: OpDecl) -> Expr:
    """The entries of one call, over the op's own dims."""
    if decl.attrs.takes is not None:
        return decl.attrs.takes
    for port in decl.params:
        if isinstance(port.type, Tensor) and port.type.dtype == "i64" and not (port.host or port.type.optional):
            if not port.type.dims:
                return Lit(1)
            if len(port.type.dims) == 1 and isinstance(port.type.dims[0], Ref) and port.type.dims[0].scope == "dim":
                return port.type.dims[0]
    return Ref("dim", "")


def _product(a: Expr, b: Expr) -> Expr:
    return b if a == Lit(1) else a if b == Lit(1) else Binary("*", a, b)


def _dim_of_arg(name: str, op: Invoke, decl: OpDecl, types: Mapping[ValueId, Type]) -> Expr | None:
    """The dim of an argument that stands for a free dim of the op."""
    for port, arg in zip(decl.params, op.args, strict=True):
        if arg is None or not isinstance(port.type, Tensor):
            continue
        kind = _type_of(arg, types)
        if isinstance(kind, Tensor) and len(kind.dims) == len(port.type.dims):
            for own, given in zip(port.type.dims, kind.dims, strict=True):
                if own == Ref("dim", name):
                    return given
    return None


def _type_of(expr: Expr, types: Mapping[ValueId, Type]) -> Type | None:
    match expr:
        case Var(ident):
            return types.get(ident)
        case FieldOf(base, name):
            kind = _type_of(base, types)
            return dict(kind.fields).get(name) if isinstance(kind, Struct) else None
    return None


def _lengths(walk: Walk, names: Mapping[ValueId, str]) -> dict[str, str]:
    """Free dims that are the length of an argument: name -> text of the argument."""
    found: dict[str, str] = {}

    def visit(kind: Type, source: str) -> None:
        if isinstance(kind, Struct):
            for name, inner in kind.fields:
                visit(inner, attribute(source, name))
        elif isinstance(kind, Tensor) and not kind.optional and kind.dims:
            first = kind.dims[0]
            if isinstance(first, Ref) and first.scope == "dim":
                found.setdefault(first.name, source)

    for value in walk.params:
        visit(value.type, names[value.id])
    return found
