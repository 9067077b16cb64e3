"""Expressions of the IR as Python text. Takes an expression and where it stands; gives source.

Three places: the coroutine of a walk, the body of a region (values are batches: `and or not` become `& | ~`), and the
conductor. A place answers for every name; this file knows precedence and the built-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mstarc.codegen.errors import NotBuilt
from mstarc.codegen.names import attribute
from mstarc.ir.types import (
    Apply,
    Binary,
    Chunk,
    Expr,
    FieldOf,
    IfThen,
    Index,
    ListOf,
    Lit,
    Ref,
    Slice,
    Tensor,
    Type,
    Unary,
    ValueId,
    Var,
)
from mstarc.ir.visit import every_expr, parts_of
from mstarc.source import NOWHERE, Span

#: binding strength in Python
TEST, OR, AND, NOT, COMPARE, BIT_OR, BIT_AND, SUM, PRODUCT, UNARY, ATOM = range(11)
_STRENGTH = {"or": OR, "and": AND} | dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), COMPARE)
_STRENGTH |= {"+": SUM, "-": SUM} | dict.fromkeys(("*", "/", "//", "%"), PRODUCT)
_OF_A_ROW = ("iter", "param", "config")
FLOATS = ("f32", "bf16", "f16")
_FIELDS = {"new": "new", "index": "index", "first": "first", "tail": "tail"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where code stands: `owner` carries params and config (`walk`, `b`, `request`), `rows` says that values are batches.

    let: text of a let by name. asks: text of the object with `wants` and `given`. iters: loop label -> variable. dims: name -> text.
    hoisted: what statements before have computed -> variable. rank: of a row's value, where values are batches; ragged: they are kept
    request by request.
    """

    owner: str
    names: Mapping[ValueId, str]
    types: Mapping[ValueId, Type]
    asks: str
    let: Callable[[str], str]
    rows: bool = False
    iters: Mapping[str, str] | None = None
    dims: Mapping[str, str] | None = None
    hoisted: Mapping[Expr, str] | None = None
    rank: Callable[[Expr], int | None] | None = None
    ragged: bool = False
    span: Span = NOWHERE


def text(expr: Expr, place: Place, least: int = TEST) -> str:
    """The expression as Python, in parentheses if it binds less tightly than `least`."""
    found, strength = _text(expr, place)
    return f"({found})" if strength < least else found


def _text(expr: Expr, place: Place) -> tuple[str, int]:
    match expr:
        case Lit(value):
            return _literal(value)
        case Ref():
            return _ref(expr, place)
        case Var(ident):
            name = place.names[ident]
            return (f"{name}.value" if _is_chunk(expr, place) and not place.rows else name), ATOM
        case Unary("not", x):
            return _not(x, place)
        case Unary(_, x):
            return f"-{text(x, place, UNARY)}", UNARY
        case Binary():
            return _binary(expr, place)
        case IfThen(cond, a, b):
            return f"{text(a, place, OR)} if {text(cond, place, OR)} else {text(b, place)}", TEST
        case Apply():
            return _apply(expr, place)
        case Index(base, (at,)) if place.rank is not None and not isinstance(at, Slice):
            return f"{place.owner}.at({text(base, place)}, {text(at, place)})", ATOM
        case Index(base, indices):
            inner = ", ".join(_index(index, place) for index in indices)
            return f"{text(base, place, ATOM)}[{inner}]", ATOM
        case FieldOf(Var(ident), name) if _is_chunk(expr.base, place):
            return f"{place.names[ident]}.{_FIELDS[name]}", ATOM
        case FieldOf(base, name):
            return attribute(text(base, place, ATOM), name), ATOM
        case ListOf(items):
            return f"[{', '.join(text(item, place) for item in items)}]", ATOM
    raise NotBuilt(f"`{type(expr).__name__.lower()}` in an expression", place.span)


def _is_chunk(expr: Expr, place: Place) -> bool:
    return isinstance(expr, Var) and isinstance(place.types.get(expr.id), Chunk)


def _literal(value: bool | int | float | str) -> tuple[str, int]:
    if isinstance(value, str):
        return quoted(value), ATOM
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")', ATOM
    found = repr(value)
    return found, UNARY if found.startswith("-") else ATOM


def quoted(value: str) -> str:
    """A text as `ruff format` quotes it."""
    if '"' in value and "'" not in value:
        return repr(value)
    body = "".join(_escaped(char) for char in value)
    return f'"{body}"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char if char.isprintable() else repr(char)[1:-1]


def _ref(ref: Ref, place: Place) -> tuple[str, int]:
    match ref.scope:
        case "config":
            return attribute(f"{place.owner}.config", ref.name), ATOM
        case "param":
            return attribute(f"{place.owner}.params", ref.name), ATOM
        case "let":
            return place.let(ref.name), ATOM
        case "member":
            return quoted(ref.name), ATOM
        case "iter":
            return (f"{place.owner}.iter" if place.rows else (place.iters or {})[ref.name]), ATOM
        case "dim":
            found = (place.dims or {}).get(ref.name)
            if found is not None:
                return found, ATOM
    raise NotBuilt(f"the dim `{ref.name}` where no value before it has it", place.span)


# ------------------------------------------------------------------------------------------------------------- operators


def is_uniform(expr: Expr) -> bool:
    """Whether a region's expression is one value for the whole batch."""
    return all(isinstance(part, (Lit, Unary, Binary)) or _is_config(part) for part in every_expr(expr))


def _is_config(expr: Expr) -> bool:
    return isinstance(expr, Ref) and expr.scope == "config"


def _elementwise(expr: Expr, place: Place) -> bool:
    """Whether the logic of the expression goes element by element: rows of a batch, or tensors with dims."""
    if place.rows:
        return not is_uniform(expr)
    if isinstance(expr, Index) and isinstance(expr.base, Var):
        cut = sum(not isinstance(index, Slice) for index in expr.indices)
        return _dims(place.types.get(expr.base.id)) > cut
    if isinstance(expr, Var):
        return _dims(place.types.get(expr.id)) > 0
    return any(_elementwise(part, place) for part in parts_of(expr))


def _dims(kind: Type | None) -> int:
    return len(kind.dims) if isinstance(kind, Tensor) else 0


def _not(x: Expr, place: Place) -> tuple[str, int]:
    if _elementwise(x, place):
        return f"~{text(x, place, UNARY)}", UNARY
    return f"not {text(x, place, NOT)}", NOT


def _binary(expr: Binary, place: Place) -> tuple[str, int]:
    if expr.op in ("and", "or") and _elementwise(expr, place):
        strength = BIT_AND if expr.op == "and" else BIT_OR
        sign = "&" if expr.op == "and" else "|"
        return f"{_operand(expr.a, place, strength)} {sign} {_operand(expr.b, place, strength + 1)}", strength
    strength = _STRENGTH[expr.op]
    left = _side(expr.a, expr.b, place, strength + (strength == COMPARE))
    return f"{left} {expr.op} {_side(expr.b, expr.a, place, strength + 1)}", strength


def _side(expr: Expr, other: Expr, place: Place, strength: int) -> str:
    """One side of an operator. In a region, a number of the host that meets floats is rounded to f32, and one number a row is put
    beside everything that the row holds, where rows are one array.
    """
    rank = place.rank
    lifted = rank is not None and not place.ragged and rank(expr) == 0 and (rank(other) or 0) > 0
    if place.rows and is_number(expr) and any(_is_float(part, place) for part in every_expr(other)):
        found = number(expr, place)
    else:
        found = text(expr, place, ATOM if lifted else strength)
    return f"{found}[:{', None' * (rank(other) or 0)}]" if lifted and rank is not None else found


def is_number(expr: Expr) -> bool:
    """Whether a region's expression is arithmetic of the host that differs from row to row."""
    parts = list(every_expr(expr))
    leaves = [part for part in parts if not isinstance(part, (Unary, Binary))]
    arithmetic = all(part.op in ("+", "-", "*", "/", "//", "%") for part in parts if isinstance(part, (Unary, Binary)))
    known = all(isinstance(leaf, Lit) or (isinstance(leaf, Ref) and leaf.scope in _OF_A_ROW) for leaf in leaves)
    return arithmetic and known and not is_uniform(expr)


def number(expr: Expr, place: Place) -> str:
    """Host arithmetic of each row: exact as on the host, then f32 like everything that the device is given."""
    return f"{place.owner}.number(lambda row: {of_row(expr, place)})"


def of_row(expr: Expr, place: Place) -> str:
    """What the host knows of a request, as Python on `row`."""
    iters = {part.name: "row.iter" for part in every_expr(expr) if isinstance(part, Ref) and part.scope == "iter"}
    row = Place(
        owner="row",
        names={},
        types={},
        asks="row.host",
        let=lambda name: attribute("row.host", name),
        iters=iters,
        span=place.span,
    )
    return text(expr, row)


def _is_float(expr: Expr, place: Place) -> bool:
    kind = place.types.get(expr.id) if isinstance(expr, Var) else None
    return isinstance(kind, Tensor) and kind.dtype in FLOATS


def _operand(expr: Expr, place: Place, strength: int) -> str:
    """An operand of `&` or `|`: comparisons and the like are in parentheses."""
    return text(expr, place, strength)


def _index(index: Expr | Slice, place: Place) -> str:
    if not isinstance(index, Slice):
        return text(index, place)
    ends = [None if end is None else text(end, place) for end in (index.low, index.high)]
    space = " " if any(end is not None and not _is_simple(end) for end in ends) else ""
    low = "" if ends[0] is None else ends[0] + space
    return f"{low}:" + ("" if ends[1] is None else space + ends[1])


def _is_simple(end: str) -> bool:
    return end.isidentifier() or end.isdigit()


def _apply(expr: Apply, place: Place) -> tuple[str, int]:
    match expr.fn, expr.args:
        case (("wants" | "given"), (what,)):
            return f"{place.asks}.{expr.fn}({text(what, place)})", ATOM
        case "present", (x,):
            found = text(x, place, COMPARE + 1)
            if place.owner == "request":
                return f"{found} is not None", COMPARE
            return f"{found} is not None and {found} is not ABSENT", AND
        case (("len" | "min" | "max"), args):
            return f"{expr.fn}({', '.join(text(arg, place) for arg in args)})", ATOM
        case (("linspace" | "shift"), args):
            return f"{expr.fn}({', '.join(text(arg, place) for arg in args)})", ATOM
        case "guide", _ if expr in (place.hoisted or {}):
            return (place.hoisted or {})[expr], ATOM
        case "last", (x, k) if not place.rows and place.owner == "walk":
            found = text(x, place, ATOM)
            return f"{found}[max(0, len({found}) - {text(k, place, PRODUCT)}) :]", ATOM
    raise NotBuilt(f"the built-in `{expr.fn}` in generated code", place.span)
