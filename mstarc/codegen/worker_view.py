"""The generated worker: a coroutine per walk and a method per region and stream predicate. Takes a program; gives the view that the
template prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.expressions import Place, quoted, text
from mstarc.codegen.layout import Group, lay_out
from mstarc.codegen.names import attribute
from mstarc.codegen.source import (
    Method,
    check_names,
    class_name,
    imports_in,
    method,
    tuple_of,
)
from mstarc.codegen.walk_view import WalkWriter
from mstarc.ir.core import (
    Program,
)
from mstarc.ir.declarations import Stream
from mstarc.ir.types import Binary, Expr, Lit, Ref, Scalar, Type
from mstarc.ir.visit import every_expr
from mstarc.passes.form_regions import Region


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """What the template of worker.py prints."""

    model: str
    name: str
    imports: str
    typing: bool
    tables: tuple[str, ...]
    methods: tuple[Method, ...]


def worker_file(program: Program) -> WorkerFile:
    """The view of worker.py. Raises NotBuilt."""
    methods: list[Method] = []
    regions: list[Region] = []
    for walk in program.walks:
        writer = WalkWriter(walk, program)
        methods += [writer.method(), *writer.region_methods()]
        regions += writer.regions.values()
    kinds = {param.name: param.type for param in program.params}
    methods += [_predicate(stream, kinds) for stream in program.streams if stream.where is not None]
    check_names(methods, program.span)
    tables = [*_sends(regions), *_collects(regions), *_ragged(regions)]
    lines = [line for m in methods for line in (*m.head, *m.body)]
    used = imports_in(lines, ("ABSENT", "Array", "Batch", "Steps", "Walk", "linspace", "shift"))
    return WorkerFile(
        program.model,
        class_name(program.model),
        ", ".join(sorted([*used, "WorkerProgram"], key=lambda n: (not n.isupper(), n))),
        any("Any" in line for m in methods for line in m.head),
        tuple(tables),
        tuple(methods),
    )


def _sends(regions: list[Region]) -> list[str]:
    rows = tuple(
        Group(tuple(f"{quoted(s)}: {n}" for s, n in body.sends), f"{quoted(body.method)}: ", "{}")
        for region in regions
        for body in region.methods()
        if body.sends
    )
    return lay_out(Group(rows, "SENDS = ", "{}"), 1) if rows else []


def _collects(regions: list[Region]) -> list[str]:
    rows = tuple(
        tuple_of((quoted(name) for name in region.collects), f"{quoted(body.method)}: ")
        for region in regions
        for body in region.methods()
        if region.collects
    )
    return lay_out(Group(rows, "COLLECTS = ", "{}"), 1) if rows else []


def _ragged(regions: list[Region]) -> list[str]:
    names = tuple(quoted(body.method) for region in regions for body in region.methods() if region.ragged)
    return lay_out(tuple_of(names, "RAGGED = "), 1) if names else []


def _predicate(stream: Stream, kinds: Mapping[str, Type]) -> Method:
    """`where_<stream>(self, b, item)`: which of the items of a batch are items of the stream. kinds: the type of each param."""
    assert stream.where is not None
    for part in every_expr(stream.where):
        text_param = isinstance(part, Ref) and part.scope == "param" and not _is_numeric(kinds[part.name])
        if text_param or (isinstance(part, Binary) and (_is_word(part.a) or _is_word(part.b))):
            raise NotBuilt(f"a text or a word of an enum in the `where` of stream `{stream.name}`", stream.span)
    place = Place(
        owner="b",
        names={},
        types={},
        asks="b.host",
        let=lambda name: attribute("b.host", name),
        rows=True,
        dims={"item": "item"},
        span=stream.span,
    )
    found = text(stream.where, place)
    params = ("b: Batch", "item: Array")
    return method(f"where_{stream.name}", params, "Array", f"stream {stream.name}", [f"        return {found}"])


def _is_word(expr: Expr) -> bool:
    return (isinstance(expr, Ref) and expr.scope == "member") or (isinstance(expr, Lit) and isinstance(expr.value, str))


def _is_numeric(kind: Type) -> bool:
    return isinstance(kind, Scalar) and kind.name in ("int", "float", "bool")
