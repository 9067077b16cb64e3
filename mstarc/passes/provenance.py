"""Where the contexts of a request come from: which are provably equal, which calls on them therefore need not run.

Takes a program and a shape of requests; gives, for every op call that reads a context, a `Branch`. The histories of two contexts are
equal if the same calls wrote both in the same order, counted from equal beginnings; contexts with equal histories hold equal entries,
positions and ids, so a frozen call with equal arguments gives equal results on them. The analysis is a must-analysis: `equal` is
claimed only if it holds in every course that a request of the shape can take, whatever its externs return.

A worker finds the same out exactly while a request runs (`mstarc_runtime.cache.contexts`); this pass is what a reader, the plan and
the cost model know before it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

from mstarc.ir.core import (
    Block,
    CallWalk,
    Compute,
    Drop,
    ForChunks,
    Fork,
    ForParts,
    If,
    Invoke,
    Loop,
    Op,
    Par,
    Program,
    Stop,
    Together,
    Walk,
    When,
)
from mstarc.ir.types import Apply, Expr, Var
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of
from mstarc.passes.effects import Names
from mstarc.passes.shape import Known, Shape, ShapeScope, every_shape, request_of

#: the class of contexts that are empty
EMPTY = 0
#: what becomes of a call: it runs; it runs on an empty context; its context is off or its guard is false; its value is another's;
#: `guide` leaves it out, its scale being at most 1
Fate: TypeAlias = Literal["runs", "empty", "absent", "same", "unread"]
Classes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Branch:
    """What a shape says of one call that reads a context. `result`: its name. `twin`: the result that it equals, if `same`."""

    walk: str
    result: str
    op: str
    context: str
    fate: Fate
    twin: str = ""


# --------------------------------------------------------------------------------------------------------------- histories


def beginning(program: Program) -> dict[str, int]:
    """Every context is empty."""
    return {context.name: EMPTY for context in program.contexts}


def fork(classes: Classes, target: str, source: str) -> dict[str, int]:
    """target's history becomes that of source."""
    return {**classes, target: classes[source]}


def drop(classes: Classes, names: tuple[str, ...]) -> dict[str, int]:
    """The contexts are empty again."""
    return {**classes, **dict.fromkeys(names, EMPTY)}


def write(classes: Classes, names: tuple[str, ...]) -> dict[str, int]:
    """One call wrote the contexts: those that were equal stay equal, and differ from all others now."""
    fresh = max(classes.values(), default=EMPTY) + 1
    renamed = {old: fresh + k for k, old in enumerate(dict.fromkeys(classes[name] for name in names))}
    return {**classes, **{name: renamed[classes[name]] for name in names}}


def meet(a: Classes, b: Classes) -> dict[str, int]:
    """What holds after either of two courses: equal are the contexts that are equal in both."""
    pairs: dict[tuple[int, int], int] = {(EMPTY, EMPTY): EMPTY}
    return {name: pairs.setdefault((a[name], b[name]), len(pairs)) for name in a}


def canonical(classes: Classes) -> dict[str, int]:
    """The same partition with its classes numbered in the order of their first member."""
    numbers: dict[int, int] = {EMPTY: EMPTY}
    return {name: numbers.setdefault(old, len(numbers)) for name, old in classes.items()}


# ---------------------------------------------------------------------------------------------------------------- analysis


def provenance(program: Program, shape: Shape) -> tuple[Branch, ...]:
    """Every call that reads a context in requests of the shape, in program order. Raises RequestRefused for a shape that is refused."""
    return tuple(_Trace(program, shape).branches())


@dataclass(slots=True)
class _Seen:
    """One frozen call over all the ways to come to it. `twins`: earlier calls of its `parallel` that are equal each time."""

    walk: str
    invoke: Invoke
    fates: set[Fate]
    twins: set[str] | None = None


class _Trace:
    """Runs a request of the shape over classes of contexts; what is not known goes both ways."""

    def __init__(self, program: Program, shape: Shape) -> None:
        self.program, self.shape = program, shape
        self.names = Names(program)
        self.scope = ShapeScope(program, shape)
        self.request = request_of(program, shape.request)
        known = Known(self.scope)
        self.on = {c.name: True if c.when is None else known.eval(c.when) for c in program.contexts}
        self.seen: dict[tuple[str, int], _Seen] = {}
        self.exits: list[list[Classes]] = []

    def branches(self) -> Iterator[Branch]:
        self.block(self.request.body, beginning(self.program), Known(self.scope), None)
        for seen in self.seen.values():
            fate, twin = self._fate(seen)
            yield Branch(
                seen.walk,
                name_of(seen.invoke),
                f"{seen.invoke.node}.{seen.invoke.op}",
                seen.invoke.reads[0],
                fate,
                twin,
            )

    def _fate(self, seen: _Seen) -> tuple[Fate, str]:
        """One word for all visits: the strongest that holds in each."""
        if seen.twins:
            return "same", min(seen.twins)
        fates = seen.fates - {"absent"} or {"absent"}
        return (fates.pop() if len(fates) == 1 else "runs"), ""

    # ---------------------------------------------------------------------------------------------------------- operations

    def block(self, block: Block, classes: Classes, known: Known, walk: Walk | None) -> Classes:
        for op in block.ops:
            classes = self.op(op, classes, known, walk)
        return classes

    def op(self, op: Op, classes: Classes, known: Known, walk: Walk | None) -> Classes:
        match op:
            case Compute(result=result, expr=expr) if result.phase == "host":
                value = known.eval(expr)
                if value is not None:
                    known.values[result.id] = value
                else:
                    known.values.pop(result.id, None)
            case Invoke():
                return self.invoke(op, classes, known, walk)
            case Fork(target=target, source=source):
                return self.fork(classes, target, source)
            case Drop(contexts=contexts):
                return drop(classes, contexts)
            case Stop(cond=cond) if self.exits and known.eval(cond) is not False:
                self.exits[-1].append(classes)
            case Par(body=body):
                return self.parallel(body, classes, known, walk)
            case When(cond=cond, body=body):
                return self.either(known.eval(cond), body, Block(), classes, known, walk)
            case If(cond=cond, then=then, other=other):
                return self.either(known.eval(cond), then, other, classes, known, walk)
            case Loop():
                return self.loop(op, classes, known, walk)
            case ForChunks(body=body):
                return self.again(lambda c: self.block(body, c, known, walk), classes, False)
            case ForParts():
                return self.for_parts(op, classes, known)
            case Together(arms=arms):
                for arm in arms:
                    classes = self.block(arm.body, classes, known, walk)
            case CallWalk():
                return self.call(op, classes, known)
        return classes

    def either(
        self, cond: bool | None, then: Block, other: Block, classes: Classes, known: Known, walk: Walk | None
    ) -> Classes:
        if cond is None:
            return meet(self.block(then, classes, known, walk), self.block(other, classes, known, walk))
        for skipped in every_op(other if cond else then):
            if isinstance(skipped, Invoke) and skipped.reads and walk is not None:
                self.note(skipped, walk, "absent")
        return self.block(then if cond else other, classes, known, walk)

    def fork(self, classes: Classes, target: str, source: str) -> Classes:
        """A fork from or to a context that is off does nothing."""
        on = (self.on[target], self.on[source])
        if False in on:
            return classes
        forked = fork(classes, target, source)
        return forked if self.on[source] else meet(forked, classes)

    def invoke(self, op: Invoke, classes: Classes, known: Known, walk: Walk | None) -> Classes:
        if op.writes:
            written = tuple(name for name in op.writes if self.on[name] is not False)
            if self.names.nodes[op.node].states:  # each run finds the cells as the one before left them
                return reduce(lambda before, name: write(before, (name,)), written, dict(classes))
            return write(classes, written) if written else classes
        if op.reads and walk is not None and self.names.nodes[op.node].kind == "transformer":
            context = op.reads[0]
            off = self.on[context] is False
            self.note(op, walk, "absent" if off else self.fate_of(op, walk, classes[context], known))
        return classes

    def fate_of(self, op: Invoke, walk: Walk, of: int, known: Known) -> Fate:
        """A call that runs, on an empty context or not, unless nothing reads what it gives."""
        if _unread(op, walk, known):
            return "unread"
        return "empty" if of == EMPTY else "runs"

    def note(self, op: Invoke, walk: Walk, fate: Fate) -> None:
        key = (walk.name, id(op))
        if key not in self.seen:
            self.seen[key] = _Seen(walk.name, op, set())
        self.seen[key].fates.add(fate)

    def parallel(self, body: Block, classes: Classes, known: Known, walk: Walk | None) -> Classes:
        """Calls of one `parallel` with equal arguments on equal contexts are twins: the later takes the result of the earlier."""
        after = self.block(body, classes, known, walk)
        earlier: list[tuple[Invoke, Expr | None]] = []
        for call, guard in guarded_calls(body):
            seen = self.seen.get((walk.name, id(call))) if walk is not None else None
            if seen is None or seen.fates == {"absent"}:
                continue
            names = {
                name_of(other)
                for other, its_guard in earlier
                if its_guard in (None, guard) and self.twins(call, other, classes)
            }
            seen.twins = names if seen.twins is None else seen.twins & names
            earlier.append((call, guard))
        return after

    def twins(self, a: Invoke, b: Invoke, classes: Classes) -> bool:
        """Whether two frozen calls give equal results; that of `a` may not, where its context is off."""
        decl = self.names.op(a)
        return (
            decl is not None
            and decl.attrs.frozen
            and not decl.attrs.random
            and not decl.attrs.samples
            and not self.names.nodes[a.node].states
            and (a.node, a.op, a.args) == (b.node, b.op, b.args)
            and classes[a.reads[0]] == classes[b.reads[0]]
            and self.on[b.reads[0]] is True
        )

    # --------------------------------------------------------------------------------------------------------------- loops

    def loop(self, op: Loop, classes: Classes, known: Known, walk: Walk | None) -> Classes:
        bound = known.eval(op.bound)
        if bound == 0:
            return classes
        self.exits.append([])

        after = self.again(
            lambda before: self.block(op.body, before, known, walk), classes, isinstance(bound, int) and bound > 0
        )
        for stopped in self.exits.pop():
            after = meet(after, stopped)
        return after

    def again(self, body: Callable[[Classes], Classes], classes: Classes, at_least_once: bool) -> Classes:
        """Any number of runs of a body, or at least one: the least fixed point (partitions are finite and only get finer)."""
        top = canonical(classes)
        while True:
            after = body(top)
            joined = canonical(meet(top, after))
            if joined == top:
                return canonical(after) if at_least_once else top
            top = joined

    def for_parts(self, op: ForParts, classes: Classes, known: Known) -> Classes:
        cases = {case.kind: case.body for case in op.cases}
        if self.shape.parts is not None:
            for kind in self.shape.parts:
                body = cases.get(kind, cases.get(""))
                classes = classes if body is None else self.block(body, classes, known, None)
            return classes
        bodies = [body for kind, body in cases.items() if not kind or kind in self.shape.kinds]

        def any_case(before: Classes) -> Classes:
            found = [self.block(body, before, known, None) for body in bodies] or [before]
            return reduce(meet, found)

        return self.again(any_case, classes, False)

    def call(self, op: CallWalk, classes: Classes, known: Known) -> Classes:
        walk = self.names.walks[op.walk]
        inner = Known(self.scope)
        for param, arg in zip(walk.params, op.args, strict=True):
            value = known.eval(arg)
            if value is not None:
                inner.values[param.id] = value
        return self.block(walk.body, classes, inner, walk)


def guarded_calls(body: Block) -> Iterator[tuple[Invoke, Expr | None]]:
    """The calls that stand directly in a block, each with the condition of its `when`, if it has one."""
    for op in body.ops:
        if isinstance(op, Invoke):
            yield op, None
        elif isinstance(op, When):
            for inner in op.body.ops:
                if isinstance(inner, Invoke):
                    yield inner, op.cond


def name_of(call: Invoke) -> str:
    """A call by its first result, else by its op."""
    return next((value.name for value in call.results if value is not None), call.op)


def _unread(call: Invoke, walk: Walk, known: Known) -> bool:
    """Whether only `guide` reads the result, as a branch that its scale leaves out (`mstarc_runtime.guidance`)."""
    value = next((v for v in call.results if v is not None), None)
    if value is None:
        return False
    phis = [phi for op in every_op(walk.body) if isinstance(op, When) for phi in op.results]
    branches = {Var(v.id) for op in every_op(walk.body) if isinstance(op, Invoke | When) for v in results_of(op)}
    names = {Var(value.id), *(Var(phi.result.id) for phi in phis if phi.inner == value.id)}
    reads = unread = 0
    for op in every_op(walk.body):
        carried = tuple(carry.next for carry in op.carries) if isinstance(op, Loop) else ()
        for part in (p for expr in (*exprs_of(op), *carried) for p in every_expr(expr)):
            reads += part in names
            if isinstance(part, Apply) and part.fn == "guide":
                unread += _left_out(part.args, names, branches, known)
    return 0 < reads == unread


def _left_out(args: tuple[Expr, ...], names: Container[Expr], branches: Container[Expr], known: Known) -> int:
    """How many branches of guide(v, a, scale of a, ...) or guide(v, a, b, scale of a, scale of b, ...) are these and left out: those
    whose scale is at most 1, and b with a.
    """
    count = 2 if args[2] in branches else 1
    out = 0
    for place in range(1, count + 1):
        scales = [known.eval(args[k]) for k in {count + 1, count + place}]
        out += args[place] in names and any(isinstance(s, int | float) and s <= 1 for s in scales)
    return out


# --------------------------------------------------------------------------------------------------------- as facts of a program


Facts: TypeAlias = tuple[tuple[Shape, tuple[Branch, ...]], ...]


def provenance_of(program: Program) -> Facts:
    """The branches of every shape that the program tells apart; shapes without a call that reads a context are left out."""
    found = ((shape, provenance(program, shape)) for shape in every_shape(program))
    return tuple((shape, branches) for shape, branches in found if branches)


def say_provenance(program: Program, facts: Facts) -> Iterator[str]:
    """A line for each shape: what becomes of its branches."""
    for shape, branches in facts:
        yield f"{shape.told()}: {'; '.join(say_branch(branch) for branch in branches)}"


def say_branch(branch: Branch) -> str:
    """`draw.b is v, no_image being equal to its context`."""
    name = f"{branch.walk}.{branch.result}"
    match branch.fate:
        case "same":
            return f"{name} is {branch.twin}: `{branch.context}` has the same history"
        case "absent":
            return f"{name} is absent"
        case "empty":
            return f"{name} runs on `{branch.context}`, which is empty"
        case "unread":
            return f"{name} is not read: `guide` leaves it out at this scale"
    return f"{name} runs on `{branch.context}`"
