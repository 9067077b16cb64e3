"""`mstarc check`. Takes paths and a format; writes the findings; gives the exit status. Imports no typer: start-up is what it costs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mstarc.cli.findings import FORMATS, Format, write_checked
from mstarc.cli.guard import USAGE, Failure, say


@dataclass(frozen=True, slots=True)
class CheckCall:
    """The arguments of one `check`."""

    paths: tuple[str, ...]
    format: Format = "text"
    deny_warnings: bool = False
    fix: bool = False
    checkpoints: tuple[str, ...] = ()


def parse_plain(args: Sequence[str]) -> CheckCall | None:
    """`check PATH… [--format F] [--deny-warnings] [--fix]` in its plain forms; None for all else (help, mistakes), which typer explains."""
    if not args or args[0] != "check":
        return None
    paths: list[str] = []
    format: Format = "text"
    deny = fix = False
    rest = iter(args[1:])
    for arg in rest:
        name, equals, value = arg.partition("=")
        if name == "--format":
            given = value if equals else next(rest, "")
            known = next((f for f in FORMATS if f == given), None)
            if known is None:
                return None
            format = known
        elif arg == "--deny-warnings":
            deny = True
        elif arg == "--fix":
            fix = True
        elif arg.startswith("-"):
            return None
        else:
            paths.append(arg)
    return CheckCall(tuple(paths), format, deny, fix) if paths else None


def run_check(call: CheckCall) -> int:
    """Check, write what was found, and give the exit status."""
    from mstarc import remembered
    from mstarc.checked import joined

    checked = remembered.check(call.paths, min(2, os.cpu_count() or 1))
    if call.fix:
        from mstarc.cli.fixing import fix_all

        checked = fix_all(call.paths, checked)
    lines: list[str] = []
    if call.checkpoints and not checked.missing and not checked.exit_code():
        from mstarc.cli.dry_run import judge
        from mstarc.cli.values import pairs

        judged = judge(call.paths, pairs(call.checkpoints, "--checkpoint"))
        checked, lines = joined((checked, judged.checked), ()), judged.lines
    write_checked(checked, call.format)
    for path in checked.missing:
        say(f"error: {no_model(path)}")
    if call.format == "text" and not checked.findings and not checked.missing:
        say("\n".join((*lines, f"{_models(checked.sources)} clean")))
    return checked.exit_code(call.deny_warnings)


def no_model(path: str) -> str:
    """Why a path that was given names no model."""
    if not os.path.lexists(path):
        return f"`{path}` does not exist"
    if os.path.isdir(path):
        return f"there is no .walk file in `{path}` or below it"
    return f"`{path}` is neither a file nor a folder"


def single_model(path: str) -> str:
    """The path of one .walk file. Raises Failure (usage) for anything else."""
    if os.path.isfile(path):
        return path
    if os.path.isdir(path):
        raise Failure(f"`{path}` is a folder; name one .walk file", USAGE)
    raise Failure(no_model(path), USAGE)


def _models(sources: Iterable[str]) -> str:
    number = sum(name.endswith(".walk") for name in sources)
    return f"{number} model{'' if number == 1 else 's'}"


__all__ = ["CheckCall", "no_model", "parse_plain", "run_check", "single_model"]
