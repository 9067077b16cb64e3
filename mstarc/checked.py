"""What a check found, and which files it is about. Imports nothing heavy: a check that is remembered starts from here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Diagnostic
from mstarc.ir.errors import PassFailed
from mstarc.source import SourceFile

OK, FINDINGS, USAGE, INTERNAL = 0, 1, 2, 70


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found. `missing`: paths that name no model. `faults`: what the compiler itself raised, each a finding MC000, too."""

    findings: tuple[Diagnostic, ...] = ()
    sources: dict[str, SourceFile] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    faults: tuple[PassFailed, ...] = field(default=(), compare=False)

    def exit_code(self, deny_warnings: bool = False) -> int:
        """0 clean, 1 findings, 2 a path names no model, 70 the compiler failed."""
        found = {d.rule.severity for d in self.findings}
        if any(d.rule is rules.MC000 for d in self.findings):
            return INTERNAL
        if self.missing:
            return USAGE
        return FINDINGS if "error" in found or (deny_warnings and "warning" in found) else OK


def find_models(paths: Iterable[str | Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(.walk files, paths that are none and hold none), each once."""
    files: dict[str, None] = {}
    missing = []
    for path in map(Path, paths):
        here = sorted(path.rglob("*.walk")) if path.is_dir() else [path] if path.is_file() else []
        if not here:
            missing.append(str(path))
        files |= dict.fromkeys(map(str, here))
    return tuple(files), tuple(missing)


def joined(parts: Iterable[Checked], missing: tuple[str, ...]) -> Checked:
    """The findings of several models as one."""
    findings: list[Diagnostic] = []
    sources: dict[str, SourceFile] = {}
    faults: list[PassFailed] = []
    for part in parts:
        findings += part.findings
        sources |= part.sources
        faults += part.faults
    return Checked(tuple(findings), sources, missing, tuple(faults))
