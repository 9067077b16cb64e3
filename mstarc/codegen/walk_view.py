"""The coroutine of one walk and the methods of its regions. Takes a walk; gives methods of the generated worker.

A walk's coroutine is Python control flow around the verbs of `mstarc_runtime.program.Walk`; every name and order is decided here.
"""

from __future__ import annotations

from dataclasses import replace

from mstarc.codegen.calls import extern_of, invoke_of
from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.expressions import Place, quoted, text
from mstarc.codegen.layout import Call, Part
from mstarc.codegen.names import attribute, names_of, safe, values_of
from mstarc.codegen.parallel_view import parallel_of
from mstarc.codegen.region_call import RegionCall, said
from mstarc.codegen.region_view import RegionView
from mstarc.codegen.source import (
    Method,
    Writer,
    bind,
    dims_in,
    method,
    prefixed,
    show_params,
    show_type,
    tuple_of,
)
from mstarc.ir.core import (
    Block,
    Collect,
    Compute,
    Drop,
    Emit,
    Extern,
    ForChunks,
    Fork,
    Invoke,
    Loop,
    Next,
    Noise,
    Op,
    Par,
    Program,
    Sample,
    Send,
    Stop,
    Walk,
    When,
)
from mstarc.ir.loop_ends import cause_of
from mstarc.ir.types import Apply, Chunk, Expr, Lit, Ref, Tensor, ValueId
from mstarc.ir.visit import blocks_of, every_expr, every_op, exprs_of, results_of, vars_of
from mstarc.passes.effects import Names
from mstarc.passes.form_regions import Region, form_regions
from mstarc.passes.liveness import read_in_walk
from mstarc.passes.ranges import value_names


class WalkWriter:
    """Writes one walk."""

    def __init__(self, walk: Walk, program: Program) -> None:
        self.walk = walk
        self.program = program
        self.declared = Names(program)
        self.regions = form_regions(walk, program)
        self.read = read_in_walk(walk.body, walk.outputs)
        self.values = {value.id: value for value in values_of(walk.params, walk.body)}
        self.names = names_of(walk.params, walk.body, frozenset(self.regions))
        self.iters = self._iters()
        self.dims: dict[str, str] = {}
        self.lists: dict[str, str] = {}  # what the innermost coroutine loop gathers: name -> variable
        self.place = Place(
            owner="walk",
            names=self.names,
            types={ident: value.type for ident, value in self.values.items()},
            asks="walk.host",
            let=lambda name: attribute("walk.host", name),
            iters=self.iters,
            dims=self.dims,
            span=walk.span,
        )
        self.writer = Writer()

    def _iters(self) -> dict[str, str]:
        used = set(self.names.values())
        found = {}
        for op in every_op(self.walk.body):
            if isinstance(op, Loop):
                found[op.label] = safe(f"{op.label}_iter", used)
                used.add(found[op.label])
        return found

    def fresh(self, name: str) -> str:
        """A name that no value of the walk has."""
        return safe(name, (*self.names.values(), *self.iters.values(), *self.lists.values()))

    def method(self) -> Method:
        """The walk's coroutine."""
        for param in self.walk.params:
            self._bind_dims(param.id)
        self._block(self.walk.body, None)
        self.writer.add(tuple_of((self.names[output.value] for output in self.walk.outputs), "return "))
        if not any("yield" in line for line in self.writer.lines):
            self.writer.add("yield  # never reached: a walk is a coroutine")
        shown = ", ".join(f"{output.name}: {show_type(output.type)}" for output in self.walk.outputs)
        doc = f"walk {self.walk.name}({show_params(self.walk.params)})" + (f" -> {shown}" if shown else "")
        params = ["walk: Walk", *(f"{self.names[value.id]}: Array" for value in self.walk.params)]
        return method(self.walk.name, params, "Steps", doc, self.writer.lines)

    def region_methods(self) -> list[Method]:
        words = value_names(self.walk.body, self.walk.params)
        return [
            RegionView(region, body, self.values, self.declared, said(region, body, words)).method()
            for region in self.regions.values()
            for body in region.methods()
        ]

    def _bind_dims(self, ident: ValueId) -> None:
        value = self.values[ident]
        for name, found in dims_in(value.type, self.names[value.id]).items():
            self.dims.setdefault(name, found)

    # ------------------------------------------------------------------------------------------------------ statements

    def _block(self, block: Block, loop: Loop | None, flag: str = "") -> None:
        """`loop`: the innermost coroutine loop that a `stop` here ends; `flag`: what it sets to end the loops over chunks in between."""
        for op in block.ops:
            self._op(op, loop, flag)
            for value in results_of(op):
                self._bind_dims(value.id)

    def _op(self, op: Op, loop: Loop | None, flag: str) -> None:
        match op:
            case Loop() if op.label in self.regions:
                self._region_loop(op, self.regions[op.label])
            case Loop():
                self._loop(op)
            case Stop():
                self._stop(op, loop, flag)
            case When():
                self._when(op, loop, flag)
            case Par():
                self._parallel(op, loop, flag)
            case ForChunks():
                self._for_chunks(op, loop)
            case Next():
                self._next(op)
            case _:
                self.writer.add(self._simple(op))

    def _parallel(self, op: Par, loop: Loop | None, flag: str) -> None:
        """Calls at once, if the block is calls; else its statements one after the other, which means the same."""
        calls = parallel_of(op.body, self.declared, self.place, self.read, self.writer.depth)
        if calls is None:
            self._block(op.body, loop, flag)
            return
        self.writer.add(calls)
        for inner in op.body.ops:
            for value in results_of(inner):
                self._bind_dims(value.id)

    def _simple(self, op: Op) -> Part:
        place = self._hoisted(op)
        match op:
            case Compute(result=result, expr=expr):
                return f"{self.names[result.id]} = {text(expr, place)}"
            case Invoke():
                return invoke_of(op, self.declared, place, self.read, "yield walk.call")
            case Extern():
                return extern_of(op, place, self.read)
            case Sample(sampler=sampler, logits=logits, result=result, site=site):
                call = Call("walk.sample", (quoted(sampler), text(logits, place), quoted(site)))
                return prefixed(f"{self.names[result.id]} = ", call)
            case Noise(result=result, site=site) if isinstance(result.type, Tensor):
                dims = tuple_of(text(dim, place) for dim in result.type.dims)
                call = Call("walk.noise", (quoted(result.type.dtype), dims, quoted(site)))
                return prefixed(f"{self.names[result.id]} = ", call)
            case Emit(value=value, modality=modality, attrs=attrs):
                named = (f"{name}={text(attr, place)}" for name, attr in attrs)
                return Call("walk.emit", (quoted(modality), text(value, place), *named))
            case Send(value=value, stream=stream):
                return Call("yield walk.send", (quoted(stream), text(value, place)))
            case Collect(value=value, name=name):
                return Call(f"{self.lists[name]}.append", (text(value, place),))
            case Fork(target=target, source=source):
                return Call("walk.fork", (quoted(target), quoted(source)))
            case Drop(contexts=contexts):
                return Call("walk.drop", tuple(quoted(name) for name in contexts))
        raise NotBuilt(f"`{type(op).__name__}` in a walk", op.span)

    def _hoisted(self, op: Op) -> Place:
        """The place of an operation, after statements of their own for the calls of `guide` in it, inner ones first."""
        found: dict[Expr, str] = {}
        place = replace(self.place, hoisted=found, span=op.span)
        parts = [part for expr in exprs_of(op) for part in every_expr(expr)]
        for part in reversed(parts):
            if isinstance(part, Apply) and part.fn == "guide" and part not in found:
                name = safe(self.fresh("guided"), found.values())
                self.writer.add(prefixed(f"{name} = ", Call("walk.guide", tuple(text(a, place) for a in part.args))))
                found[part] = name
        return place

    def _stop(self, op: Stop, loop: Loop | None, flag: str) -> None:
        assert loop is not None, "the verifier knows that a stop is in a loop"
        place = replace(self.place, span=op.span)
        cond = text(op.cond, place)
        device = any(self.values[ident].phase == "device" for ident in vars_of(op.cond))
        self.writer.open(f"if walk.true({cond}):" if device else f"if {cond}:")
        if loop.kind == "max":
            self.writer.add(Call("walk.cause", (quoted(loop.label), quoted(cause_of(op, loop)))))
        self._rebind(loop, [text(value, place) for value in op.carried])
        if flag:
            self.writer.add(f"{flag} = True")
        self.writer.add("break")
        self.writer.close()

    def _rebind(self, loop: Loop, values: list[str]) -> None:
        """Give the carried names new values, at once."""
        names = [self.names[carry.inner.id] for carry in loop.carries]
        pairs = [(name, value) for name, value in zip(names, values, strict=True) if name != value]
        if pairs:
            self.writer.add(", ".join(name for name, _ in pairs) + " = " + ", ".join(value for _, value in pairs))

    def _when(self, op: When, loop: Loop | None, flag: str) -> None:
        self.writer.open(f"if {text(op.cond, replace(self.place, span=op.span))}:")
        self._block(op.body, loop, flag)
        self.writer.close()
        read = [self.names[phi.result.id] for phi in op.results if phi.result.id in self.read]
        if read:
            self.writer.open("else:")
            for name in read:
                self.writer.add(f"{name} = ABSENT")
            self.writer.close()

    # ----------------------------------------------------------------------------------------------------------- loops

    def _region_loop(self, op: Loop, region: Region) -> None:
        call = RegionCall(region, replace(self.place, span=op.span), self.writer, self.fresh)
        self.writer.add(call.statement([self.names[v.id] if v.id in self.read else None for v in results_of(op)]))

    def _loop(self, op: Loop) -> None:
        place = replace(self.place, span=op.span)
        outer = self.lists
        self.lists = outer | {gather.name: self.fresh(f"{gather.name}_items") for gather in op.gathers}
        for gather in op.gathers:
            self.writer.add(f"{self.lists[gather.name]} = []")
        self._rebind(op, [text(carry.init, place) for carry in op.carries])
        label = Ref("iter", op.label)
        counted = any(label in every_expr(e) for inner in every_op(op.body) for e in exprs_of(inner))
        counted = counted or any(label in every_expr(carry.next) for carry in op.carries)
        self.writer.open(f"for {self.iters[op.label] if counted else '_'} in range({text(op.bound, place)}):")
        self._block(op.body, op)
        self._rebind(op, [text(carry.next, place) for carry in op.carries])
        self.writer.close()
        if op.kind == "max":
            self._cause_of_max(op)
        for gather in op.gathers:
            self.writer.add(f"{self.names[gather.result.id]} = walk.cat({self.lists[gather.name]})")
        self.lists = outer

    def _cause_of_max(self, op: Loop) -> None:
        """The loop's end without a `stop`; one whose condition is literally false needs no `else`."""
        stops = any(isinstance(inner, Stop) and inner.cond != Lit(False) for inner in every_op(op.body))
        if stops:
            self.writer.open("else:")
        self.writer.add(Call("walk.cause", (quoted(op.label), '"max"')))
        if stops:
            self.writer.close()

    # --------------------------------------------------------------------------------------------------------- streams

    def _for_chunks(self, op: ForChunks, loop: Loop | None) -> None:
        """A `stop` in the body ends the loop around as well: a flag carries it there."""
        flag = self.fresh(f"{loop.label}_stopped") if loop is not None and _stops(op.body) else ""
        if flag:
            self.writer.add(f"{flag} = False")
        take = f"yield walk.take({', '.join(quoted(stream) for stream in op.streams)})"
        names = [self.names[item.id] for item in op.items]
        taken = names[0] if len(names) == 1 else self.fresh("chunks")
        self.writer.open(f"while ({taken} := ({take})) is not ABSENT:")
        if len(names) > 1:
            self.writer.add(f"{', '.join(names)} = {taken}")
        for item in op.items:
            self._bind_dims(item.id)
        self._block(op.body, loop, flag)
        self.writer.close()
        if flag:
            self.writer.open(f"if {flag}:")
            self.writer.add("break")
            self.writer.close()

    def _next(self, op: Next) -> None:
        """One chunk of each stream: its value, or ABSENT after the end of a stream that may be read on."""
        call = Call("yield walk.take", tuple(quoted(stream) for stream in op.streams))
        names = [self.names[v.id] if v is not None else None for v in op.results]
        bound = [name for name in names if name is not None]
        if not bound:
            self.writer.add(call)
            return
        if len(names) == 1:
            self.writer.add(prefixed(f"{bound[0]} = ", call))
        elif all(self.declared.streams[stream].after_end_empty for stream in op.streams):
            taken = self.fresh("chunks")
            self.writer.add(prefixed(f"{taken} = ", call))
            targets = ", ".join(name or "_" for name in names)
            self.writer.add(f"{targets} = {taken} or ({', '.join(['ABSENT'] * len(names))})")
        else:
            self.writer.add(bind(names, call, several=True))
        for value, stream in zip(op.results, op.streams, strict=True):
            if value is not None and not isinstance(value.type, Chunk):
                name, ends = self.names[value.id], self.declared.streams[stream].after_end_empty
                self.writer.add(f"{name} = {name}.value" + (f" if {name} else ABSENT" if ends else ""))


def _stops(block: Block) -> bool:
    """Whether a `stop` in the block, outside of loops in it, ends a loop around it."""
    inner = (op for op in block.ops if not isinstance(op, Loop))
    return any(isinstance(op, Stop) or any(map(_stops, blocks_of(op))) for op in inner)
