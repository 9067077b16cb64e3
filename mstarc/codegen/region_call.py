"""A walk's call of a region loop, after the statements that choose its body. Takes a region and where it stands; gives source.

if walk.params.live:
    dream = self.imagine_dream
else:
    dream = self.imagine_dream_2
z_2, path = yield walk.loop("dream", dream, "times", walk.params.horizon, carry=(z,), fixed=(walk.rows(actions, walk.params.horizon, 32),))

A condition over `iter` is tabulated before the loop: a list with the body of each iteration.

for denoise_iter in range(walk.params.steps - 1):
    t = times[denoise_iter]
    if walk.params.cfg_above < t:
        denoise_items.append(self.draw_denoise)
    else:
        denoise_items.append(self.draw_denoise_2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mstarc.codegen.expressions import NOT, Place, quoted, text
from mstarc.codegen.layout import INDENT, WIDTH, Call, Group, Part
from mstarc.codegen.source import Writer, bind, tuple_of
from mstarc.ir.core import Compute
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import Binary, Chunk, Expr, Lit, Unary, ValueId
from mstarc.ir.visit import every_op, results_of, vars_of
from mstarc.passes.form_regions import Body, Region
from mstarc.passes.straight_lines import statements


def said(region: Region, body: Body, words: Mapping[int, str]) -> str:
    """`when live, not guided`: when a body runs, in the spec's words; "" where there is one body."""
    ways = [
        ", ".join(
            shown(cond.written if holds else Unary("not", cond.written), words)
            for cond, holds in zip(region.conditions, other.holds, strict=True)
        )
        for other in region.bodies
        if other.method == body.method
    ]
    return f"when {' or '.join(ways)}" if len(region.methods()) > 1 else ""


class RegionCall:
    """Writes one call. `fresh`: a name that no value of the walk has."""

    def __init__(self, region: Region, place: Place, writer: Writer, fresh: Callable[[str], str]) -> None:
        self.region, self.place, self.writer, self.fresh = region, place, writer, fresh

    def statement(self, results: Sequence[str | None]) -> Part:
        """`a, _ = yield walk.loop(...)`; what chooses the body is written before."""
        loop, place = self.region.loop, self.place
        body, *bodies = self._chosen()
        args: list[str | Group | Call] = [quoted(loop.label), body, quoted(loop.kind), text(loop.bound, place)]
        args.append(tuple_of((text(carry.init, place) for carry in loop.carries), "carry="))
        if self.region.fixed:
            args.append(tuple_of((self._fixed(ident) for ident in self.region.fixed), "fixed="))
        return bind(results, Call("yield walk.loop", (*args, *bodies)), several=True)

    def _fixed(self, ident: ValueId) -> str:
        """A value from outside as an argument of the region."""
        place, bound = self.place, self.region.loop.bound
        name = place.names[ident] + (".value" if isinstance(place.types[ident], Chunk) else "")
        if ident not in self.region.tables:
            return name
        beyond, rows = self.region.tables[ident]
        match bound:
            case Binary("-", least, Lit(less)) if less == beyond:
                pass
            case _:
                least = Binary("+", bound, Lit(beyond)) if beyond else bound
        return f"walk.rows({name}, {text(least, place)}, {rows})"

    def _chosen(self) -> list[str]:
        """The arguments that say the body."""
        region, loop, writer = self.region, self.region.loop, self.writer
        if len(region.methods()) == 1:
            return [f"self.{region.method}"]
        conditions = [cond.known for cond in region.conditions]
        if not region.changing:
            name = self.fresh(loop.label)
            self._choose((), conditions, lambda body: f"{name} = self.{body}")
            return [name]
        name = self.fresh(f"{loop.label}_items")
        writer.add(f"{name} = []")
        writer.open(f"for {(self.place.iters or {})[loop.label]} in range({text(loop.bound, self.place)}):")
        written = [cond.written for cond in region.conditions]
        before = self._before(written)
        for op in before or ():
            writer.add(f"{self.place.names[op.result.id]} = {text(op.expr, self.place)}")
        self._choose((), conditions if before is None else written, lambda body: f"{name}.append(self.{body})")
        writer.close()
        return [f"self.{region.method}", f"bodies={name}"]

    def _before(self, conditions: Sequence[Expr]) -> tuple[Compute, ...] | None:
        """The host values of the body that conditions read, in their order; None if one of them is itself behind a condition."""
        made = {
            op.result.id: op
            for op in statements(self.region.loop.body)
            if isinstance(op, Compute) and op.result.phase == "host"
        }
        inside = {value.id for op in every_op(self.region.loop.body) for value in results_of(op)}
        needed: set[ValueId] = set()
        due = [ident for cond in conditions for ident in vars_of(cond) if ident in inside]
        while due:
            ident = due.pop()
            if ident not in made:
                return None
            if ident not in needed:
                needed.add(ident)
                due += [other for other in vars_of(made[ident].expr) if other in inside]
        return tuple(op for ident, op in made.items() if ident in needed)

    def _choose(self, holds: tuple[bool, ...], conditions: Sequence[Expr], say: Callable[[str], str]) -> None:
        """Say the body for which the first conditions hold like this; the others decide."""
        yes, no = (self._open_to((*holds, side)) for side in (True, False))
        found = self._open_to(holds)
        if len(set(found)) == 1:
            self.writer.add(say(found[0]))
        elif yes == no or not (yes and no):
            self._choose((*holds, bool(yes)), conditions, say)
        else:
            self._open_if(conditions[len(holds)])
            self._choose((*holds, True), conditions, say)
            self.writer.close()
            self.writer.open("else:")
            self._choose((*holds, False), conditions, say)
            self.writer.close()

    def _open_if(self, cond: Expr) -> None:
        """`if cond:`, each of its parts on a line of its own where one line is too short."""
        line, writer = f"if {text(cond, self.place)}:", self.writer
        parts: list[Expr] = []
        while isinstance(cond, Binary) and cond.op == "and":
            parts.insert(0, cond.b)
            cond = cond.a
        if len(INDENT) * writer.depth + len(line) <= WIDTH or not parts:
            writer.open(line)
            return
        writer.open("if (")
        writer.add(text(cond, self.place, NOT))
        for part in parts:
            writer.add(f"and {text(part, self.place, NOT)}")
        writer.close()
        writer.open("):")

    def _open_to(self, holds: tuple[bool, ...]) -> list[str]:
        """The bodies that are left when the first conditions hold like this."""
        return [body.method for body in self.region.bodies if body.holds[: len(holds)] == holds]
