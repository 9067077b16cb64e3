"""A request program as coroutines: one for the request, one per arm of a `together`. Takes a request; gives methods and arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from keyword import iskeyword

from mstarc.codegen.calls import extern_of
from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.expressions import Place, quoted, text
from mstarc.codegen.layout import Call, Group
from mstarc.codegen.names import attribute, names_of, values_of
from mstarc.codegen.source import Method, Writer, bind, dims_in, method, show_params, tuple_of
from mstarc.ir.core import (
    Arm,
    Block,
    CallWalk,
    Case,
    Compute,
    Extern,
    ForParts,
    If,
    Op,
    Program,
    Request,
    Require,
    Together,
    When,
)
from mstarc.ir.types import ValueId
from mstarc.ir.visit import blocks_of, results_of
from mstarc.passes.effects import Ends, Names, StreamEnds
from mstarc.passes.liveness import reads_of_block
from mstarc.passes.transitions import Ahead
from mstarc.source import Span

NOTHING: Ends = frozenset()


class RequestWriter:
    """Writes one request. `arms`: method of an arm -> (streams it may send on, streams it may take from)."""

    def __init__(self, request: Request, program: Program) -> None:
        self.request = request
        self.program = program
        self.ends = StreamEnds(Names(program))
        self.arms: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        values = values_of(request.inputs, request.body)
        self.values = {value.id: value for value in values}
        self.read = frozenset(reads_of_block(request.body))
        self.ahead = Ahead(request)
        self.names = names_of(request.inputs, request.body)
        self._methods: list[Method] = []

    def methods(self) -> list[Method]:
        """The request's coroutine, then its arms in the order of the text."""
        request = self.request
        given = {value.id: attribute("request.inputs", value.name) for value in request.inputs}
        outputs = ", ".join(name + ("?" if optional else "") for name, optional in request.outputs)
        doc = f"request {request.name}({show_params(request.inputs)}) -> {outputs}"
        main = _Coroutine(self, self.names | given, tuple(given), frozenset()).method(
            request.name, doc, (), request.body, None
        )
        return [main, *self._methods]

    def add_arm(self, arm: Arm, live: frozenset[str], span: Span) -> tuple[str, tuple[ValueId, ...]]:
        """The method of an arm, and the values of the code around it that it takes as arguments. live: streams of the arms around."""
        name = f"{self.request.name}_{arm.label}"
        if iskeyword(arm.label) or arm.label == "self":
            raise NotBuilt(f"arm `{arm.label}`, a name that Python code cannot have: choose another", span)
        touched = self.ends.of(arm.body)
        sends, takes = (tuple(sorted(s for kind, s in touched if kind == end)) for end in ("send", "take"))
        self.arms[name] = (sends, takes)
        inside = {value.id for value in values_of((), arm.body)}
        params = tuple(sorted(frozenset(reads_of_block(arm.body)) - inside))
        position = len(self._methods)
        found = _Coroutine(self, self.names, params, live).method(name, f"arm {arm.label}", params, arm.body, NOTHING)
        self._methods.insert(position, found)
        return name, params


class _Coroutine:
    """Writes the statements of one coroutine."""

    def __init__(
        self, owner: RequestWriter, names: dict[ValueId, str], visible: Sequence[ValueId], live: frozenset[str]
    ) -> None:
        self.owner = owner
        self.live = live
        self.names = names
        self.dims: dict[str, str] = {}
        self.place = Place(
            owner="request",
            names=names,
            types={ident: value.type for ident, value in owner.values.items()},
            asks="request",
            let=lambda name: f"self.let_{name}(request)",
            dims=self.dims,
        )
        for ident in visible:
            self._bind_dims(ident)
        self.writer = Writer()

    def method(self, name: str, doc: str, params: Sequence[ValueId], body: Block, after: Ends | None) -> Method:
        """`after` None: the code is in no arm, where streams are not live and nothing is closed."""
        self._block(body, after)
        self.writer.add("return ()")
        if not any("yield" in line for line in self.writer.lines):
            self.writer.add("yield  # never reached: a request is a coroutine")
        given = ["request: RequestRun", *(f"{self.names[ident]}: Any" for ident in params)]
        return method(name, given, "Steps", doc, self.writer.lines)

    def _bind_dims(self, ident: ValueId) -> None:
        for name, found in dims_in(self.owner.values[ident].type, self.names[ident]).items():
            self.dims.setdefault(name, found)

    def _block(self, block: Block, after: Ends | None) -> None:
        for position, op in enumerate(block.ops):
            rest = None if after is None else self.owner.ends.of(block, position + 1) | after
            self._op(op, rest)
            for value in results_of(op):
                self._bind_dims(value.id)

    def _op(self, op: Op, after: Ends | None) -> None:
        """`after`: the ends of streams that the arm may still touch after the operation."""
        place = replace(self.place, span=op.span)
        match op:
            case Compute(result=result, expr=expr):
                self.writer.add(f"{self.names[result.id]} = {text(expr, place)}")
            case Extern():
                self.writer.add(extern_of(op, place, self.owner.read))
            case CallWalk():
                self._call(op, place, after)
            case Require(cond=cond, text=says):
                self.writer.add(Call("request.require", (f"{text(cond, place)}", quoted(says))))
            case If():
                self._if(op, place, after)
            case ForParts():
                self._for_parts(op, place, after)
            case Together():
                self._together(op)
            case When():
                self._when(op, place, after)
            case _:
                raise NotBuilt(f"`{type(op).__name__}` in a request", op.span)

    def _call(self, op: CallWalk, place: Place, after: Ends | None) -> None:
        args: list[str | Group | Call] = [quoted(op.walk), *(text(arg, place) for arg in op.args)]
        if after is not None:
            sends = sorted(s for kind, s in self.owner.ends.of(Block((op,))) if kind == "send")
            closes = [quoted(stream) for stream in sends if ("send", stream) not in after]
            if closes:
                args.append(tuple_of(closes, "closes="))
        targets = [self.names[v.id] if v is not None and v.id in self.owner.read else None for v in op.results]
        verb = "start" if op in self.owner.ahead else "walk"
        self.writer.add(bind(targets, Call(f"yield request.{verb}", tuple(args)), several=True))

    def _if(self, op: If, place: Place, after: Ends | None) -> None:
        self.writer.open(f"if {text(op.cond, place)}:")
        self._block(op.then, after)
        self.writer.close()
        if op.other.ops:
            self.writer.open("else:")
            self._block(op.other, after)
            self.writer.close()

    def _when(self, op: When, place: Place, after: Ends | None) -> None:
        self.writer.open(f"if {text(op.cond, place)}:")
        self._block(op.body, after)
        self.writer.close()
        absent = [self.names[phi.result.id] for phi in op.results if phi.result.id in self.owner.read]
        if absent:
            self.writer.open("else:")
            for name in absent:
                self.writer.add(f"{name} = None")
            self.writer.close()

    def _for_parts(self, op: ForParts, place: Place, after: Ends | None) -> None:
        again = None if after is None else after.union(*(self.owner.ends.of(block) for block in blocks_of(op)))
        item = self.names[op.cases[0].item.id]
        self.writer.open(f"for {item} in {text(op.over, place)}:")
        for position, case in enumerate(op.cases):
            self._case(case, item, "elif" if position else "if", again)
        self.writer.close()

    def _case(self, case: Case, item: str, word: str, after: Ends | None) -> None:
        outer = dict(self.dims)
        if case.kind:
            self.writer.open(f"{word} {item}.kind == {quoted(case.kind)}:")
        self._bind_dims(case.item.id)
        self._block(case.body, after)
        if case.kind:
            self.writer.close()
        self.dims.clear()
        self.dims.update(outer)

    def _together(self, op: Together) -> None:
        items: list[Call] = []
        touched = frozenset[tuple[str, str]]().union(*(self.owner.ends.of(arm.body) for arm in op.arms))
        both = frozenset(name for _, name in touched if {("send", name), ("take", name)} <= touched)
        outside = sorted({name for _, name in touched} & self.live - both)
        if outside:
            raise NotBuilt(f"stream `{outside[0]}` from a `together` to an arm outside of it", op.span)
        for arm in op.arms:
            name, params = self.owner.add_arm(arm, self.live | both, op.span)
            args = ("request", *(self.names[ident] for ident in params))
            items.append(Call(f"{arm.label}=self.{name}", args))
        self.writer.add(Call("yield request.together", tuple(items), many=True))
