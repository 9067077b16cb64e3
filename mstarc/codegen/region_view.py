"""A straight body of a region loop as a method on a batch. Takes a region and one of its bodies; gives the method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mstarc.codegen.calls import invoke_of
from mstarc.codegen.expressions import Place, of_row, text
from mstarc.codegen.layout import Call, Group, Part
from mstarc.codegen.names import attribute, safe
from mstarc.codegen.parallel_view import arms_of
from mstarc.codegen.source import Method, Writer, bind, local_names, method, prefixed, tuple_of
from mstarc.ir.core import Collect, Compute, Emit, Invoke, Noise, Op, Par, Sample, Send, Stop, Value
from mstarc.ir.loop_ends import cause_of
from mstarc.ir.types import Apply, Expr, Tensor, ValueId
from mstarc.ir.visit import every_expr, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names
from mstarc.passes.form_regions import Body, Region
from mstarc.passes.liveness import read_after
from mstarc.passes.row_ranks import Ranks, branches_of
from mstarc.passes.straight_lines import statements


class RegionView:
    """Writes one body of a region. `said`: its conditions in words, for the method's comment."""

    def __init__(self, region: Region, body: Body, values: dict[ValueId, Value], names: Names, said: str) -> None:
        self.region, self.body, self.said = region, body, said
        self.declared = names
        loop = body.loop
        values = values | {i: replace(values[i], type=kind) for i, kind in zip(region.fixed, region.given, strict=True)}
        self.params = [carry.inner.id for carry in loop.carries] + list(region.fixed)
        inside = [value for op in statements(loop.body) for value in results_of(op)]
        known = [*(values[ident] for ident in self.params), *inside]
        self.ends = frozenset(ident for carry in loop.carries for ident in vars_of(carry.next))
        self.hoisted: dict[Expr, str] = {}
        self.made: list[str] = []  # names that no value of the spec has
        self.place = Place(
            owner="b",
            names=local_names(known),
            types={value.id: value.type for value in known},
            asks="b.host",
            let=lambda name: attribute("b.host", name),
            rows=True,
            hoisted=self.hoisted,
            rank=Ranks(values, loop.label, region.tables).of,
            ragged=region.ragged,
            span=loop.span,
        )
        self.writer = Writer()

    def method(self) -> Method:
        """`def <walk>_<label>(self, b, carried, fixed)`."""
        loop = self.body.loop
        ops = loop.body.ops
        defined = list(self.params)
        for position, op in enumerate(ops):
            if isinstance(op, Stop):
                self._stop(op, [i for i in defined if i in read_after(ops, position, self.ends)])
            else:
                for part in self._statements(op, ops, position):
                    self.writer.add(part)
                made = statements(op.body) if isinstance(op, Par) else (op,)
                defined += [value.id for inner in made for value in results_of(inner)]
        self._hoist(carry.next for carry in loop.carries)
        self.writer.add(tuple_of([text(carry.next, self.place) for carry in loop.carries], "return "))
        params = ["b: Batch", *(f"{self.place.names[i]}: Array" for i in self.params)]
        doc = f"loop {self.region.loop.label} of walk {self.region.walk}" + (f" {self.said}" if self.said else "")
        return method(self.body.method, params, "tuple[Array, ...]", doc, self.writer.lines)

    def fresh(self, name: str) -> str:
        """A name that nothing here has."""
        self.made.append(safe(name, (*self.place.names.values(), *self.made)))
        return self.made[-1]

    def _stop(self, op: Stop, live: Sequence[ValueId]) -> None:
        self._hoist(exprs_of(op))
        names = [self.place.names[ident] for ident in live]
        carried = tuple_of([text(value, self.place) for value in op.carried], "carried=")
        args: list[str | Group | Call] = [text(op.cond, self.place), carried, tuple_of(names, "live=")]
        if cause_of(op, self.body.loop) == "max":
            args.append('why="max"')
        call = Call("b.stop", tuple(args))
        self.writer.add(bind(names, call, several=True) if names else call)

    def _hoist(self, exprs: Iterator[Expr] | Sequence[Expr]) -> None:
        """Statements of their own for the calls of `guide` in expressions, inner ones first."""
        parts = [part for expr in exprs for part in every_expr(expr)]
        for part in reversed(parts):
            if isinstance(part, Apply) and part.fn == "guide" and part not in self.hoisted:
                count = branches_of(part.args)
                branches = [text(arg, self.place) for arg in part.args[:count]]
                settings = tuple_of((of_row(arg, self.place) for arg in part.args[count:]), "settings=lambda row: ")
                name = self.fresh("guided")
                self.writer.add(prefixed(f"{name} = ", Call("b.guide", (*branches, settings))))
                self.hoisted[part] = name

    def _statements(self, op: Op, ops: Sequence[Op], position: int) -> tuple[Part, ...]:
        """The statement of an operation; of a `parallel` without arms, one for each of its own."""
        if not isinstance(op, Par):
            self._hoist(exprs_of(op))
            return (self._statement(op, ops, position),)
        found = arms_of(op.body, self.declared, self.place, read_after(ops, position, self.ends), self.fresh)
        return found or tuple(part for inner in op.body.ops for part in self._statements(inner, ops, position))

    def _statement(self, op: Op, ops: Sequence[Op], position: int) -> Part:
        place, read = self.place, read_after(ops, position, self.ends)
        match op:
            case Compute(result=result, expr=expr):
                return f"{place.names[result.id]} = {text(expr, place)}"
            case Invoke():
                return invoke_of(op, self.declared, place, read, "b.call")
            case Sample(sampler=sampler, logits=logits, result=result, site=site):
                call = Call("b.sample", (f'"{sampler}"', text(logits, place), f'"{site}"'))
                return prefixed(f"{place.names[result.id]} = ", call)
            case Noise(result=result, site=site) if isinstance(result.type, Tensor):
                dims = tuple_of(text(dim, place) for dim in result.type.dims)
                call = Call("b.noise", (f'"{result.type.dtype}"', dims, f'"{site}"'))
                return prefixed(f"{place.names[result.id]} = ", call)
            case Emit(value=value, modality=modality, attrs=attrs):
                named = (f"{name}={text(attr, place)}" for name, attr in attrs)
                return Call("b.emit", (f'"{modality}"', text(value, place), *named))
            case Send(value=value, stream=stream):
                return Call("b.send", (f'"{stream}"', text(value, place)))
            case Collect(value=value, name=name):
                return Call("b.collect", (f'"{name}"', text(value, place)))
        raise TypeError(f"a region holds no {type(op).__name__}")
