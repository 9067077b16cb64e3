"""The names of a model: one namespace, each name declared once, every unknown one with its nearest neighbour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Label
from mstarc.source import Span
from mstarc.syntax import ast

BUILTINS = ("given", "wants", "present", "last", "linspace", "shift", "guide", "len", "min", "max")
FORMS = ("sample", "noise", "next")  # built-ins that are statements' right sides, not values of expressions


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a name stands for: `kind` is the declaration's keyword; `tree` its syntax tree (None for builtins and dims)."""

    name: str
    kind: str
    span: Span
    tree: object = None


class Symbols:
    """Declared names of a model."""

    def __init__(self, report: Collector, complete: bool = True) -> None:
        self.report = report
        self.complete = complete
        self.table: dict[str, Symbol] = {}

    def declare(self, name: ast.Name, kind: str, tree: object) -> bool:
        """Add a declaration; False (and a finding) if the name is taken."""
        if name.text in BUILTINS or name.text in FORMS:
            self.report.report(
                rules.MC001, f"`{name.text}` is a built-in and cannot be declared again", name.span, subject=name.text
            )
            return False
        first = self.table.get(name.text)
        if first is not None:
            self.report.report(
                rules.MC001,
                f"`{name.text}` is declared twice",
                name.span,
                f"this {kind} has the name of the {first.kind}",
                secondary=(Label(first.span, f"first declared here as a {first.kind}"),),
                subject=name.text,
            )
            return False
        self.table[name.text] = Symbol(name.text, kind, name.span, tree)
        return True

    def find(self, name: ast.Name, *kinds: str) -> Symbol | None:
        """The declaration of a name, which must be of one of the kinds; a finding and None otherwise."""
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

    def unknown(self, name: ast.Name, wanted: str, known: Iterable[str], owner: str = "") -> None:
        """Report a name that stands for nothing; `owner` is what has no such thing.

        Where declarations did not parse, a name without a near neighbour may be theirs: nothing is said.
        """
        hint = nearest(name.text, known)
        if hint is None and not self.complete:
            return
        message = f"{owner} has no {wanted} `{name.text}`" if owner else f"there is no {wanted} `{name.text}`"
        self.report.report(rules.MC002, message, name.span, help=hint, subject=name.text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """`did you mean ...`, or None if nothing is near."""
    close = get_close_matches(name, sorted(set(known)), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else None
