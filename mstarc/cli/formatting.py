"""`mstarc fmt`: lay out `.walk` files. Takes paths, or `-` for standard input; rewrites files, shows how they would change, or tells.

A file is written beside itself and then renamed over the old one, so whatever happens it holds its old text or its new one.
"""

from __future__ import annotations

import difflib
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mstarc.checked import find_models
from mstarc.cli.checking import no_model
from mstarc.cli.findings import painted_diff, write_findings
from mstarc.cli.guard import FINDINGS, OK, USAGE, Failure, say
from mstarc.diagnostics.core import Collector
from mstarc.source import SourceFile
from mstarc.syntax.format import format_walk
from mstarc.workspace import read_source

STDIN = "-"


@dataclass(frozen=True, slots=True)
class FormatCall:
    """The arguments of one `fmt`. With `check` or `diff` no file is written."""

    paths: Sequence[str]
    check: bool = False
    diff: bool = False


def run_format(call: FormatCall) -> int:
    """Status 1: a text does not parse, or with `check` it is not in canonical layout. 2: a path names no model."""
    if STDIN in call.paths:
        if len(call.paths) > 1:
            raise Failure("`-` is standard input and stands alone", USAGE)
        return _standard_input(call)
    files, missing = find_models(call.paths)
    for path in missing:
        say(f"error: {no_model(path)}")
    changed = unread = 0
    status = USAGE if missing else OK
    for name in files:
        report = Collector()
        source = read_source(name, report)
        text = None if source is None else format_walk(source, report)
        if source is None or text is None:
            write_findings(report.findings(), {} if source is None else {name: source})
            status = max(status, FINDINGS)
            unread += 1
        elif text != source.text:
            changed += 1
            _change(call, source, text)
    _summary(call, len(files) - unread, changed)
    return max(status, FINDINGS) if call.check and changed else status


def _standard_input(call: FormatCall) -> int:
    """The text to standard output; with `check` or `diff`, what these say."""
    report = Collector()
    try:
        source = SourceFile("<stdin>", sys.stdin.buffer.read().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Failure(f"standard input is not UTF-8 text: byte {error.start} cannot be read") from None
    text = format_walk(source, report)
    if text is None:
        write_findings(report.findings(), {source.path: source})
        return FINDINGS
    changed = text != source.text
    if changed and (call.check or call.diff):
        _change(call, source, text)
    elif not (call.check or call.diff):
        sys.stdout.write(text)
    return FINDINGS if call.check and changed else OK


def _change(call: FormatCall, source: SourceFile, text: str) -> None:
    if call.diff:
        old, new = source.text.split("\n"), text.split("\n")
        lines = difflib.unified_diff(old, new, source.path, f"{source.path} (formatted)", lineterm="")
        sys.stdout.write(painted_diff("\n".join(lines)) + "\n")
        sys.stdout.flush()
    if call.check:
        say(f"would change: {source.path}")
    elif not call.diff:
        replace_text(Path(source.path), text)
        say(f"formatted: {source.path}")


def _summary(call: FormatCall, number: int, changed: int) -> None:
    if number and not changed:
        say(f"{number} file{'' if number == 1 else 's'} in canonical layout")
    elif changed and call.check:
        say("  run: mstarc fmt " + " ".join(call.paths))


def replace_text(path: Path, text: str) -> None:
    """Give a file, or the file that a link points to, a new text in one step. Keeps its permissions. Raises Failure (usage)."""
    target = Path(os.path.realpath(path))
    draft = ""
    try:
        if not os.access(target, os.W_OK):
            raise PermissionError(13, "it may not be written")
        handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, target.stat().st_mode & 0o7777)
        os.replace(draft, target)
    except OSError as error:
        if draft:
            Path(draft).unlink(missing_ok=True)
        raise Failure(f"`{path}` cannot be written: {error.strerror or error}", USAGE) from None


__all__ = ["FormatCall", "replace_text", "run_format"]
