"""A generated package that is not as the compiler wrote it. Takes its folder; reports MC016: what is wrong, where, and what is due there.

What was to be there is known if the package's spec is there and as it was; else only what is wrong is told.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mstarc.cli.findings import write_findings
from mstarc.diagnostics import rules
from mstarc.diagnostics.core import Collector
from mstarc.plan.model import NAME
from mstarc.source import Span

Step: TypeAlias = str | int
_SHOWN = 60  # characters of a value
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a file differs from what the spec gives: characters, and what is to be there."""

    file: Path
    start: int
    stop: int
    due: str


def report_damage(folder: Path, why: str, at: int | None = None) -> None:
    """Write the finding. at: the character of plan.json where it cannot be read, if that is known."""
    spec = _spec_of(folder)
    found = _difference(folder, spec) if spec is not None and at is None else None
    report = Collector()
    report.report(
        rules.MC016,
        why,
        _span(folder / NAME, at or 0, (at or 0) + 1) if found is None else _span(found.file, found.start, found.stop),
        notes=() if found is None else (f"the spec gives {found.due} here",),
        help=f"write the package anew: mstarc compile {'SPEC' if spec is None else spec} -o {folder}",
        subject=str(folder),
    )
    write_findings(report.findings())


def differs(folder: Path) -> bool:
    """Whether a package is not what its spec gives, or nothing says which spec that is."""
    from mstarc.codegen.package import check_package

    return bool(check_package(folder)[0])


def _span(file: Path, start: int, stop: int) -> Span:
    text = _text(file)
    return Span(str(file), len(text[:start].encode()), len(text[:stop].encode()))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _spec_of(folder: Path) -> Path | None:
    """The spec that plan.json names, readable as a whole or not."""
    said = re.search(r'"path"\s*:\s*("[^"\n]*\.walk")', _text(folder / NAME))
    path = Path(os.path.normpath(folder / json.loads(said[1]))) if said else None
    return path if path is not None and path.is_file() else None


def _difference(folder: Path, spec: Path) -> Difference | None:
    """None if the spec is another than the package was made from, or the package is as it gives."""
    from mstarc.codegen.package import compile_model

    compiled = compile_model(spec, folder)
    now = compiled.files.get(NAME)
    if now is None or compiled.plan is None:
        return None
    text = _text(folder / NAME)
    try:
        tree, due = json.loads(text), json.loads(now)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or tree.get("spec") != due["spec"]:
        return None
    found = _first(tree, due, ())
    if found is not None:
        path, wanted = found
        start, stop = _place(text, path)
        return Difference(folder / NAME, start, stop, "nothing" if wanted is _ABSENT else _short(wanted))
    for name, wanted_text in sorted(compiled.files.items()):
        has = _text(folder / name)
        if has != wanted_text:
            return _first_line(folder / name, has, wanted_text)
    return None


def _first(found: Any, due: Any, path: tuple[Step, ...]) -> tuple[tuple[Step, ...], Any] | None:
    """The path of the first difference of two trees, and what is due there. A part that is not there stands for the one around it."""
    if isinstance(found, dict) and isinstance(due, dict):
        steps: list[Step] = sorted({*found, *due})
        has, wants = found, due
    elif isinstance(found, list) and isinstance(due, list):
        steps = list(range(max(len(found), len(due))))
        has, wants = dict(enumerate(found)), dict(enumerate(due))
    else:
        return None if found == due and type(found) is type(due) else (path, due)
    for step in steps:
        if step not in has:
            return path, due
        deeper = _first(has[step], wants.get(step, _ABSENT), (*path, step))
        if deeper is not None:
            return deeper
    return None


def _place(text: str, path: Sequence[Step]) -> tuple[int, int]:
    """Where the value at a path stands in a JSON text."""
    decode = json.JSONDecoder().raw_decode
    at = _blank(text, 0)
    for step in path:
        named, at, place = text[at] == "{", _blank(text, at + 1), 0
        while True:
            key: Step = place
            if named:
                key, at = decode(text, at)
                at = _blank(text, _blank(text, at) + 1)  # behind the colon
            if key == step:
                break
            at = _blank(text, _blank(text, decode(text, at)[1]) + 1)  # behind the comma
            place += 1
    return at, decode(text, at)[1]


def _blank(text: str, at: int) -> int:
    while text[at].isspace():
        at += 1
    return at


def _first_line(file: Path, has: str, due: str) -> Difference:
    """The first line of a file that is not as it is to be."""
    lines, wanted = has.splitlines(keepends=True), [*due.splitlines(), "the end of the file"]
    same = 0
    while same < len(lines) and same < len(wanted) - 1 and lines[same].rstrip("\r\n") == wanted[same]:
        same += 1
    start = sum(map(len, lines[:same]))
    stop = start + len(lines[same].rstrip()) if same < len(lines) else start
    return Difference(file, start, stop, f"`{wanted[same].strip()}`" if same < len(wanted) - 1 else wanted[-1])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`"
