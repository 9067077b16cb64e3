"""Dims of one walk or request: their equations, solved as calls add them. Takes expressions; gives expressions without solved dims.

A dim is `declared` (named in a signature: it stands for any length, so two different ones are never equal) or `open` (a length
that only a call decides: an op's own free dim, what an extern returns, what a loop collects). Open dims are solved for; the
others must be equal as polynomials. A config or param may turn out to be a number that is written elsewhere, so the two may be
equal; two different ones are not expected to be, and a declared dim is no fixed number. Where the binding gives the number of a
config (`Known`), it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import TypeAlias

from mstarc.ir.types import Binary, Chunk, Expr, Lit, Ref, Struct, Tensor, Type, Unary, Var
from mstarc.ir.visit import every_expr
from mstarc.passes.lower.known import Known

Monomial: TypeAlias = tuple[str, ...]  # sorted atoms
Polynomial: TypeAlias = dict[Monomial, int]


@dataclass
class Dims:
    """The dims of one unit. An open dim's name holds a `#` until `finish` gives it a plain one."""

    known: Known
    declared: set[str] = field(default_factory=set)
    _solved: dict[str, Expr] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)  # open dim -> the name it would like to have
    _equations: list[tuple[Expr, Expr]] = field(default_factory=list)
    _final: dict[str, str] = field(default_factory=dict)
    _atoms: dict[str, Expr] = field(default_factory=dict)
    _conflicts: list[str] = field(default_factory=list)

    def declare(self, name: str) -> Ref:
        """A dim that a signature names; the same name is the same dim."""
        self.declared.add(name)
        return Ref("dim", name)

    def declare_new(self, name: str) -> Ref:
        """A declared dim that is different from all others: the dims of a struct that a signature takes."""
        new, count = name, 1
        while new in self.declared:
            count += 1
            new = f"{name}_{count}"
        return self.declare(new)

    def fresh(self, name: str) -> Ref:
        """A new open dim."""
        unique = f"{name}#{len(self._open)}"
        self._open[unique] = name
        return Ref("dim", unique)

    def resolve(self, expr: Expr) -> Expr:
        """The expression with solved dims put in."""
        match expr:
            case Ref("dim", name):
                solved = self._solved.get(name)
                return expr if solved is None else self.resolve(solved)
            case Unary(op, x):
                return Unary(op, self.resolve(x))
            case Binary(op, a, b):
                return Binary(op, self.resolve(a), self.resolve(b))
            case _:
                return expr

    def unify(self, a: Expr, b: Expr) -> bool:
        """Add the equation a = b; False if it has no solution."""
        fits = self._solve(a, b)
        waiting, self._equations = self._equations, []
        for left, right in waiting:
            fits = self._solve(left, right) and fits
        return fits

    def _solve(self, a: Expr, b: Expr) -> bool:
        a, b = self.resolve(a), self.resolve(b)
        for side, other in ((b, a), (a, b)):
            if isinstance(side, Ref) and side.name in self._open and not mentions(other, side.name):
                self._solved[side.name] = other
                return True
        difference = _add(self.polynomial(a), self.polynomial(b), -1)
        if not difference:
            return True
        leaves = [leaf for side in (a, b) for leaf in every_expr(side) if isinstance(leaf, Ref | Var)]
        unknown = [leaf.name for leaf in leaves if isinstance(leaf, Ref) and leaf.name in self._open]
        if unknown:
            if difference.get((), 0) % gcd(*(count for key, count in difference.items() if key)):
                return False  # no whole numbers solve it
            if not any(self._isolate(name, difference) for name in unknown):
                self._equations.append((a, b))
            return True
        return self._may_vanish(difference, (a, b))

    def _isolate(self, name: str, difference: Polynomial) -> bool:
        """Solve c * name + rest = 0 if c divides the rest and the rest has no `name`."""
        key = f"dim:{name}"
        count = difference.get((key,), 0)
        rest = {m: -c for m, c in difference.items() if m != (key,)}
        if not count or any(key in atom for m in rest for atom in m) or any(c % count for c in rest.values()):
            return False
        self._solved[name] = self._expression({m: c // count for m, c in rest.items()})
        return True

    def _may_vanish(self, difference: Polynomial, sides: tuple[Expr, Expr]) -> bool:
        """Whether what is left can be zero: only if values decide it that the model does not hold."""
        if set(difference) == {()}:
            return False
        leaves = [
            [leaf for leaf in every_expr(side) if isinstance(leaf, Ref | Var)] for side in map(self._expanded, sides)
        ]
        if any(isinstance(leaf, Var) for side in leaves for leaf in side):
            return True
        named = [side for side in leaves if side]
        if len(named) != 1 or any(
            not isinstance(leaf, Ref) or leaf.scope not in ("config", "param") for leaf in named[0]
        ):
            return False
        conflict = self.known.conflict(*sides)
        self._conflicts += [conflict] if conflict else []
        return not conflict

    def why(self) -> str:
        """What the last equations failed by, to be put behind the message; "" unless numbers of configs decided."""
        told, self._conflicts = "; ".join(dict.fromkeys(self._conflicts)), []
        return f": {told}" if told else ""

    # ------------------------------------------------------------------------------------------------------- polynomials

    def polynomial(self, expr: Expr) -> Polynomial:
        """Sum of products over atoms: names, and sub-expressions that are neither sum nor product."""
        match self._expanded(expr):
            case Lit(value) if isinstance(value, int):
                return {(): int(value)} if value else {}
            case Unary("-", x):
                return {m: -c for m, c in self.polynomial(x).items()}
            case Binary("+", a, b):
                return _add(self.polynomial(a), self.polynomial(b), 1)
            case Binary("-", a, b):
                return _add(self.polynomial(a), self.polynomial(b), -1)
            case Binary("*", a, b):
                return _times(self.polynomial(a), self.polynomial(b))
            case other:
                return {(self._atom(other),): 1}

    def _expanded(self, expr: Expr) -> Expr:
        if isinstance(expr, Ref) and expr.scope in ("config", "let"):
            return self.known.meaning(expr) or expr
        return expr

    def _atom(self, expr: Expr) -> str:
        if isinstance(expr, Ref):
            text = f"{expr.scope}:{expr.name}"
        elif isinstance(expr, Binary):
            sides = (sorted(self.polynomial(side).items()) for side in (expr.a, expr.b))
            text = f"({expr.op}){'|'.join(map(repr, sides))}"
        else:
            text = repr(expr)
        self._atoms[text] = expr
        return text

    def _expression(self, p: Polynomial) -> Expr:
        """A polynomial as an expression."""
        total: Expr | None = None
        for monomial, count in sorted(p.items(), reverse=True):
            term: Expr | None = None
            for name in monomial:
                term = self._atoms[name] if term is None else Binary("*", term, self._atoms[name])
            size = Lit(abs(count))
            term = size if term is None else term if abs(count) == 1 else Binary("*", size, term)
            if total is None:
                total = term if count > 0 else Unary("-", term)
            else:
                total = Binary("+" if count > 0 else "-", total, term)
        return total if total is not None else Lit(0)

    # ------------------------------------------------------------------------------------------------------------- types

    def resolved(self, kind: Type) -> Type:
        """The type with solved dims put in."""
        return map_dims(kind, self.resolve)

    def finished(self, kind: Type) -> Type:
        """The type with solved dims put in and plain names for what stays open."""
        return map_dims(kind, lambda expr: _renamed(self.resolve(expr), self._plain))

    def _plain(self, name: str) -> str:
        if name not in self._open:
            return name
        if name not in self._final:
            taken = self.declared | set(self._final.values())
            base, new, count = self._open[name], self._open[name], 1
            while new in taken:
                count += 1
                new = f"{base}_{count}"
            self._final[name] = new
        return self._final[name]

    def unify_all(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Add all equations of two equally long rows, so that one that fails does not hide what others tell."""
        fits = len(left) == len(right)
        for a, b in zip(left, right, strict=False):
            fits = self.unify(a, b) and fits
        return fits

    def same(self, a: Type, b: Type) -> bool:
        """Unify the dims of two types of one form."""
        match a, b:
            case Tensor(), Tensor():
                return self.unify_all(a.dims, b.dims) if len(a.dims) == len(b.dims) else False
            case Struct(), Struct():
                fits = a.name == b.name
                for (_, left), (_, right) in zip(a.fields, b.fields, strict=False):
                    fits = self.same(left, right) and fits
                return fits
            case _:
                return True


def map_dims(kind: Type, change: Callable[[Expr], Expr]) -> Type:
    """The type with each dim changed."""
    match kind:
        case Tensor(dims=dims) if dims:
            return replace(kind, dims=tuple(change(dim) for dim in dims))
        case Struct(fields=fields):
            return replace(kind, fields=tuple((name, map_dims(inner, change)) for name, inner in fields))
        case Chunk(item=item):
            return replace(kind, item=map_dims(item, change))
        case _:
            return kind


def substituted(kind: Type, bound: Callable[[str], Expr | None]) -> Type:
    """The type with free dims replaced by what `bound` gives for their names."""

    def change(expr: Expr) -> Expr:
        match expr:
            case Ref("dim", name):
                return bound(name) or expr
            case Unary(op, x):
                return Unary(op, change(x))
            case Binary(op, a, b):
                return Binary(op, change(a), change(b))
            case _:
                return expr

    return map_dims(kind, change)


def free_dims(kind: Type) -> Iterator[str]:
    """Names of the free dims of a type, in order of appearance, with repetitions."""
    found: list[str] = []

    def look(expr: Expr) -> Expr:
        found.extend(leaf.name for leaf in every_expr(expr) if isinstance(leaf, Ref) and leaf.scope == "dim")
        return expr

    map_dims(kind, look)
    return iter(found)


def mentions(expr: Expr, dim: str) -> bool:
    """Whether a dim stands in an expression."""
    return any(isinstance(leaf, Ref) and leaf.scope == "dim" and leaf.name == dim for leaf in every_expr(expr))


def _renamed(expr: Expr, plain: Callable[[str], str]) -> Expr:
    match expr:
        case Ref("dim", name):
            return Ref("dim", plain(name))
        case Unary(op, x):
            return Unary(op, _renamed(x, plain))
        case Binary(op, a, b):
            return Binary(op, _renamed(a, plain), _renamed(b, plain))
        case _:
            return expr


def _add(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    total = dict(a)
    for monomial, count in b.items():
        total[monomial] = total.get(monomial, 0) + sign * count
    return {monomial: count for monomial, count in total.items() if count}


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for ma, ca in a.items():
        for mb, cb in b.items():
            key = tuple(sorted((*ma, *mb)))
            total[key] = total.get(key, 0) + ca * cb
    return {monomial: count for monomial, count in total.items() if count}
