"""What a host expression can be: its range, and its polynomial normal form. Takes expressions; gives intervals and `Poly`.

Ranges come from the declared ranges of params, from literals and from config values that the binding gave. A value that a
request brings (a length, a dim) is at least 0 and bounded by admission, and a config value that only a checkpoint gives is at
least 1: both have no upper end here, but are not unbounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from mstarc.ir.core import Block, CallWalk, Compute, Program, Value, Walk
from mstarc.ir.types import Apply, Binary, Expr, FieldOf, IfThen, Index, Lit, Ref, Unary, ValueId, Var
from mstarc.ir.visit import entries_of, every_op, results_of

Number = int | float
Poly = Mapping[tuple[str, ...], Number]  # product of atoms -> coefficient; the constant is under ()


@dataclass(frozen=True, slots=True)
class Interval:
    """low..high, both reachable as far as is known. `sized`: the high end is a size that a request or a checkpoint brings."""

    low: Number = -inf
    high: Number = inf
    sized: bool = False

    @property
    def exact(self) -> Number | None:
        """The one value, if there is one."""
        return self.low if self.low == self.high else None


@dataclass
class Ranges:
    """Ranges of one program's names. `iters`: bounds of the loops around the expression, by label.

    `defs`: the expressions of the unit's host values; `vars`: ranges of its parameters.
    """

    program: Program
    defs: Mapping[ValueId, Expr] = field(default_factory=dict)
    vars: Mapping[ValueId, Interval] = field(default_factory=dict)
    iters: dict[str, Interval] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def of(self, expr: Expr) -> Interval:
        """The range of a host expression; bools are 0..1. Everything unknown is -inf..inf."""
        match expr:
            case Lit(value):
                return Interval(value, value) if isinstance(value, (int, float)) else Interval()
            case Ref():
                return self._ref(expr)
            case Var(ident):
                return self.of(self.defs[ident]) if ident in self.defs else self.vars.get(ident, Interval())
            case Unary("-", x):
                inner = self.of(x)
                return Interval(-inner.high, -inner.low)
            case Unary("not", _):
                return Interval(0, 1)
            case Binary():
                return self._binary(expr)
            case IfThen(_, a, b):
                return _union(self.of(a), self.of(b))
            case Apply():
                return self._apply(expr)
            case _:
                return Interval()

    def _ref(self, ref: Ref) -> Interval:
        if ref.scope == "dim":
            return Interval(0, inf, sized=True)
        if ref.scope == "iter":
            return self.iters.get(ref.name, Interval(0, inf))
        key = f"{ref.scope}:{ref.name}"
        if key in self._open:
            return Interval()
        self._open.add(key)
        try:
            return self._declared(ref)
        finally:
            self._open.discard(key)

    def _declared(self, ref: Ref) -> Interval:
        program = self.program
        if ref.scope == "param":
            param = next((p for p in program.params if p.name == ref.name), None)
            if param is None or param.low is None or param.high is None:
                return Interval()
            return Interval(self.of(param.low).low, self.of(param.high).high)
        if ref.scope == "let":
            let = next((x for x in program.lets if x.name == ref.name), None)
            return self.of(let.expr) if let else Interval()
        if ref.scope == "config":
            config = next((c for c in program.configs if c.name == ref.name), None)
            if config is None or config.expr is None:
                return Interval(1, inf, sized=True)  # read from the checkpoint at link
            return self.of(config.expr)
        return Interval()

    def _binary(self, expr: Binary) -> Interval:
        if expr.op in ("and", "or", "==", "!=", "<", "<=", ">", ">="):
            return _compare(expr.op, self.of(expr.a), self.of(expr.b))
        a, b = self.of(expr.a), self.of(expr.b)
        sized = a.sized or b.sized
        if expr.op == "+":
            return Interval(a.low + b.low, a.high + b.high, sized)
        if expr.op == "-":
            return Interval(_minus(a.low, b.high), _minus(a.high, b.low), sized)
        if expr.op == "*":
            corners = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
            return Interval(min(corners), max(corners), sized)
        return self._divide(expr.op, a, b)

    def _divide(self, op: str, a: Interval, b: Interval) -> Interval:
        if b.low <= 0:
            return Interval()
        if op == "%":
            return Interval(0, b.high - 1 if b.high != inf else inf, b.sized)
        corners = [_over(x, y, op == "//") for x in (a.low, a.high) for y in (b.low, b.high)]
        return Interval(min(corners), max(corners), a.sized)

    def _apply(self, expr: Apply) -> Interval:
        if expr.fn in ("given", "wants", "present"):
            return Interval(0, 1)
        if expr.fn == "len":
            return Interval(0, inf, sized=True)
        if expr.fn in ("min", "max") and expr.args:
            pick = min if expr.fn == "min" else max
            parts = [self.of(a) for a in expr.args]
            high = pick(p.high for p in parts)
            return Interval(pick(p.low for p in parts), high, any(p.sized and p.high == high for p in parts))
        return Interval()


def _union(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.low, b.low), max(a.high, b.high), a.sized or b.sized)


def _minus(a: Number, b: Number) -> Number:
    return a - b if abs(b) != inf or abs(a) != inf else -inf if b > 0 else inf


def _times(a: Number, b: Number) -> Number:
    return 0 if a == 0 or b == 0 else a * b


def _over(a: Number, b: Number, whole: bool) -> Number:
    if abs(a) == inf:
        return a
    if b == inf:
        return 0 if a >= 0 else -1
    return a // b if whole else a / b


def _compare(op: str, a: Interval, b: Interval) -> Interval:
    """0, 1 or both."""
    always: bool
    never: bool
    match op:
        case "<":
            always, never = a.high < b.low, a.low >= b.high
        case "<=":
            always, never = a.high <= b.low, a.low > b.high
        case ">":
            always, never = a.low > b.high, a.high <= b.low
        case ">=":
            always, never = a.low >= b.high, a.high < b.low
        case "==":
            apart = a.high < b.low or b.high < a.low
            always, never = a.exact is not None and a.exact == b.exact, apart
        case "!=":
            apart = a.high < b.low or b.high < a.low
            always, never = apart, a.exact is not None and a.exact == b.exact
        case "and":
            always, never = a.low >= 1 and b.low >= 1, 0 in (a.exact, b.exact)
        case _:
            always, never = 1 in (a.exact, b.exact), a.exact == 0 and b.exact == 0
    return Interval(1 if always else 0, 0 if never else 1)


# ---------------------------------------------------------------------------------------------------------- normal form


def definitions(block: Block) -> dict[ValueId, Expr]:
    """The expressions of a unit's host values."""
    found = (op for op in every_op(block) if isinstance(op, Compute) and op.result.phase == "host")
    return {op.result.id: op.expr for op in found}


def walk_ranges(program: Program, walk: Walk) -> Ranges:
    """Ranges inside a walk: a parameter is what all its calls pass."""
    found: dict[ValueId, Interval] = {}
    for request in program.requests:
        outer = Ranges(program, definitions(request.body))
        for op in every_op(request.body):
            if isinstance(op, CallWalk) and op.walk == walk.name:
                for param, arg in zip(walk.params, op.args, strict=True):
                    passed = outer.of(arg)
                    found[param.id] = _union(found[param.id], passed) if param.id in found else passed
    return Ranges(program, definitions(walk.body), found)


def poly(expr: Expr, program: Program, defs: Mapping[ValueId, Expr] | None = None) -> Poly:
    """Sum of products with config values, lets and host values put in; what is not + - * is an atom."""
    match expr:
        case Var(ident) if defs and ident in defs:
            return poly(defs[ident], program, defs)
        case Lit(value) if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _clean({(): value})
        case Unary("-", x):
            return _scale(poly(x, program, defs), -1)
        case Binary("+", a, b):
            return _sum(poly(a, program, defs), poly(b, program, defs))
        case Binary("-", a, b):
            return _sum(poly(a, program, defs), _scale(poly(b, program, defs), -1))
        case Binary("*", a, b):
            return _product(poly(a, program, defs), poly(b, program, defs))
        case Ref("config", name):
            config = next((c for c in program.configs if c.name == name), None)
            if config is not None and config.expr is not None:
                return poly(config.expr, program, defs)
        case Ref("let", name):
            let = next((x for x in program.lets if x.name == name), None)
            if let is not None:
                return poly(let.expr, program, defs)
    return {(atom(expr),): 1}


def atom(expr: Expr) -> str:
    """A key that is equal for equal expressions."""
    match expr:
        case Ref(scope, name):
            return f"{scope}:{name}"
        case Var(ident):
            return f"%{ident}"
        case FieldOf(base, name):
            return f"{atom(base)}.{name}"
        case Index(base, indices):
            return f"{atom(base)}[{', '.join(repr(i) for i in indices)}]"
        case _:
            return repr(expr)


def _clean(terms: Mapping[tuple[str, ...], Number]) -> Poly:
    return {key: value for key, value in terms.items() if value != 0}


def _sum(a: Poly, b: Poly) -> Poly:
    out = dict(a)
    for key, value in b.items():
        out[key] = out.get(key, 0) + value
    return _clean(out)


def _scale(a: Poly, by: Number) -> Poly:
    return _clean({key: value * by for key, value in a.items()})


def _product(a: Poly, b: Poly) -> Poly:
    out: dict[tuple[str, ...], Number] = {}
    for left, x in a.items():
        for right, y in b.items():
            key = tuple(sorted((*left, *right)))
            out[key] = out.get(key, 0) + x * y
    return _clean(out)


def linear_in(p: Poly, name: str) -> tuple[Poly, Poly] | None:
    """(a, b) with p = a * name + b and neither holding `name`; None if there is no such form."""
    slope: dict[tuple[str, ...], Number] = {}
    rest: dict[tuple[str, ...], Number] = {}
    for key, value in p.items():
        power = key.count(name)
        if power > 1 or any(name in part for part in key if part != name):
            return None
        (slope if power else rest)[tuple(k for k in key if k != name)] = value
    return slope, rest


def constant(p: Poly) -> Number | None:
    """The number that the polynomial is, if it is one."""
    return p.get((), 0) if set(p) <= {()} else None


def leaves(expr: Expr) -> Iterator[Expr]:
    """The branches of a conditional expression, or the expression itself."""
    if isinstance(expr, IfThen):
        yield from leaves(expr.a)
        yield from leaves(expr.b)
    else:
        yield expr


def value_names(block: Block, params: Iterable[Value] = ()) -> dict[int, str]:
    """Names of the values of a unit, for `shown`."""
    named = {int(v.id): v.name for v in params}
    for op in every_op(block):
        for value in (*results_of(op), *(v for _, values in entries_of(op) for v in values)):
            named[int(value.id)] = value.name
    return named
