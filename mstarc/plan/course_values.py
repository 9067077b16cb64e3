"""Values and sizes along a course: what host expressions come to, how long arrays are, and what had to be assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from mstarc.ir.core import Extern, Gather, Invoke, Program, Value
from mstarc.ir.declarations import OpDecl, Port
from mstarc.ir.fold import FoldError, fold
from mstarc.ir.types import (
    Apply,
    Binary,
    Chunk,
    Expr,
    FieldOf,
    Index,
    Ref,
    Slice,
    Struct,
    Tensor,
    Type,
    Unary,
    ValueId,
    Var,
)
from mstarc.passes.shape import Known, ShapeScope
from mstarc.plan.cost_table import Cost
from mstarc.plan.formulas import FormulaError, evaluate

Sizes: TypeAlias = dict[str, Any]
Dims: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run of a loop collects under a name: `count` values of `dims`, `number` bytes a number. bound: the loop's, as written."""

    walk: str
    loop: str
    name: str
    bound: str
    count: int
    dims: tuple[int, ...]
    number: int

    @property
    def bytes(self) -> int:
        return self.count * prod(self.dims) * self.number


class Assumptions:
    """Lengths and host values that the model does not say. `told`: those that were asked for, with where they come from."""

    def __init__(self, program: Program, scope: ShapeScope, cost: Cost, sizes: Mapping[str, int]) -> None:
        self.program, self._scope, self._cost, self._set = program, scope, cost, sizes
        self.told: dict[str, str] = {}

    def size(self, name: str) -> int:
        """A free dim. A name that occurs twice in a unit was numbered (`T_2`): the number does not count."""
        base = name.rstrip("0123456789").removesuffix("_") if name not in self._cost.sizes else name
        for key in (name, base):
            if key in self._set:
                return int(self._tell(key, self._set[key], "set"))
            if key in self._cost.sizes:
                return int(self._tell(key, int(evaluate(self._cost.sizes[key], self._named)), "cost.sizes"))
        return int(self._tell(base, 1, "assumed: `cost.sizes` does not say it"))

    def value(self, extern: str, port: str) -> Any | None:
        """What an extern gives, if the table says it."""
        name = f"{extern}.{port}"
        if name not in self._cost.values:
            return None
        return self._tell(name, evaluate(self._cost.values[name], self._named), "cost.values")

    def _tell(self, name: str, value: Any, source: str) -> Any:
        self.told[name] = f"{value} ({source})"
        return value

    def _named(self, name: str) -> Any:
        """A param, a let or a config by name, else a size."""
        for scope in ("param", "let", "config"):
            try:
                return self._scope.ref(Ref(scope, name))
            except FoldError:
                continue
        if name in self._set or name in self._cost.sizes:
            return self.size(name)
        raise FormulaError(f"`{name}` is no param, config or size")


class Frame(Known):
    """One unit of the course: what is known of its values, and the shapes of those that are not."""

    def __init__(self, shape: ShapeScope, told: Assumptions) -> None:
        super().__init__(shape)
        self.told = told
        self.shapes: dict[ValueId, Dims] = {}
        self.structs: dict[ValueId, Struct] = {}
        self.gathered: dict[str, tuple[float, Dims]] = {}
        self.chunks: dict[ValueId, int] = {}  # new items of a chunk

    def ref(self, ref: Ref) -> Any:
        if ref.scope == "dim" and ref.name not in self.dims:
            self.dims[ref.name] = self.told.size(ref.name)
        return Known.ref(self, ref)

    def field(self, ident: ValueId, name: str) -> Any:
        if name == "new" and ident in self.chunks:
            return self.chunks[ident]
        return Known.field(self, ident, name)

    # ------------------------------------------------------------------------------------------------------------- binding

    def bind(self, value: Value) -> None:
        """A value whose dims are those of its type, or those that are known already."""
        if isinstance(value.type, Struct):
            self.structs[value.id] = value.type
        if value.id in self.shapes:
            self.learn(value.type, self.shapes[value.id])
        else:
            self.shapes[value.id] = self.dims_of(value.type)

    def learn(self, kind: Type, dims: Dims) -> None:
        """The free dims of a type, from a shape."""
        if isinstance(kind, Tensor) and len(kind.dims) == len(dims):
            for dim, size in zip(kind.dims, dims, strict=True):
                if isinstance(dim, Ref) and dim.scope == "dim":
                    self.dims[dim.name] = size

    def pass_in(self, param: Value, arg: Expr, caller: Frame) -> None:
        """A walk's parameter."""
        value = caller.eval(arg)
        if value is not None:
            self.values[param.id] = value
        if isinstance(param.type, Tensor):
            self.shapes[param.id] = caller.expr_dims(arg)
        self.bind(param)

    def compute(self, result: Value, expr: Expr) -> None:
        value = self.eval(expr) if result.phase == "host" else None
        if value is None:
            self.values.pop(result.id, None)
            self.shapes[result.id] = self.expr_dims(expr)
        else:
            self.values[result.id] = value

    def extern(self, op: Extern) -> None:
        decl = next(d for d in self.told.program.externs if d.name == op.name)
        for value, port in zip(op.results, decl.results, strict=True):
            if value is not None:
                given = self.told.value(op.name, port.name)
                if given is not None:
                    self.values[value.id] = given
                self.bind(value)

    def alias(self, result: Value, inner: ValueId) -> None:
        """A value that another becomes, absent or not."""
        if inner in self.values:
            self.values[result.id] = self.values[inner]
        self.shapes[result.id] = self.shapes[inner] if inner in self.shapes else self.dims_of(result.type)

    def alias_expr(self, result: Value, expr: Expr) -> None:
        self.shapes[result.id] = self.expr_dims(expr) if result.phase == "device" else ()

    def bind_result(self, value: Value, port: Port, sizes: Sizes) -> None:
        """A result of an op: its dims by those of the call."""
        if isinstance(port.type, Tensor):
            scope = OpSizes(self, sizes)
            self.shapes[value.id] = tuple(scope.whole(dim) for dim in port.type.dims)
        self.bind(value)

    def bind_chunk(self, value: Value, kind: Type, length: int, new: int, single: bool) -> None:
        """A chunk of `length` items of a kind, `new` of them new."""
        item = self.dims_of(kind)
        self.shapes[value.id] = item if single else (length, *item)
        self.chunks[value.id] = new

    def collect(self, name: str, expr: Expr, times: float) -> None:
        count = self.gathered.get(name, (0.0, ()))[0]
        self.gathered[name] = (count + times, self.expr_dims(expr))

    def gather(self, gather: Gather) -> None:
        count, item = self.gathered.pop(gather.name, (0.0, ()))
        rows = round(count) * (item[0] if item else 1)
        self.shapes[gather.result.id] = (rows, *item[1:])
        self.bind(gather.result)

    # --------------------------------------------------------------------------------------------------------------- sizes

    def shape_of(self, ident: ValueId) -> Dims:
        return self.shapes.get(ident, ())

    def dims_of(self, kind: Type) -> Dims:
        if isinstance(kind, Chunk):
            return self.dims_of(kind.item)
        return tuple(self.whole(dim) for dim in kind.dims) if isinstance(kind, Tensor) else ()

    def whole(self, expr: Expr) -> int:
        """A length; 1 where an expression needs what is not known."""
        value = self.eval(expr)
        return int(value) if isinstance(value, int | float) else 1

    def expr_dims(self, expr: Expr) -> Dims:
        """The shape of an expression."""
        match expr:
            case Var(ident):
                value = self.values.get(ident)
                return (len(value),) if isinstance(value, list | tuple) else self.shape_of(ident)
            case FieldOf(Var(ident), name):
                return self._field_dims(ident, name)
            case Unary(_, x):
                return self.expr_dims(x)
            case Binary(_, a, b):
                return max(self.expr_dims(a), self.expr_dims(b), key=len)
            case Apply("guide", args):
                return self.expr_dims(args[0])
            case Apply("last", args):
                dims = self.expr_dims(args[0])
                return (min(dims[0], self.whole(args[1])), *dims[1:]) if dims else dims
            case Index(base, indices):
                return self._indexed(self.expr_dims(base), indices)
        return ()

    def _field_dims(self, ident: ValueId, name: str) -> Dims:
        kind = self.structs.get(ident)
        return self.dims_of(dict(kind.fields)[name]) if kind is not None else self.shape_of(ident)

    def _indexed(self, dims: Dims, indices: tuple[Expr | Slice, ...]) -> Dims:
        kept: list[int] = []
        for size, index in zip(dims, indices, strict=False):
            if isinstance(index, Slice):
                ends = [None if end is None else self.whole(end) for end in (index.low, index.high)]
                kept.append(len(range(size)[slice(*ends)]))
        return (*kept, *dims[len(indices) :])

    def op_sizes(self, op: Invoke, decl: OpDecl) -> Sizes:
        """Free dims of the op from its arguments, and its host arguments by name."""
        sizes: Sizes = {}
        for port, arg in zip(decl.params, op.args, strict=True):
            if arg is None:
                continue
            if port.host and (value := self.eval(arg)) is not None:
                sizes[port.name] = value
            if isinstance(port.type, Tensor):
                for dim, size in zip(port.type.dims, self.expr_dims(arg), strict=False):
                    if isinstance(dim, Ref) and dim.scope == "dim":
                        sizes.setdefault(dim.name, size)
        return sizes

    def takes(self, decl: OpDecl, sizes: Sizes) -> int:
        """Entries that a call takes."""
        return 1 if decl.attrs.takes is None else OpSizes(self, sizes).whole(decl.attrs.takes)


class OpSizes:
    """The scope of an op's dims and attributes in one call."""

    def __init__(self, frame: Frame, sizes: Sizes) -> None:
        self._frame, self._sizes = frame, sizes

    def ref(self, ref: Ref) -> Any:
        if ref.scope != "dim":
            return self._frame.ref(ref)
        return self._sizes[ref.name] if ref.name in self._sizes else self._frame.told.size(ref.name)

    def var(self, ident: ValueId) -> Any:
        raise FoldError(f"%{ident} in an op's declaration")

    def field(self, ident: ValueId, name: str) -> Any:
        raise FoldError(f"%{ident} in an op's declaration")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        return self._frame.apply(fn, args)

    def whole(self, expr: Expr) -> int:
        try:
            return int(fold(expr, self))
        except (FoldError, TypeError, ValueError):
            return 1
