"""Use: MC006 on configs, params and lets that nothing reads. Takes a program; reports to the collector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.ir.core import Program
from mstarc.ir.types import Ref


def check_use(program: Program, report: Collector) -> None:
    """One that only another unread one reads counts as read: its own finding comes when that one is deleted."""
    read = set(_names(program))
    for kind, declared in (("config", program.configs), ("param", program.params), ("let", program.lets)):
        for decl in declared:
            if (kind, decl.name) not in read:
                message = f"nothing reads the {kind} `{decl.name}`"
                help_text = "delete it" if kind != "param" else "delete it: a client that sets it changes nothing"
                report.report(rules.MC006, message, decl.span, subject=decl.name, help=help_text)


def _names(node: Any) -> Iterator[tuple[str, str]]:
    """Scope and name of each reference below a node of the IR."""
    if isinstance(node, Ref):
        yield node.scope, node.name
    elif isinstance(node, tuple):
        for part in node:
            yield from _names(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _names(getattr(node, field.name))
