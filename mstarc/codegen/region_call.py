"""A walk's call of a region loop, after the statements that choose its body. Takes a region and where it stands; gives source.

if walk.params.live:
    dream = self.imagine_dream
else:
    dream = self.imagine_dream_2
z_2, path = yield walk.loop("dream", dream, "times", walk.params.horizon, carry=(z,), fixed=(walk.rows(actions, walk.params.horizon, 32),))

A condition over `iter` is tabulated before the loop: a list with the body of each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mstarc.codegen.expressions import Place, quoted, text
from mstarc.codegen.layout import Call, Group, Part
from mstarc.codegen.source import Writer, bind, tuple_of
from mstarc.ir.types import Binary, Chunk, Lit, Unary, ValueId
from mstarc.passes.form_regions import Body, Region
from mstarc.passes.ranges import shown


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
        if not region.changing:
            name = self.fresh(loop.label)
            self._choose((), lambda body: f"{name} = self.{body}")
            return [name]
        name = self.fresh(f"{loop.label}_items")
        writer.add(f"{name} = []")
        writer.open(f"for {(self.place.iters or {})[loop.label]} in range({text(loop.bound, self.place)}):")
        self._choose((), lambda body: f"{name}.append(self.{body})")
        writer.close()
        return [f"self.{region.method}", f"bodies={name}"]

    def _choose(self, holds: tuple[bool, ...], say: Callable[[str], str]) -> None:
        """Say the body for which the first conditions hold like this; the others decide."""
        sides = [self._open_to((*holds, side)) for side in (True, False)]
        found = self._open_to(holds)
        if len(set(found)) == 1:
            self.writer.add(say(found[0]))
        elif sides[0] == sides[1]:
            self._choose((*holds, True), say)
        else:
            self.writer.open(f"if {text(self.region.conditions[len(holds)].known, self.place)}:")
            self._choose((*holds, True), say)
            self.writer.close()
            self.writer.open("else:")
            self._choose((*holds, False), say)
            self.writer.close()

    def _open_to(self, holds: tuple[bool, ...]) -> list[str]:
        """The bodies that are left when the first conditions hold like this."""
        return [body.method for body in self.region.bodies if body.holds[: len(holds)] == holds]
