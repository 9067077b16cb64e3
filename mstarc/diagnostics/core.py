"""Diagnostic objects and the collector. Checks report and go on; they never raise for a user's mistake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from mstarc.source import Span

Severity: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table in `rules.py`. `silences`: codes that this one makes redundant on the same name. `help`: what to do where a
    finding does not say it more exactly."""

    code: str
    name: str
    severity: Severity
    summary: str
    silences: tuple[str, ...] = ()
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Label:
    """A place and what it says there."""

    span: Span
    text: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """Edits that mend a finding. safety: `safe` changes no meaning, `unsafe` may, `placeholder` leaves a blank to fill in."""

    title: str
    edits: tuple[tuple[Span, str], ...]
    safety: Literal["safe", "unsafe", "placeholder"]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: where, what, and what to do about it."""

    rule: Rule
    message: str
    primary: Label
    secondary: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None
    fix: Fix | None = None
    subject: str = ""  # the user's name it is about: cascades on one subject are silenced


@dataclass
class Collector:
    """Collects, sorts by (file, start, code), removes duplicates and cascades."""

    _found: list[Diagnostic] = field(default_factory=list)

    def report(self, rule: Rule, message: str, at: Span, label: str = "", **more: object) -> None:
        """Report one finding. `more` are the other fields of `Diagnostic` (secondary, notes, help, fix, subject)."""
        found = {**more, "help": more.get("help") or rule.help}
        self._found.append(Diagnostic(rule, message, Label(at, label), **found))  # type: ignore[arg-type]

    def findings(self) -> tuple[Diagnostic, ...]:
        """All findings, sorted, without duplicates and without those that another one silences on the same subject."""
        silenced = {(code, d.subject) for d in self._found for code in d.rule.silences if d.subject}
        kept = {
            (d.rule.code, d.primary.span, d.message): d
            for d in self._found
            if not (d.subject and (d.rule.code, d.subject) in silenced)
        }
        return tuple(sorted(kept.values(), key=lambda d: (d.primary.span.file, d.primary.span.start, d.rule.code)))

    @property
    def failed(self) -> bool:
        """Whether any error was found."""
        return any(d.rule.severity == "error" for d in self._found)
