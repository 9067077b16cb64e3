"""One concrete course of a request: what its conditions, counts and stops are. Gives values to expressions, picking as it goes.

`Choices` walks through the tree of all picks, then through random ones: small scopes, completely, rather than proofs about all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from mstarc.ir.core import Program, Request
from mstarc.ir.fold import FoldError, fold
from mstarc.ir.text.expressions import shown
from mstarc.ir.types import (
    Apply,
    Binary,
    Chunk,
    Enum,
    Expr,
    FieldOf,
    Media,
    Parts,
    Ref,
    Scalar,
    Struct,
    Tensor,
    Type,
    Unary,
    ValueId,
    Var,
)
from mstarc.passes.ranges import Ranges
from mstarc.source import Span

T = TypeVar("T")


class Opaque:
    """A value that the course does not know: an array, a text. Asking it anything raises FoldError."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __bool__(self) -> bool:
        raise FoldError(f"`{self.key}` is not known here")

    def __eq__(self, other: object) -> bool:
        raise FoldError(f"`{self.key}` is not known here")

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Choices:
    """Picks of one course, and the way to the next. `reach`: counts beyond it show nothing new."""

    reach: int
    rng: Random | None = None
    made: dict[str, int] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    values: dict[Ref, Any] = field(default_factory=dict)  # of params, configs and lets in this course

    def pick(self, key: str, options: tuple[T, ...], words: str = "") -> T:
        """The option chosen for a key, the same whenever the key is asked again."""
        if key not in self.made:
            self.made[key] = self.rng.randrange(len(options)) if self.rng else 0
        chosen = options[self.made[key]]
        if key not in self.words:
            self.widths[key] = len(options)
            self.words[key] = words.format(chosen) if words and chosen is not None else ""
        return chosen

    def advance(self) -> bool:
        """Go to the next course of the tree: the last pick that has another option takes it. False when there is none."""
        self.values.clear()
        for key in reversed(list(self.made)):
            here = self.made.pop(key)
            self.words.pop(key, None)
            if here + 1 < self.widths[key]:
                self.made[key] = here + 1
                return True
        return False

    def told(self) -> str:
        """What was picked, for a reader."""
        return ", ".join(word for word in self.words.values() if word)


@dataclass
class Frame:
    """Names of one unit (a request, or one call of a walk) in one course. Implements `fold.Scope`."""

    program: Program
    request: Request
    choices: Choices
    unit: str
    values: dict[ValueId, Any] = field(default_factory=dict)
    dims: dict[str, str] = field(default_factory=dict)
    iters: dict[str, int] = field(default_factory=dict)
    stops: dict[int, int | None] = field(default_factory=dict)  # iterations of the stops that were picked, by operation

    def ref(self, ref: Ref) -> Any:
        if ref.scope == "dim":
            return self.choices.pick(
                self.dims.get(ref.name, f"{self.unit}.{ref.name}"), (2, 0, 1, 5), f"`{ref.name}` = {{}}"
            )
        if ref.scope == "iter":
            return self.iters.get(ref.name, 0)
        known = self.choices.values
        if ref not in known:
            known[ref] = self._param(ref.name) if ref.scope == "param" else self._declared(ref)
        return known[ref]

    def _declared(self, ref: Ref) -> Any:
        source = self.program.lets if ref.scope == "let" else self.program.configs
        found = next((d.expr for d in source if d.name == ref.name), None)
        if found is None:
            raise FoldError(f"`{ref.name}` is not known before link")
        return self.truth(found) if ref.scope == "let" and _is_logic(found) else fold(found, self)

    def var(self, ident: ValueId) -> Any:
        return self.values.get(ident, Opaque(f"{self.unit}%{ident}"))

    def field(self, ident: ValueId, name: str) -> Any:
        return Opaque(f"{self.key(Var(ident))}.{name}")

    def apply(self, fn: str, args: tuple[Any, ...]) -> Any:
        raise FoldError(f"`{fn}` is not known here")

    def _param(self, name: str) -> Any:
        param = next(p for p in self.program.params if p.name == name)
        words = f"`{name}` = {{}}"
        if isinstance(param.type, Enum):
            return self.choices.pick(f"param {name}", param.type.members, words)
        if isinstance(param.type, Scalar) and param.type.name == "bool":
            return self.choices.pick(f"param {name}", (False, True), words)
        ranges = Ranges(self.program)
        if param.low is None or param.high is None:
            raise FoldError(f"`{name}` has no range")
        low, high = ranges.of(param.low).low, ranges.of(param.high).high
        if isinstance(param.type, Scalar) and param.type.name == "int":
            few = dict.fromkeys(min(high, v) for v in (low + self.choices.reach, low, low + 1, low + 2, low + 5))
            return self.choices.pick(f"param {name}", tuple(int(v) for v in few), words)
        return self.choices.pick(f"param {name}", (low, high), words)

    def whole(self, expr: Expr) -> int:
        """A count; one that a request brings is picked."""
        try:
            return int(fold(expr, self))
        except (FoldError, TypeError, ValueError):
            return self.choices.pick(self.key(expr), (2, 0, 1, 5), f"`{shown(expr)}` = {{}}")

    def truth(self, cond: Expr) -> bool:
        """A condition; one that is not known is picked, by its parts."""
        match cond:
            case Unary("not", x):
                return not self.truth(x)
            case Binary("and", a, b):
                return self.truth(a) and self.truth(b)
            case Binary("or", a, b):
                return self.truth(a) or self.truth(b)
            case Apply("wants" | "given", (Ref(name=name),)):
                return self._asked(cond.fn, name)
        try:
            return bool(fold(cond, self))
        except (FoldError, TypeError, ValueError):
            return self.choices.pick(self.key(cond), (True, False), f"`{shown(cond)}` is {{}}")

    def _asked(self, fn: str, name: str) -> bool:
        """`wants` of an output that is not optional, and `given` of an input that must be there, are not open."""
        if fn == "wants":
            known = [optional for modality, optional in self.request.outputs if modality == name]
        else:
            known = [kind != "must" for kind in (gives(v.type, name) for v in self.request.inputs) if kind]
        if not known:
            return False
        return not all(known) or self.choices.pick(f"{fn} {name}", (True, False), f"`{fn}({name})` is {{}}")

    def key(self, expr: Expr) -> str:
        """A key that equal values have in every frame, where that can be told."""
        match expr:
            case Var(ident):
                value = self.values.get(ident)
                return value.key if isinstance(value, Opaque) else f"{self.unit}%{ident}"
            case FieldOf(base, name):
                return f"{self.key(base)}.{name}"
            case _:
                return f"{self.unit}:{shown(expr)}"

    def enter(self, unit: str, params: tuple[tuple[ValueId, Type], ...], args: tuple[Expr, ...]) -> Frame:
        """The frame of a walk call."""
        inner = Frame(self.program, self.request, self.choices, unit)
        for (ident, kind), arg in zip(params, args, strict=True):
            try:
                inner.values[ident] = fold(arg, self)
            except FoldError:
                inner.values[ident] = Opaque(self.key(arg))
            _bind_dims(kind, self.key(arg), inner.dims)
        return inner


def _bind_dims(kind: Type, key: str, dims: dict[str, str]) -> None:
    """Free dims of a parameter stand for the lengths of its argument."""
    if isinstance(kind, Tensor):
        for position, dim in enumerate(kind.dims):
            if isinstance(dim, Ref) and dim.scope == "dim":
                dims.setdefault(dim.name, f"{key}.dim{position}")
    elif isinstance(kind, Struct):
        for name, inner in kind.fields:
            _bind_dims(inner, f"{key}.{name}", dims)


def gives(kind: Type, modality: str) -> str:
    """Whether an input of this type gives the modality: `must`, `may` or no ("")."""
    if isinstance(kind, Parts):
        return "may" if modality in kind.members else ""
    if isinstance(kind, Chunk):
        return ""
    mine = kind.modality if isinstance(kind, Media) else kind.name if isinstance(kind, Scalar) else ""
    if mine != modality:
        return ""
    return "may" if kind.optional else "must"


def _is_logic(expr: Expr) -> bool:
    match expr:
        case Binary(op, _, _):
            return op in ("and", "or")
        case Unary(op, _):
            return op == "not"
        case Apply(fn, _):
            return fn in ("wants", "given", "present")
        case _:
            return False


# ---------------------------------------------------------------------------------------------- what a course comes to


@dataclass(frozen=True, slots=True)
class Wait:
    """An arm that cannot go on. `what`: room | item."""

    arm: str
    what: str
    stream: str
    span: Span
    held: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """Every arm that is left waits."""

    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True)
class Surplus:
    """A take found the end. kind `next`: `next` without `after_end empty`; `joint`: one of several streams had more chunks."""

    kind: str
    stream: str
    span: Span
    taken: int
    others: tuple[str, ...] = ()


class OutOfSteps(Exception):
    """The budget is spent; nothing is known about this course."""
