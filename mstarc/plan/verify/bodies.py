"""Bodies of walks, and the tables beside them: each step follows its inputs, and a table names just what the body touches.

Takes a plan and its walks as IR; gives faults, all of them MC610.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from mstarc.ir.core import Block, Drop, Extern, ForChunks, Fork, Invoke, Loop, Next, Op, Par, Sample, Send, Walk, When
from mstarc.ir.text.expressions import print_expr
from mstarc.ir.types import Expr
from mstarc.ir.visit import entries_of, every_op, exprs_of, results_of, vars_of
from mstarc.plan.model import OpPlan, Plan, WalkPlan
from mstarc.plan.rules import MC610
from mstarc.plan.verify.fault import Fault, line_of


def verify_bodies(plan: Plan, walks: Sequence[Walk]) -> Iterator[Fault]:
    """Every walk of the plan beside its body."""
    names = [walk.name for walk in plan.walks]
    if names != [walk.name for walk in walks]:
        yield Fault(MC610, f"the plan has walks {_listed(names)}, and bodies of {_listed(w.name for w in walks)}")
        return
    ops = {f"{node.name}.{op.name}": op for node in plan.nodes for op in node.ops}
    for table, walk in zip(plan.walks, walks, strict=True):
        yield from _Order(walk).faults()
        unknown = list(_unknown(walk, ops, plan))
        yield from unknown
        if not unknown:
            yield from _tables(table, walk, ops)
            yield from _loops(table, walk)
    yield from _requests(plan, names)


class _Order:
    """One walk, read from top to bottom: every value is defined once, and above what reads it."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._made: set[int] = set()
        self._found: list[Fault] = []

    def faults(self) -> Sequence[Fault]:
        scope: set[int] = set()
        for value in self._walk.params:
            self._define(value.id, scope)
        self._block(self._walk.body, scope)
        for output in self._walk.outputs:
            if output.value not in scope:
                self._fault(f"the result `{output.name}` is %{output.value}, which no step at the top has made")
        return self._found

    def _fault(self, message: str, op: Op | None = None) -> None:
        said = "" if op is None else line_of(op)
        self._found.append(Fault(MC610, f"walk `{self._walk.name}`: {message}", self._walk.name, op=said))

    def _define(self, ident: int, scope: set[int], op: Op | None = None) -> None:
        if ident in self._made:
            self._fault(f"%{ident} is made twice", op)
        self._made.add(ident)
        scope.add(ident)

    def _block(self, block: Block, scope: set[int]) -> None:
        for op in block.ops:
            self._op(op, scope)

    def _op(self, op: Op, scope: set[int]) -> None:
        self._read(exprs_of(op), scope, op)
        for block, entering in entries_of(op):
            inner = scope if isinstance(op, Par) else set(scope)
            for value in entering:
                self._define(value.id, inner, op)
            self._block(block, inner)
            if isinstance(op, Loop):
                self._read((carry.next for carry in op.carries), inner, op)
            if isinstance(op, When):
                for phi in op.results:
                    if phi.inner not in inner:
                        self._fault(f"%{phi.inner} is handed on before a step has made it", op)
        for value in results_of(op):
            self._define(value.id, scope, op)

    def _read(self, exprs: Iterator[Expr] | Sequence[Expr], scope: Set[int], op: Op) -> None:
        for ident in dict.fromkeys(i for expr in exprs for i in vars_of(expr)):
            if ident not in scope:
                self._fault(f"%{ident} is read before a step has made it", op)


def _unknown(walk: Walk, ops: Mapping[str, OpPlan], plan: Plan) -> Iterator[Fault]:
    """Names that the plan does not declare, and calls with another number of arguments or results."""
    known = {
        "op": set(ops),
        "context": {context.name for context in plan.contexts},
        "sampler": {sampler.name for sampler in plan.samplers},
        "stream": {stream.name for stream in plan.streams},
        "extern": set(plan.extern_results),
    }
    for op in every_op(walk.body):
        for kind, name in touched(op):
            if name not in known[kind]:
                message = f"walk `{walk.name}` uses {kind} `{name}`, which the plan does not declare"
                yield Fault(MC610, message, walk.name, op=line_of(op))
        declared = ops.get(f"{op.node}.{op.op}") if isinstance(op, Invoke) else None
        if isinstance(op, Invoke) and declared is not None:
            given, due = (len(op.args), len(op.results)), (len(declared.params), len(declared.results))
            if given != due:
                message = (
                    f"`{op.node}.{op.op}` has {given[0]} arguments and {given[1]} results, not {due[0]} and {due[1]}"
                )
                yield Fault(MC610, message, walk.name, op=line_of(op))


def touched(op: Op) -> Iterator[tuple[str, str]]:
    """(kind, name) of what one operation uses, what its blocks use aside."""
    match op:
        case Invoke():
            yield "op", f"{op.node}.{op.op}"
            yield from (("context", name) for name in (*op.writes, *op.reads))
        case Sample():
            yield "sampler", op.sampler
        case Extern():
            yield "extern", op.name
        case Send():
            yield "stream", op.stream
        case Next() | ForChunks():
            yield from (("stream", name) for name in op.streams)
        case Fork():
            yield from (("context", name) for name in (op.target, op.source))
        case Drop():
            yield from (("context", name) for name in op.contexts)


def _tables(table: WalkPlan, walk: Walk, ops: Mapping[str, OpPlan]) -> Iterator[Fault]:
    """nodes, sends, takes, contexts, samplers, externs: just the names that the body uses, sorted."""
    found: dict[str, set[str]] = {
        name: set() for name in ("nodes", "sends", "takes", "contexts", "samplers", "externs")
    }
    for op in every_op(walk.body):
        for kind, name in touched(op):
            if kind == "stream":
                found["sends" if isinstance(op, Send) else "takes"].add(name)
            elif kind == "op":
                found["nodes"].add(name.split(".")[0])
                found["samplers"].update({ops[name].samples} - {""})
            else:
                found[f"{kind}s"].add(name)
    for field, names in found.items():
        said = getattr(table, field)
        if said != sorted(names):
            message = f"walk `{walk.name}` says `{field}` {_listed(said)}, and its body uses {_listed(sorted(names))}"
            yield Fault(MC610, message, walk.name)


def _loops(table: WalkPlan, walk: Walk) -> Iterator[Fault]:
    """One row for each loop, in order, with its kind and bound."""
    said = {loop.label: f"{loop.kind} {loop.bound}" for loop in table.loops}
    found = {op.label: f"{op.kind} {print_expr(op.bound)}" for op in every_op(walk.body) if isinstance(op, Loop)}
    for label in dict.fromkeys((*said, *found)):
        if said.get(label) != found.get(label):
            told = f"is said to run {said[label]}" if label in said else "has no row"
            there = f"runs {found[label]}" if label in found else "is not in the body"
            yield Fault(MC610, f"loop `{walk.name}.{label}` {told}, and {there}", walk.name, label)
    if said == found and ([*said] != [*found] or len(said) != len(table.loops)):
        yield Fault(MC610, f"the rows of walk `{walk.name}` have its loops in another order, or twice", walk.name)


def _requests(plan: Plan, names: Sequence[str]) -> Iterator[Fault]:
    """Walks that come before others, and walks of chains, are walks of the plan."""
    known = set(names)
    for walk in plan.walks:
        for name in walk.before:
            if name not in known:
                yield Fault(MC610, f"walk `{name}`, said to run before `{walk.name}`, is not in the plan", walk.name)
    for request in plan.requests:
        for chain in request.chains:
            for name in chain:
                if name.rstrip("*?") not in known | {"together"}:
                    yield Fault(MC610, f"request `{request.name}` runs walk `{name}`, which is not in the plan")


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"
