"""Shapes of requests: what is known of a request before it runs, and host expressions under it.

Takes a program, a request's name, the modalities that it brings and wants, and params; gives a `Shape`, and a `Known` scope in which
host expressions either have a value or raise FoldError: what an extern returns or a client sends is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from mstarc.interp.errors import RequestRefused
from mstarc.interp.hash_machine import HashMachine
from mstarc.interp.scope import RequestScope
from mstarc.ir.core import ForParts, If, Program, Request, When
from mstarc.ir.declarations import Param
from mstarc.ir.fold import FoldError, field_of, fold
from mstarc.ir.types import Apply, Binary, Enum, Expr, Lit, Media, Parts, Ref, Scalar, Type, ValueId
from mstarc.ir.visit import every_expr, every_op


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request. `given`, `wants`: modalities. params: those that are known; `open`: all others may have any value, else
    they have their defaults.

    parts: the kinds of the parts that its lists hold, in order; None = any number, in any order, of `kinds`.
    """

    request: str
    given: frozenset[str] = frozenset()
    wants: frozenset[str] = frozenset()
    params: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[str, ...] | None = None
    kinds: frozenset[str] = frozenset()
    open: bool = False

    def told(self) -> str:
        """`chat(text -> image), think = true, parts text_part*`."""
        sides = " -> ".join(", ".join(sorted(side)) for side in (self.given, self.wants)).strip()
        params = "".join(f", {name} = {str(value).lower()}" for name, value in sorted(self.params.items()))
        parts = " ".join(self.parts) if self.parts is not None else " ".join(f"{kind}*" for kind in sorted(self.kinds))
        return f"{self.request}({sides}){params}" + (f", parts {parts}" if parts else "")


def request_of(program: Program, name: str) -> Request:
    """The request of that name; "" = the only one. Raises RequestRefused."""
    found = [request for request in program.requests if name in ("", request.name)]
    if len(found) != 1:
        names = ", ".join(f"`{request.name}`" for request in program.requests)
        raise RequestRefused(
            f"there is no request `{name}`; there are {names}" if name else f"name one of the requests {names}",
            "request",
        )
    return found[0]


def modalities_of(kind: Type) -> tuple[str, ...]:
    """The modalities that an input of this type may give."""
    match kind:
        case Parts(members=members):
            return members
        case Media(modality=modality):
            return (modality,)
        case Scalar(name="text"):
            return ("text",)
    return ()


def kinds_of(request: Request) -> tuple[str, ...]:
    """The kinds of parts that the request tells apart."""
    cases = (case.kind for op in every_op(request.body) if isinstance(op, ForParts) for case in op.cases)
    return tuple(dict.fromkeys(kind for kind in cases if kind))


def shape_of(
    program: Program,
    request: str = "",
    given: Iterable[str] | None = None,
    wants: Iterable[str] | None = None,
    params: Mapping[str, Any] | None = None,
    parts: tuple[str, ...] | None = None,
) -> Shape:
    """A shape with nothing open but its parts. given, left out: what the request must bring, and the first modality of each list;
    wants: what is not optional, or the first output. Raises RequestRefused for what the request does not have.
    """
    entry = request_of(program, request)
    brings = [(m, value.type) for value in entry.inputs for m in modalities_of(value.type)]
    if given is None:
        lists = [value.type.members[0] for value in entry.inputs if isinstance(value.type, Parts)]
        given = [*(m for m, kind in brings if _must(kind)), *lists]
    if wants is None:
        wants = [m for m, optional in entry.outputs if not optional] or [m for m, _ in entry.outputs[:1]]
    given, wants = list(given), list(wants)
    for names, known, what in (
        (given, [m for m, _ in brings], "takes"),
        (wants, [m for m, _ in entry.outputs], "gives"),
    ):
        for name in names:
            if name not in known:
                listed = ", ".join(dict.fromkeys(known)) or "none"
                raise RequestRefused(f"request `{entry.name}` {what} no `{name}`; it {what} {listed}", name)
    kinds = frozenset(kinds_of(entry))
    return Shape(entry.name, frozenset(given), frozenset(wants), dict(params or {}), parts, kinds)


def every_shape(program: Program) -> Iterator[Shape]:
    """Every shape that conditions of the program tell apart: modalities, kinds of parts, and the bool and enum params that conditions
    read; all other params are open."""
    asked = set(_asked(program))
    choices = {p.name: values for p in program.params if p.name in asked and (values := _values(p.type))}
    for request in program.requests:
        brings = [modalities_of(value.type) for value in request.inputs]
        sure = {m for value, ms in zip(request.inputs, brings, strict=True) for m in ms if _must(value.type)}
        maybe = sorted({m for ms in brings for m in ms} - sure) if "given" in asked else []
        wanted = {name for name, optional in request.outputs if not optional}
        kinds = kinds_of(request)
        optional = sorted({name for name, _ in request.outputs} - wanted)
        for given, wants, some, values in product(
            _subsets(maybe), _subsets(optional), _subsets(kinds), product(*choices.values())
        ):
            if (wanted or wants or not optional) and (some or not kinds):
                params = dict(zip(choices, values, strict=True))
                yield Shape(request.name, sure | given, frozenset({*wanted, *wants}), params, None, some, open=True)


def _asked(program: Program) -> Iterator[str]:
    """Names of params that conditions read, directly or by lets; and `given` where they ask for it."""
    lets = {let.name: let.expr for let in program.lets}
    todo: list[Expr] = [c.when for c in program.contexts if c.when is not None]
    for block in (*(w.body for w in program.walks), *(r.body for r in program.requests)):
        todo += [op.cond for op in every_op(block) if isinstance(op, If | When)]
    done: set[str] = set()
    while todo:
        for part in every_expr(todo.pop()):
            if isinstance(part, Apply) and part.fn == "given":
                yield "given"
            if isinstance(part, Ref) and part.scope in ("param", "let") and part.name not in done:
                done.add(part.name)
                yield part.name
                if part.scope == "let":
                    todo.append(lets[part.name])


def _must(kind: Type) -> bool:
    return not isinstance(kind, Parts) and not getattr(kind, "optional", False)


def _values(kind: Type) -> tuple[Any, ...]:
    if isinstance(kind, Enum):
        return kind.members
    return (False, True) if isinstance(kind, Scalar) and kind.name == "bool" else ()


def _subsets(names: Iterable[str]) -> list[frozenset[str]]:
    """All subsets, smallest first."""
    listed = list(names)
    return [frozenset(some) for count in range(len(listed) + 1) for some in combinations(listed, count)]


class ShapeScope(RequestScope):
    """Params, lets and configs of a shape. Raises RequestRefused for a param that is unknown, missing or out of its range."""

    def __init__(self, program: Program, shape: Shape) -> None:
        defaults = {} if not shape.open else {p.name: _any(p) for p in program.params if p.default is None}
        super().__init__(program, HashMachine(program), {**defaults, **shape.params}, shape.given, shape.wants)
        if shape.open:
            self._known.clear()
            for param in program.params:
                if param.name not in shape.params:
                    del self._exprs["param", param.name]

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        if fn in ("last", "guide"):
            raise FoldError(f"`{fn}` makes a device value")
        return super().apply(fn, args)


def _any(param: Param) -> Any:
    """Some value of a param that a client must give: only its being there is looked at."""
    low = param.low.value if isinstance(param.low, Lit) else 0
    match param.type:
        case Enum(members=members):
            return members[0]
        case Scalar(name=name):
            return {"text": "", "bytes": b"", "bool": False, "float": float(low)}.get(name, low)
    return low


@dataclass(slots=True)
class Known:
    """Implements `mstarc.ir.fold.Scope` for one unit (a request or one call of a walk): raises FoldError for what is not known."""

    shape: ShapeScope
    values: dict[ValueId, Any] = field(default_factory=dict)
    dims: dict[str, int] = field(default_factory=dict)
    iters: dict[str, int] = field(default_factory=dict)

    def ref(self, ref: Ref) -> Any:
        if ref.scope not in ("dim", "iter"):
            return self.shape.ref(ref)
        known = self.dims if ref.scope == "dim" else self.iters
        if ref.name not in known:
            raise FoldError(f"`{ref.name}` is not known before the request runs")
        return known[ref.name]

    def var(self, ident: ValueId) -> Any:
        if ident not in self.values:
            raise FoldError(f"%{ident} is not known before the request runs")
        return self.values[ident]

    def field(self, ident: ValueId, name: str) -> Any:
        return field_of(self.var(ident), name)

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        return self.shape.apply(fn, args)

    def eval(self, expr: Expr) -> Any | None:
        """The value, or None if it is not known. `and` and `or` are decided by one side where that is enough."""
        if isinstance(expr, Binary) and expr.op in ("and", "or"):
            decides = expr.op == "or"
            sides = (self.eval(expr.a), self.eval(expr.b))
            return decides if decides in sides else None if None in sides else not decides
        try:
            return fold(expr, self)
        except (FoldError, TypeError, ValueError, OverflowError):
            return None
