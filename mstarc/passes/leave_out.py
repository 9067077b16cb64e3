"""Branches that `guide` leaves out are not computed: a call that only gives such a branch is guarded by the branch's scale.

Takes a program; gives a program. `guide(v, a, s, ...)` reads a only where s > 1, and `guide(v, a, b, s, r, ...)` reads b only where s > 1
and r > 1 (`mstarc_runtime.guidance`); an absent branch is the same as one that is not read. So `a = n.f(x)` becomes
`a = n.f(x) when s > 1`, and what stands behind a `when` already gets the scale besides. Left alone are calls whose result something else
reads, calls that write, draw or keep state, scales that are not known at the place of the call, and calls that the author, or the `when`
of the context that they read, guards by the scale already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

from mstarc.ir.core import Invoke, Loop, Op, Phi, Program, Value, Walk, When
from mstarc.ir.renumber import renumbered
from mstarc.ir.types import Apply, Binary, Expr, Lit, Ref, Tensor, ValueId, Var
from mstarc.ir.verify_sites import Site, Unit, definitions, sites_of
from mstarc.ir.visit import every_expr, every_op, exprs_of, results_of, rewrite
from mstarc.passes.effects import Names
from mstarc.passes.ranges import definitions as host_definitions


def leave_out(program: Program) -> Program:
    """The program with guards on the calls of branches that guidance can leave out; the same object if there are none."""
    walks = tuple(_Walk(program, walk).guarded() for walk in program.walks)
    if all(new is old for new, old in zip(walks, program.walks, strict=True)):
        return program
    return renumbered(replace(program, walks=walks))


@dataclass(slots=True)
class _Reads:
    """How often a value is read, and under which conditions `guide` does read it where it is a branch."""

    count: int = 0
    needed: tuple[Expr, ...] = ()


class _Walk:
    def __init__(self, program: Program, walk: Walk) -> None:
        self.walk, self.names = walk, Names(program)
        unit = Unit(program, walk)
        self.sites: Mapping[int, Site] = {id(site.op): site for site in sites_of(unit)}
        self.values = {value.id: value for value in definitions(unit)}
        self.taken = {value.name for value in self.values.values()}
        self.hosts = host_definitions(walk.body)
        self.lets = {let.name: let.expr for let in program.lets}
        self.reads = self._reads()
        self.next_id = len(self.values)

    def guarded(self) -> Walk:
        """The walk, the same object if nothing is to be guarded."""
        guards = {id(op): guard for op in every_op(self.walk.body) if (guard := self._guard(op)) is not None}
        if not guards:
            return self.walk
        alone = {id(op.body.ops[0]) for op in every_op(self.walk.body) if isinstance(op, When) and id(op) in guards}

        def change(op: Op) -> tuple[Op, ...]:
            if id(op) not in guards or id(op) in alone:
                return (op,)
            if isinstance(op, When):
                return (replace(op, cond=Binary("and", op.cond, guards[id(op)])),)
            assert isinstance(op, Invoke)
            return (self._behind(op, guards[id(op)]),)

        return replace(self.walk, body=rewrite(self.walk.body, change))

    def _behind(self, call: Invoke, cond: Expr) -> When:
        """`call when cond`. What reads the result reads what is absent where the condition does not hold."""
        (value,) = results_of(call)
        assert isinstance(value.type, Tensor)
        inner = replace(value, id=ValueId(self.next_id))
        self.next_id += 1
        outer = replace(value, name=self._fresh(value.name), type=replace(value.type, optional=True))
        results = tuple(inner if result is value else None for result in call.results)
        body = type(self.walk.body)((replace(call, results=results),))
        return When(cond, body, (Phi(inner.id, outer),), call.span)

    def _fresh(self, name: str) -> str:
        found = next(f"{name}_{k}" for k in range(2, len(self.taken) + 3) if f"{name}_{k}" not in self.taken)
        self.taken.add(found)
        return found

    # -------------------------------------------------------------------------------------------------------------- reads

    def _reads(self) -> dict[ValueId, _Reads]:
        found: dict[ValueId, _Reads] = {}
        for expr in self._exprs():
            for part in every_expr(expr):
                if isinstance(part, Var):
                    found.setdefault(part.id, _Reads()).count += 1
                if isinstance(part, Apply) and part.fn == "guide":
                    for branch, cond in self._branches(part.args):
                        reads = found.setdefault(branch, _Reads())
                        reads.needed = (*reads.needed, cond)
        for output in self.walk.outputs:
            found.setdefault(output.value, _Reads()).count += 1
        return found

    def _exprs(self) -> Iterator[Expr]:
        for op in every_op(self.walk.body):
            yield from exprs_of(op)
            if isinstance(op, Loop):
                yield from (carry.next for carry in op.carries)

    def _branches(self, args: tuple[Expr, ...]) -> Iterator[tuple[ValueId, Expr]]:
        """Each branch of a `guide` that is a value, with the condition under which it is read."""
        third = args[2]
        two = any(isinstance(part, Var) and _is_array(self.values[part.id]) for part in every_expr(third))
        if two and not isinstance(third, Var):
            return  # a branch that no call gives, or a scale of a length
        scale = Binary(">", args[3 if two else 2], Lit(1))
        if isinstance(args[1], Var):
            yield args[1].id, scale
        if two and isinstance(third, Var):
            yield third.id, Binary("and", scale, Binary(">", args[4], Lit(1)))

    # ------------------------------------------------------------------------------------------------------------- guards

    def _guard(self, op: Op) -> Expr | None:
        """What to guard a call, or the `when` that holds nothing but a call, with."""
        call = op.body.ops[0] if isinstance(op, When) and len(op.body.ops) == 1 else op
        if not isinstance(call, Invoke) or not self._pure(call) or len(results_of(call)) != 1:
            return None
        (value,) = results_of(call)
        read = value.id
        if isinstance(op, When):
            if [phi.inner for phi in op.results] != [value.id]:
                return None
            read = op.results[0].result.id
        reads = self.reads.get(read)
        if reads is None or not reads.needed or reads.count != len(reads.needed):
            return None
        needed = reduce(lambda a, b: Binary("or", a, b), dict.fromkeys(reads.needed))
        known = set(self._known(call, op))
        if not self._there(needed, self.sites[id(op)]) or set(self._all_of(needed)) <= known:
            return None
        return needed

    def _pure(self, call: Invoke) -> bool:
        """Whether nobody can tell that the call was not made."""
        node, decl = self.names.nodes.get(call.node), self.names.op(call)
        if node is None or decl is None or call.writes or node.states:
            return False
        return not (decl.attrs.random or decl.attrs.samples)

    def _there(self, cond: Expr, site: Site) -> bool:
        """Whether a condition has the same host value at the call's place as where it was written."""
        labels = {loop.label for loop in site.loops}
        for part in every_expr(cond):
            if isinstance(part, Var) and (part.id not in site.visible or self.values[part.id].phase != "host"):
                return False
            if isinstance(part, Ref) and (part.scope == "dim" or (part.scope == "iter" and part.name not in labels)):
                return False
        return True

    def _known(self, call: Invoke, op: Op) -> Iterator[Expr]:
        """What holds wherever the call runs: the literals that are always true, its `when`, and that of the context that it reads."""
        if isinstance(op, When):
            yield from self._all_of(op.cond)
        for name in call.reads[:1]:
            when = self.names.contexts[name].when
            if when is not None:
                yield from self._all_of(when)

    def _all_of(self, cond: Expr) -> Iterator[Expr]:
        """The conditions of a conjunction that are not constant truths, with lets and host values in the place of their names."""
        match cond:
            case Binary("and", a, b):
                yield from self._all_of(a)
                yield from self._all_of(b)
            case Ref(scope="let", name=name):
                yield from self._all_of(self.lets[name])
            case Var(ident) if ident in self.hosts:
                yield from self._all_of(self.hosts[ident])
            case Binary(">", Lit(int() | float() as scale), Lit(1)) if scale > 1:
                return
            case _:
                yield cond


def _is_array(value: Value) -> bool:
    """Whether a value cannot be a scale: it is on the device, or has dims."""
    return value.phase == "device" or (isinstance(value.type, Tensor) and bool(value.type.dims))
