"""From files to findings: reads each model and its binding, runs every check, applies `allow` comments. The CLI and tests use it.

Nothing here raises for a user's mistake, and nothing lets an exception of the compiler out: that becomes finding MC000.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mstarc.binding import Bound, check_binding, read_binding, values_given, with_config
from mstarc.binding_file import Binding
from mstarc.binding_sizes import check_config_sizes
from mstarc.binding_use import check_config_use
from mstarc.checked import Checked, find_models, joined
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector, Diagnostic, Fix
from mstarc.ir.core import Program
from mstarc.ir.errors import PassFailed
from mstarc.passes.checks import run_checks
from mstarc.source import SourceFile, Span

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """One model that was read and checked. `program` and `binding` are None where they could not be read."""

    path: str
    program: Program | None
    binding: Binding | None
    checked: Checked

    @property
    def bound(self) -> Program | None:
        """The program with the binding's config values in place: what passes work on."""
        if self.program is None or self.binding is None:
            return self.program
        return with_config(self.program, self.binding)

    @property
    def failed(self) -> bool:
        """Whether it cannot be compiled."""
        return self.program is None or any(d.rule.severity == "error" for d in self.checked.findings)


def check(paths: Sequence[str | Path]) -> Checked:
    """Check files, and folders with every model under them, in the order of names."""
    files, missing = find_models(paths)
    return joined((load_model(path).checked for path in files), missing)


def load_model(path: str | Path, texts: Mapping[str, str] | None = None) -> Model:
    """Read one model with the binding beside it and run every check. `texts`: path -> text of files that are open in an editor."""
    name = str(path)
    sources: dict[str, SourceFile] = {}
    report = Collector()
    program: Program | None = None
    bound: Bound | None = None
    faults: tuple[PassFailed, ...] = ()
    try:
        program, bound = _load(name, texts or {}, sources, report)
    except PassFailed as error:
        error.model = name
        faults = (error,)
        _internal(error, name, report)
    findings = tuple(_allowed(report.findings(), sources.get(name)))
    return Model(name, program, bound.binding if bound else None, Checked(findings, sources, (), faults))


def _load(
    name: str, texts: Mapping[str, str], sources: dict[str, SourceFile], report: Collector
) -> tuple[Program | None, Bound | None]:
    """Program and binding, each after its own checks."""
    from mstarc import frontend

    source = read_source(name, report, texts)
    if source is None:
        return None, None
    sources[name] = source
    bound = _guard("read_binding", lambda: _read_beside(name, texts, sources, report))
    given = values_given(bound) if bound is not None else {}
    program, found, _ = _guard("frontend", lambda: frontend.load_text(name, source.text, given))
    for diagnostic in found.findings():
        _forward(diagnostic, report)
    if program is None:
        return None, bound
    if bound is not None:
        _guard("check_binding", lambda: check_binding(bound, program, report))
        _guard("check_config_sizes", lambda: check_config_sizes(bound, program, report))
        _guard("check_config_use", lambda: check_config_use(bound, program, report))
    checked = with_config(program, bound.binding) if bound is not None else program
    if not found.failed:
        run_checks(checked, report)
    return program, bound


def _read_beside(
    name: str, texts: Mapping[str, str], sources: dict[str, SourceFile], report: Collector
) -> Bound | None:
    beside = Path(name).with_suffix(".yaml")
    if str(beside) not in texts and not beside.is_file():
        message = f"there is no `{beside.name}` beside this model, so nothing says what its nodes are"
        report.report(
            rules.MC908, message, Span(name, 0, 0), help="write one with `config`, `components` and `externs`"
        )
        return None
    source = read_source(str(beside), report, texts)
    if source is None:
        return None
    sources[source.path] = source
    return read_binding(source, report)


def read_source(name: str, report: Collector, texts: Mapping[str, str] | None = None) -> SourceFile | None:
    """A file as text, or None after MC012. `texts`: as for `load_model`."""
    if texts and name in texts:
        return SourceFile(name, texts[name])
    try:
        return SourceFile(name, Path(name).read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        report.report(rules.MC012, f"{name} is not UTF-8 text: byte {error.start} cannot be read", Span(name, 0, 0))
    except OSError as error:
        report.report(rules.MC012, f"{name} cannot be read: {error.strerror or error}", Span(name, 0, 0))
    return None


def _guard(stage: str, step: Callable[[], T]) -> T:
    """Name the stage in whatever it raises."""
    try:
        return step()
    except Exception as error:
        raise PassFailed(stage, error) from error


def _internal(error: PassFailed, name: str, report: Collector) -> None:
    note = "this is a fault of mstarc, not of the model"
    report.report(rules.MC000, f"internal error in {error}", Span(name, 0, 0), notes=(note,))


def _forward(d: Diagnostic, report: Collector) -> None:
    more = {"secondary": d.secondary, "notes": d.notes, "help": d.help, "fix": d.fix, "subject": d.subject}
    report.report(d.rule, d.message, d.primary.span, d.primary.text, **more)


# ------------------------------------------------------------------------------------------------------ allow comments

_ALLOW = re.compile(r"#\s*mstarc:\s*allow\b(?P<rest>.*)$")
_FORM = re.compile(r"^\s+(?P<code>MC\d{3})\s+--\s+\S.*$")


@dataclass(frozen=True, slots=True)
class _Allow:
    """`# mstarc: allow MC006 -- reason`: covers its own line, or the next one if it stands alone."""

    code: str
    line: int
    span: Span


def _allowed(findings: Sequence[Diagnostic], source: SourceFile | None) -> list[Diagnostic]:
    """Findings without the warnings that a comment allows, and with what is wrong with the comments."""
    if source is None:
        return list(findings)
    report = Collector()
    allows = list(_allows(source, report))
    used: set[_Allow] = set()
    kept = []
    for diagnostic in findings:
        span = diagnostic.primary.span
        line = source.line_of(span.start) if span.file == source.path else 0
        match = next((a for a in allows if a.code == diagnostic.rule.code and a.line == line), None)
        if match is None or diagnostic.rule.severity != "warning":
            kept.append(diagnostic)
        else:
            used.add(match)
    clean = not any(d.rule.severity == "error" for d in findings)
    for allow in allows:
        if allow not in used and clean:
            report.report(
                rules.MC015,
                f"nothing here is reported as {allow.code}",
                allow.span,
                help="delete the comment",
                fix=Fix("delete the comment", ((_with_blanks(allow.span, source), ""),), "safe"),
            )
    return sorted((*kept, *report.findings()), key=lambda d: (d.primary.span.file != source.path, d.primary.span.start))


def _with_blanks(span: Span, source: SourceFile) -> Span:
    """A comment with the blanks before it; with its line, if there is nothing else on it."""
    data = source.text.encode()
    start = len(data[: span.start].rstrip(b" \t"))
    alone = data[:start].endswith(b"\n") or start == 0
    return Span(span.file, start, min(span.end + 1, len(data)) if alone else span.end)


def _allows(source: SourceFile, report: Collector) -> Iterable[_Allow]:
    offset = 0
    for number, text in enumerate(source.text.split("\n"), 1):
        start = _comment(text)
        match = _ALLOW.search(text, start) if start is not None else None
        if match is not None and start is not None:
            begin = offset + len(text[: match.start()].encode())
            span = Span(source.path, begin, offset + len(text.encode()))
            alone = not text[:start].strip()
            allow = _parsed(match["rest"], number + 1 if alone else number, span, report)
            if allow is not None:
                yield allow
        offset += len(text.encode()) + 1


def _comment(line: str) -> int | None:
    """Where the comment of a line starts."""
    quoted = False
    for position, char in enumerate(line):
        if char == '"':
            quoted = not quoted
        elif char == "#" and not quoted:
            return position
    return None


def _parsed(rest: str, line: int, span: Span, report: Collector) -> _Allow | None:
    form = _FORM.match(rest)
    if form is None:
        message = "an `allow` comment has the form `# mstarc: allow MC006 -- reason`"
        report.report(rules.MC014, message, span, "the code or the reason is missing")
        return None
    rule = rules.RULES.get(form["code"])
    if rule is None or rule.severity != "warning":
        what = "is not a code" if rule is None else f"is an {rule.severity}, and only warnings can be allowed"
        report.report(rules.MC014, f"{form['code']} {what}", span)
        return None
    return _Allow(form["code"], line, span)
