"""The names of a model: one namespace, each name declared once, every unknown one with its nearest neighbour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.ir.types import Expr, Struct, Type
from mstarc.passes.lower.order import binders
from mstarc.source import Span
from mstarc.syntax import ast

BUILTINS = ("given", "wants", "present", "last", "linspace", "shift", "guide", "len", "min", "max")
FORMS = ("sample", "noise", "next")  # built-ins that are operations, not parts of an expression
_FEW = 8  # names that a help lists
RESERVED = (*BUILTINS, *FORMS, "iter", "_")


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a name stands for: `kind` is the declaration's keyword; `tree` its syntax tree."""

    name: str
    kind: str
    span: Span
    tree: object = None


@dataclass
class Symbols:
    """Declared names of a model; `lost`: the words of declarations that could not be parsed.

    `types` and `values`: of configs, params and lets, once they are lowered.

    Requests are named by clients only, so their names are a namespace of their own.
    """

    report: Collector
    lost: frozenset[str] = frozenset()
    table: dict[str, Symbol] = field(default_factory=dict)
    requests: dict[str, Symbol] = field(default_factory=dict)
    types: dict[str, Type | None] = field(default_factory=dict)
    values: dict[tuple[str, str], Expr] = field(default_factory=dict)
    structs: dict[str, Struct] = field(default_factory=dict)

    def declare(self, name: ast.Name, kind: str, tree: object) -> bool:
        """Add a declaration; False (and MC001) if the name is taken."""
        if not self.allowed(name):
            return False
        table = self.requests if kind == "request" else self.table
        first = table.get(name.text)
        if first is not None:
            self.report.report(
                rules.MC001,
                f"`{name.text}` is declared twice",
                name.span,
                f"this {kind} has the name of the {first.kind}" if kind != first.kind else "declared again",
                secondary=(Label(first.span, f"first declared here as a {first.kind}"),),
                subject=name.text,
            )
            return False
        table[name.text] = Symbol(name.text, kind, name.span, tree)
        return True

    def allowed(self, name: ast.Name) -> bool:
        """Whether a name may be given; False (and MC001) for the names of built-ins."""
        if name.text not in RESERVED:
            return True
        what = "discards a value" if name.text == "_" else "is a built-in and cannot be declared again"
        self.report.report(rules.MC001, f"`{name.text}` {what}", name.span, subject=name.text)
        return False

    def owns(self, name: ast.Name, tree: object) -> bool:
        """Whether this declaration is the one that has its name."""
        found = (self.table.get(name.text), self.requests.get(name.text))
        return any(symbol is not None and symbol.tree is tree for symbol in found)

    def find(self, name: ast.Name, *kinds: str) -> Symbol | None:
        """The declaration of a name, which must be of one of the kinds; MC002 and None otherwise."""
        symbol = self.table.get(name.text)
        if symbol is not None and symbol.kind in kinds:
            return symbol
        wanted = " or ".join(kinds)
        if symbol is not None:
            self.report.report(
                rules.MC002,
                f"`{name.text}` is a {symbol.kind}, not a {wanted}",
                name.span,
                f"a {wanted} is due here",
                secondary=(Label(symbol.span, "declared here"),),
                subject=name.text,
            )
            return None
        self.unknown(name, wanted, (other for other, found in self.table.items() if found.kind in kinds))
        return None

    def unknown(self, name: ast.Name, wanted: str, known: Iterable[str], owner: str = "", exits: bool = False) -> None:
        """MC002: a name that stands for nothing; `owner` is what has no such thing. exits: it decides a `stop when`, which is MC205.

        Nothing is said of a name that may belong to a declaration that did not parse: one that is a word of it or near no other.
        """
        names = list(known)
        hint = nearest(name.text, names)
        if name.text.split(".")[0] in self.lost and (not owner or wanted == "member"):
            return
        if hint is None and not owner and self.lost:
            return
        message = f"{owner} has no {wanted} `{name.text}`" if owner else f"there is no {wanted} `{name.text}`"
        labels, other = self._elsewhere(name) if wanted == "value" and not owner else ((), None)
        hint = other or hint or _all_of(names if owner or wanted == "modality" else ())
        if exits:
            message = f"`stop when` tests `{name.text}`, and nothing here binds that"
            hint = hint or "bind it in the body before this, or carry it into the loop"
        rule = rules.MC205 if exits else rules.MC002
        self.report.report(rule, message, name.span, secondary=labels, help=hint, subject=name.text)

    def _elsewhere(self, name: ast.Name) -> tuple[tuple[Label, ...], str | None]:
        """Of a value that another walk or a request has: where it is bound, and how it gets here."""
        for symbol in (*self.table.values(), *self.requests.values()):
            if isinstance(symbol.tree, ast.Walk | ast.Request) and not _within(name.span, symbol.tree.span):
                for bound in binders(symbol.tree):
                    if bound.text == name.text:
                        label = Label(bound.span, f"this `{name.text}` is of {symbol.kind} `{symbol.name}`")
                        return (label,), _handed(name.text, symbol)
        return (), None

    def setting(self, name: ast.Name, what: str, known: Iterable[str]) -> None:
        """MC013: a word that is not among those a clause has."""
        words = tuple(known)
        self.report.report(
            rules.MC013,
            f"{what} has no `{name.text}`",
            name.span,
            notes=(f"it has {', '.join(f'`{word}`' for word in words)}",) if words else (),
            help=nearest(name.text, words),
            subject=name.text,
        )


def _within(inner: Span, outer: Span) -> bool:
    return inner.file == outer.file and outer.start <= inner.start and inner.end <= outer.end


def _handed(name: str, owner: Symbol) -> str:
    """How a value of another walk, or of a request, gets to where it is used."""
    if isinstance(owner.tree, ast.Walk):
        result = f"`walk {owner.name}(…) -> {name}: TYPE`, and in the request `{name} = {owner.name}(…)`"
        return f"values pass between walks as results and params: {result}"
    return f"values pass from a request to its walks as params: hand `{name}` to the walk"


def _all_of(names: Sequence[str]) -> str | None:
    """What there is, where that is little."""
    return (
        f"{'there are' if len(names) > 1 else 'there is'} {', '.join(f'`{name}`' for name in names)}"
        if 0 < len(names) <= _FEW
        else None
    )


def nearest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean ...`, or None if nothing is near."""
    close = get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None
