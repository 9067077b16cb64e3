"""Which loops of a walk are regions: straight-line device work that a worker runs for many requests at once.

Takes a walk; gives one `Region` per loop that qualifies. In a region every value is a batch with one row per request, so its body may
hold only what means the same row by row: calls, draws, emissions, sends, elementwise arithmetic on equal ranks, and stops. Values whose
shape differs from request to request cannot be stacked, and what must be one value for the whole batch may not depend on a request.
A body sends at most once: the runtime makes sure of credit before an iteration begins, and for two sends that is more than the
language asks for (a consumer may need the first item to make room for the second). Every other loop is left to the walk's coroutine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mstarc.ir.core import (
    Block,
    Collect,
    Compute,
    Emit,
    Invoke,
    Loop,
    Noise,
    OpDecl,
    Program,
    Sample,
    Send,
    Stop,
    Value,
    Walk,
)
from mstarc.ir.types import Apply, Binary, Expr, Lit, Ref, Tensor, Type, Unary, ValueId, Var
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names

#: rank of an expression that is one value for the whole batch
UNIFORM = -1
_BODY = (Compute, Invoke, Sample, Noise, Emit, Send, Collect, Stop)


@dataclass(frozen=True, slots=True)
class Region:
    """A loop as a method on a batch. `fixed`: values from outside that the body reads, in the order of their definition.

    carried, given: types of the carried values and of the fixed ones. sends: stream -> the most items of one iteration. collects:
    names, in the order of the loop's gathers.
    """

    walk: str
    loop: Loop
    fixed: tuple[ValueId, ...]
    carried: tuple[Type, ...]
    given: tuple[Type, ...]
    sends: tuple[tuple[str, int], ...]
    collects: tuple[str, ...]

    @property
    def method(self) -> str:
        return f"{self.walk}_{self.loop.label}"


def form_regions(walk: Walk, program: Program) -> dict[str, Region]:
    """Region by loop label, for every loop of the walk that is one."""
    names = Names(program)
    types = {value.id: value for value in values_of(walk)}
    found = {}
    for op in every_op(walk.body):
        if isinstance(op, Loop) and is_region(op, types, names):
            found[op.label] = _region(walk, op, types)
    return found


def values_of(walk: Walk) -> Iterable[Value]:
    """Every value of a walk."""
    yield from walk.params
    for op in every_op(walk.body):
        yield from results_of(op)
        if isinstance(op, Loop):
            yield from (carry.inner for carry in op.carries)
        yield from getattr(op, "items", ())


def _region(walk: Walk, loop: Loop, values: Mapping[ValueId, Value]) -> Region:
    inside = {value.id for op in loop.body.ops for value in results_of(op)} | {carry.inner.id for carry in loop.carries}
    read = {ident for op in loop.body.ops for expr in exprs_of(op) for ident in vars_of(expr)}
    read |= {ident for carry in loop.carries for ident in vars_of(carry.next)}
    sends: dict[str, int] = {}
    for op in loop.body.ops:
        if isinstance(op, Send):
            sends[op.stream] = sends.get(op.stream, 0) + 1
    gathered = tuple(gather.name for gather in loop.gathers)
    fixed = tuple(sorted(read - inside))
    carried = tuple(carry.inner.type for carry in loop.carries)
    given = tuple(values[ident].type for ident in fixed)
    return Region(walk.name, loop, fixed, carried, given, tuple(sorted(sends.items())), gathered)


def is_region(loop: Loop, values: Mapping[ValueId, Value], names: Names) -> bool:
    """Whether the loop's body can run for many requests at once."""
    ranks = Ranks(values, loop.label)
    sends = sum(isinstance(op, Send) for op in loop.body.ops)
    if sends > 1 or not all(isinstance(op, _BODY) for op in loop.body.ops):
        return False
    fixed = {i for op in loop.body.ops for expr in exprs_of(op) for i in vars_of(expr)}
    stacked = [*(values[i].type for i in fixed), *(carry.inner.type for carry in loop.carries)]
    return (
        all(stackable(kind) for kind in stacked)
        and all(ranks.row(carry.next) for carry in loop.carries)
        and all(_fits(op, ranks, names) for op in loop.body.ops)
    )


def _fits(op: object, ranks: Ranks, names: Names) -> bool:
    match op:
        case Invoke():
            decl = names.op(op)
            return decl is not None and _call_fits(op, decl, ranks)
        case Sample(logits=value):
            return ranks.row(value)
        case Collect(value=value) | Send(value=value):
            return ranks.row(value)
        case Emit(value=value, attrs=attrs):
            return ranks.row(value) and all(ranks.of(attr) == UNIFORM for _, attr in attrs)
        case Stop(cond=cond, carried=carried):
            return ranks.of(cond) in (UNIFORM, 0) and all(ranks.row(value) for value in carried)
        case Noise(result=result):
            return stackable(result.type)
        case Compute(result=result, expr=expr):
            return ranks.row(expr) and stackable(result.type)
    return False


def _call_fits(op: Invoke, decl: OpDecl, ranks: Ranks) -> bool:
    """Arguments are rows, none is left out or for the host; results have one shape for all requests."""
    return (
        not any(port.host for port in decl.params)
        and all(arg is not None and ranks.row(arg) for arg in op.args)
        and all(value is None or stackable(value.type) for value in op.results)
    )


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


class Ranks:
    """Ranks of expressions in a region, without the dim of rows; None where the expression has no meaning row by row."""

    def __init__(self, values: Mapping[ValueId, Value], label: str) -> None:
        self._values, self._label = values, label

    def row(self, expr: Expr) -> bool:
        """Whether the expression has one row per request."""
        rank = self.of(expr)
        return rank is not None and rank != UNIFORM

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
            case Var(ident):
                kind = self._values[ident].type
                return len(kind.dims) if isinstance(kind, Tensor) and stackable(kind) else None
            case Unary(_, x):
                return self.of(x)
            case Binary(_, a, b):
                return _joined(self.of(a), self.of(b))
        return None


def _joined(a: int | None, b: int | None) -> int | None:
    if a is None or b is None or UNIFORM in (a, b):
        return None if a is None or b is None else max(a, b)
    return max(a, b) if a == b or 0 in (a, b) else None  # one number a row goes with all that the row holds


def loops_of(block: Block) -> Iterable[Loop]:
    """Every loop of a block."""
    return (op for op in every_op(block) if isinstance(op, Loop))


def regions_of(program: Program) -> dict[str, dict[str, Region]]:
    """The regions of every walk, by walk and loop label."""
    return {walk.name: form_regions(walk, program) for walk in program.walks}


def say_regions(program: Program, regions: dict[str, dict[str, Region]]) -> Iterator[str]:
    """One line for each loop: whether it is a region, and what it reads from outside."""
    for walk in program.walks:
        for loop in loops_of(walk.body):
            region = regions[walk.name].get(loop.label)
            if region is None:
                yield f"loop {walk.name}.{loop.label}: in the coroutine of its walk"
            else:
                fixed = ", ".join(f"%{ident}" for ident in region.fixed) or "nothing"
                yield f"loop {walk.name}.{loop.label}: region `{region.method}`, reads {fixed} from outside"
