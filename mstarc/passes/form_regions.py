"""Which loops of a walk are regions: straight-line device work that a worker runs for many requests at once.

Takes a walk; gives one `Region` per loop that qualifies. In a region every value is a batch with one row per request, so its body may
hold only what means the same row by row: calls, alone or in a `parallel`, draws, emissions, sends, elementwise arithmetic on equal
ranks, `guide`, and stops. What must be one value for the whole batch may not depend on a request. A region with a value whose shape
differs from request to request, or that some requests do not have, is *ragged*: its values are kept request by request (`row_ranks`).
A body sends at most once: the runtime makes sure of credit before an iteration begins, and for two sends that is more than the
language asks for (a consumer may need the first item to make room for the second). Every other loop is left to the walk's coroutine.

Conditions of the host in the body make several bodies of it (`straight_lines`), and a request runs in the one that is its. A value from
outside that a static loop only reads as `x[iter]` is a *table*: as many of its rows are taken as the loop can have iterations, so that
all requests have one shape.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mstarc.ir.core import (
    Block,
    Collect,
    Compute,
    Emit,
    Invoke,
    Loop,
    Noise,
    Op,
    Program,
    Sample,
    Send,
    Stop,
    Value,
    Walk,
)
from mstarc.ir.declarations import OpDecl
from mstarc.ir.types import Binary, Expr, Index, Lit, Ref, Tensor, Type, ValueId, Var
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names
from mstarc.passes.ranges import Ranges, walk_ranges
from mstarc.passes.row_ranks import UNIFORM, Ranks, stackable
from mstarc.passes.straight_lines import Condition, Line, changes, statements, straight_lines

MOST_ROWS = 4096  # of a table
_BODY = (Compute, Invoke, Sample, Noise, Emit, Send, Collect, Stop)  # each alone or, calls, in a `parallel`


@dataclass(frozen=True, slots=True)
class Body:
    """One straight line of a region as a method. holds: which of the region's conditions; sends: stream -> the most items of one
    iteration."""

    method: str
    holds: tuple[bool, ...]
    loop: Loop
    sends: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A loop as methods on a batch. `fixed`: values from outside that a body reads, in the order of their definition.

    carried, given: types of the carried values and of the fixed ones. tables: those of the fixed that are read row by row, with their
    rows beyond the loop's bound and their rows in all. collects: names, in the order of the loop's gathers. conditions: of the host,
    which say the body that runs; bodies that are the same are one. ragged: values are kept request by request.
    """

    walk: str
    loop: Loop
    fixed: tuple[ValueId, ...]
    carried: tuple[Type, ...]
    given: tuple[Type, ...]
    tables: Mapping[ValueId, tuple[int, int]]
    collects: tuple[str, ...]
    conditions: tuple[Condition, ...]
    bodies: tuple[Body, ...]
    ragged: bool

    @property
    def method(self) -> str:
        """The first body, after which the others are named."""
        return self.bodies[0].method

    @property
    def changing(self) -> bool:
        """Whether a condition comes out anew in each iteration."""
        return any(changes(cond, self.loop) for cond in self.conditions)

    def methods(self) -> tuple[Body, ...]:
        """The bodies that differ."""
        return tuple({body.method: body for body in self.bodies}.values())


def form_regions(walk: Walk, program: Program) -> dict[str, Region]:
    """Region by loop label, for every loop of the walk that is one."""
    names = Names(program)
    values = {value.id: value for value in values_of(walk)}
    ranges = walk_ranges(program, walk)
    loops = (op for op in every_op(walk.body) if isinstance(op, Loop))
    found = {loop.label: _region(walk, loop, values, names, ranges) for loop in loops}
    return {label: region for label, region in found.items() if region is not None}


def values_of(walk: Walk) -> Iterable[Value]:
    """Every value of a walk."""
    yield from walk.params
    for op in every_op(walk.body):
        yield from results_of(op)
        if isinstance(op, Loop):
            yield from (carry.inner for carry in op.carries)
        yield from getattr(op, "items", ())


def _region(walk: Walk, loop: Loop, values: Mapping[ValueId, Value], names: Names, ranges: Ranges) -> Region | None:
    conditions, lines = straight_lines(loop, values)
    if not lines or (any(changes(cond, loop) for cond in conditions) and loop.kind != "times"):
        return None
    tables = _tables(lines, values, ranges)
    shaped = {**values, **{ident: _as_table(values[ident], rows) for ident, (_, rows) in tables.items()}}
    if not all(is_region(line.loop, shaped, names, tables) for line in lines):
        return None
    fixed = tuple(sorted({ident for line in lines for ident in _outside(line.loop)}))
    return Region(
        walk=walk.name,
        loop=loop,
        fixed=fixed,
        carried=tuple(carry.inner.type for carry in loop.carries),
        given=tuple(shaped[ident].type for ident in fixed),
        tables=tables,
        collects=tuple(gather.name for gather in loop.gathers),
        conditions=conditions,
        bodies=_bodies(f"{walk.name}_{loop.label}", lines),
        ragged=not all(stackable(kind) for line in lines for kind in _kinds(line.loop, shaped)),
    )


def _kinds(loop: Loop, values: Mapping[ValueId, Value]) -> Iterator[Type]:
    """The types of all values of a straight body, from outside or made."""
    yield from (carry.inner.type for carry in loop.carries)
    yield from (values[ident].type for ident in _outside(loop))
    yield from (value.type for op in statements(loop.body) for value in results_of(op))


def _bodies(name: str, lines: Sequence[Line]) -> tuple[Body, ...]:
    """A body for each line; lines that do the same share a method."""
    methods: dict[Loop, str] = {}
    for line in lines:
        methods.setdefault(line.loop, f"{name}_{len(methods) + 1}" if methods else name)
    return tuple(Body(methods[line.loop], line.holds, line.loop, _sends(line.loop)) for line in lines)


def _sends(loop: Loop) -> tuple[tuple[str, int], ...]:
    streams = [op.stream for op in statements(loop.body) if isinstance(op, Send)]
    return tuple((stream, streams.count(stream)) for stream in sorted(set(streams)))


def _exprs(loop: Loop) -> Iterator[Expr]:
    """What a straight body evaluates."""
    yield from (expr for op in statements(loop.body) for expr in _evaluated(op))
    yield from (carry.next for carry in loop.carries)


def _evaluated(op: Op) -> tuple[Expr, ...]:
    """What an operation of a straight body evaluates: noise its dims, too."""
    return op.result.type.dims if isinstance(op, Noise) and isinstance(op.result.type, Tensor) else exprs_of(op)


def _outside(loop: Loop) -> set[ValueId]:
    """Values that a straight body reads and does not make."""
    inside = {value.id for op in statements(loop.body) for value in results_of(op)} | {
        carry.inner.id for carry in loop.carries
    }
    return {ident for expr in _exprs(loop) for ident in vars_of(expr)} - inside


# ----------------------------------------------------------------------------------------------------------------- tables


def _tables(lines: Sequence[Line], values: Mapping[ValueId, Value], ranges: Ranges) -> dict[ValueId, tuple[int, int]]:
    """Values from outside that every line reads as far, and only as `x[iter]` or `x[iter + n]`: (the largest n, rows in all).

    All iterations run, so a value without a row for each of them is a fault whenever it is found. A loop without an iteration reads no row.
    """
    loop = lines[0].loop
    times = ranges.of(loop.bound)
    if loop.kind != "times" or any(isinstance(op, Stop) for op in statements(loop.body)):
        return {}
    found: dict[ValueId, tuple[int, int]] = {}
    for ident in _outside(loop):
        beyond, *others = {_rows_beyond(line.loop, ident) for line in lines}
        if beyond is None or others or (beyond and times.low < 1) or times.high + beyond > MOST_ROWS:
            continue
        if isinstance(values[ident].type, Tensor):
            found[ident] = beyond, max(1, int(times.high) + beyond)  # rows that have left read one, too
    return found


def _rows_beyond(loop: Loop, ident: ValueId) -> int | None:
    """The most rows beyond its own that an iteration reads of a value; None if it reads it in another way, or not at all."""
    label = Ref("iter", loop.label)
    parts = [part for expr in _exprs(loop) for part in every_expr(expr)]
    places = [part.indices for part in parts if isinstance(part, Index) and part.base == Var(ident)]
    if not places or sum(part == Var(ident) for part in parts) != len(places):
        return None
    found = []
    for place in places:
        match place:
            case (Ref() as at,) if at == label:
                found.append(0)
            case (Binary("+", Ref() as at, Lit(int(more))),) if at == label and more >= 0:
                found.append(more)
            case _:
                return None
    return max(found)


def _as_table(value: Value, rows: int) -> Value:
    """The value with so many rows."""
    assert isinstance(value.type, Tensor)
    return replace(value, type=replace(value.type, dims=(Lit(rows), *value.type.dims[1:])))


# ------------------------------------------------------------------------------------------------------- what fits a region


def is_region(loop: Loop, values: Mapping[ValueId, Value], names: Names, tables: Container[ValueId]) -> bool:
    """Whether a straight body can run for many requests at once."""
    ranks = Ranks(values, loop.label, tables)
    ops = tuple(statements(loop.body))
    if sum(isinstance(op, Send) for op in ops) > 1 or not all(isinstance(op, _BODY) for op in ops):
        return False
    return (
        all(isinstance(kind, Tensor) for kind in _kinds(loop, values))
        and all(ranks.row(carry.next) for carry in loop.carries)
        and all(_fits(op, ranks, names) for op in ops)
    )


def _fits(op: object, ranks: Ranks, names: Names) -> bool:
    match op:
        case Invoke():
            decl = names.op(op)
            return decl is not None and _call_fits(op, decl, ranks)
        case Sample(logits=value):
            return ranks.row(value) and ranks.stacks(value)
        case Collect(value=value) | Send(value=value):
            return ranks.row(value)
        case Emit(value=value, attrs=attrs):
            return ranks.row(value) and all(ranks.of(attr) == UNIFORM for _, attr in attrs)
        case Stop(cond=cond, carried=carried):
            return ranks.of(cond) in (UNIFORM, 0) and all(ranks.row(value) for value in carried)
        case Noise():
            return all(ranks.of(dim) in (UNIFORM, 0) for dim in _evaluated(op))
        case Compute(expr=expr):
            return ranks.row(expr)
    return False


def _call_fits(op: Invoke, decl: OpDecl, ranks: Ranks) -> bool:
    """None of the arguments is for the host. One may be the same number for all, or a value that some requests do not have."""
    return not any(port.host for port in decl.params) and all(
        arg is None or ranks.of(arg) is not None or ranks.may_be_absent(arg) for arg in op.args
    )


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
                found = ", ".join(f"`{body.method}`" for body in region.methods())
                kept = ", request by request" if region.ragged else ""
                yield f"loop {walk.name}.{loop.label}: region {found}, reads {fixed} from outside{kept}"
