"""The generated conductor: a coroutine per request and arm, the tables of params and inputs, and what each walk may write.

Takes a program; gives a view. Every name and order is decided here, the template only prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.expressions import Place, quoted, text
from mstarc.codegen.layout import Call, Group, Part, lay_out
from mstarc.codegen.need_view import need_method
from mstarc.codegen.request_view import RequestWriter
from mstarc.codegen.source import Method, check_names, class_name, imports_in, method, tuple_of
from mstarc.ir.core import Noise, Program, Request, Value
from mstarc.ir.declarations import Param
from mstarc.ir.fold import FoldError, Scope, fold
from mstarc.ir.types import Enum, Expr, ListOf, Lit, Media, Parts, Ref, Scalar, Struct, Tensor, Type, ValueId
from mstarc.ir.visit import every_expr, every_op, exprs_of
from mstarc.source import Span

_OPEN = (float("-inf"), float("inf"))  # ends of a range that has none


@dataclass(frozen=True, slots=True)
class ConductorFile:
    """What the template of conductor.py prints."""

    model: str
    name: str
    imports: str
    typing: bool
    tables: tuple[str, ...]
    methods: tuple[Method, ...]


def conductor_file(program: Program) -> ConductorFile:
    """The view of conductor.py. Raises NotBuilt."""
    methods: list[Method] = []
    arms: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for request in program.requests:
        writer = RequestWriter(request, program)
        methods += writer.methods()
        arms |= writer.arms
    methods += [need_method(walk, program) for walk in program.walks]
    methods += _hooks(program)
    check_names(methods, program.span)
    tables = _tables(program, arms)
    lines = [*tables, *(line for m in methods for line in (*m.head, *m.body))]
    names = ("ABSENT", "Array", "Entry", "Input", "Need", "Param", "RequestRun", "Steps", "linspace", "shift")
    used = sorted([*imports_in(lines, names), "ConductorProgram"], key=lambda n: (not n.isupper(), n))
    typing = any("Any" in line for m in methods for line in m.head)
    return ConductorFile(
        program.model, class_name(program.model), ", ".join(used), typing, tuple(tables), tuple(methods)
    )


# -------------------------------------------------------------------------------------------------------------- tables


def _tables(program: Program, arms: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> list[str]:
    results = [(w.name, len(w.outputs)) for w in program.walks] + [(e.name, len(e.results)) for e in program.externs]
    rows: list[Part] = []
    if program.params:
        rows.append(_rows("PARAMS = ", [_param(param) for param in program.params]))
    rows.append(_rows("ENTRIES = ", [_entry(request) for request in program.requests]))
    if arms:
        rows.append(Group(tuple(_arm(label, *ends) for label, ends in arms.items()), "ARMS = ", "{}"))
    switched = [context.name for context in program.contexts if context.when is not None]
    if switched:
        rows.append(tuple_of((quoted(name) for name in switched), "SWITCHED = "))
    lets = _lets_of_walks(program)
    if lets:
        rows.append(tuple_of((quoted(name) for name in lets), "LETS = "))
    found = tuple(f"{quoted(name)}: {count}" for name, count in results if count)
    if found:
        rows.append(Group(found, "RESULTS = ", "{}"))
    return [line for row in rows for line in lay_out(row, 1)]


def _rows(head: str, rows: Iterable[Part]) -> Group:
    return Group(tuple(rows), head)


def _arm(label: str, sends: tuple[str, ...], takes: tuple[str, ...]) -> Group:
    return Group((tuple_of(map(quoted, sends)), tuple_of(map(quoted, takes))), f"{quoted(label)}: ")


def _lets_of_walks(program: Program) -> list[str]:
    """Lets that walks and streams read, directly or through no other let: a let's value is computed in the conductor."""
    exprs = [stream.where for stream in program.streams if stream.where is not None]
    for walk in program.walks:
        for op in every_op(walk.body):
            exprs += [*exprs_of(op), *(carry.next for carry in getattr(op, "carries", ()))]
            if isinstance(op, Noise) and isinstance(op.result.type, Tensor):
                exprs += op.result.type.dims
    parts = (part for expr in exprs for part in every_expr(expr))
    return sorted({part.name for part in parts if isinstance(part, Ref) and part.scope == "let"})


class _Constants(Scope):
    """Names have no value when code is generated, members and literals do."""

    def ref(self, ref: Ref) -> object:
        raise FoldError(ref.name)

    def var(self, ident: ValueId) -> object:
        raise FoldError(str(ident))

    def field(self, ident: ValueId, name: str) -> object:
        raise FoldError(name)

    def apply(self, fn: str, args: tuple[object, ...]) -> object:
        raise FoldError(fn)


def constant(expr: Expr) -> object | None:
    """The value of an expression that depends on nothing; else None."""
    try:
        found: object = fold(expr, _Constants())
        return found
    except FoldError:
        return None


def _param(param: Param) -> Call:
    """`Param("max_tokens", "int", default=256, low=1, high=1024)`."""
    kind = param.type
    items: list[Part] = [quoted(param.name), quoted("enum" if isinstance(kind, Enum) else _scalar(kind, param.span))]
    if param.default is not None:
        value = constant(param.default)
        items.append("computed=True" if value is None else f"default={_shown(value)}")
    for end in ("low", "high"):
        bound: Expr | None = getattr(param, end)
        if bound is not None:
            value = constant(bound)
            if value is not None:
                items.append(f"{end}={_shown(value)}")
    if _is_ranged(param):
        items.append("ranged=True")
    if isinstance(kind, Enum):
        items.append(tuple_of(map(quoted, kind.members), "members="))
    return Call("Param", tuple(items))


def _is_ranged(param: Param) -> bool:
    """Whether an end of the range depends on the config or other params."""
    return any(end is not None and constant(end) is None for end in (param.low, param.high))


def _shown(value: object) -> str:
    return quoted(value) if isinstance(value, str) else repr(value)


def _scalar(kind: Type, span: Span) -> str:
    if isinstance(kind, Scalar):
        return kind.name
    raise NotBuilt(f"a param of type `{type(kind).__name__.lower()}`", span)


def _entry(request: Request) -> Call:
    inputs = Group(tuple(_input(value) for value in request.inputs), "inputs=")
    outputs = Group(tuple(f"({quoted(name)}, {optional})" for name, optional in request.outputs), "outputs=")
    return Call("Entry", (quoted(request.name), inputs, outputs))


def _input(value: Value) -> Call:
    items: list[Part] = [quoted(value.name)]
    match value.type:
        case Tensor(dtype=dtype, dims=dims):
            items += [quoted("tensor"), f"dtype={quoted(dtype)}", tuple_of(map(_dim, dims), "dims=")]
        case Scalar(name=name):
            items.append(quoted(name))
        case Media(modality=modality):
            items.append(quoted(modality))
        case Parts(members=members):
            items += [quoted("parts"), tuple_of(map(quoted, members), "members=")]
        case Enum(members=members):
            items += [quoted("enum"), tuple_of(map(quoted, members), "members=")]
        case Struct(name=name, fields=fields):
            parts = (_input(Value(ValueId(-1), field, kind, "host", value.span)) for field, kind in fields)
            items += [quoted("part"), tuple_of([quoted(name)], "members="), Group(tuple(parts), "fields=")]
        case _:
            raise NotBuilt(f"an input of type `{type(value.type).__name__.lower()}`", value.span)
    if value.type.optional:
        items.append("optional=True")
    return Call("Input", tuple(items))


def _dim(dim: Expr) -> str:
    """A number, the name of a config or of a free length, or None for what is computed from these."""
    if isinstance(dim, Ref) and dim.scope in ("config", "dim"):
        return quoted(dim.name)
    value = constant(dim)
    return str(value) if isinstance(value, int) else "None"


# --------------------------------------------------------------------------------------------------------------- hooks


def _hooks(program: Program) -> list[Method]:
    """`let_<name>`, `default_<name>` and `context_<name>`: what the engine asks about a request."""
    found = [_hook(f"let_{let.name}", "object", f"let {let.name}", let.expr, let.span) for let in program.lets]
    for param in program.params:
        if param.default is not None and constant(param.default) is None:
            name = f"default_{param.name}"
            found.append(_hook(name, "object", f"default of param {param.name}", param.default, param.span))
    for param in filter(_is_ranged, program.params):
        ends = ListOf(tuple(Lit(_OPEN[k]) if end is None else end for k, end in enumerate((param.low, param.high))))
        found.append(_hook(f"range_{param.name}", "object", f"range of param {param.name}", ends, param.span))
    for context in program.contexts:
        if context.when is not None:
            doc = f"context {context.name} is on"
            found.append(_hook(f"context_{context.name}", "bool", doc, context.when, context.span, "bool"))
    return found


def _hook(name: str, result: str, doc: str, expr: Expr, span: Span, around: str = "") -> Method:
    place = Place("request", {}, {}, "request", lambda let: f"self.let_{let}(request)", span=span)
    found = text(expr, place)
    value = Call(f"return {around}", (found,)) if around else f"return {found}"
    return method(name, ["request: RequestRun"], result, doc, lay_out(value, 2))
