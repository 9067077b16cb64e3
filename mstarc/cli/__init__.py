"""The command `mstarc`. Takes the arguments; gives the exit status. Nothing that is raised below reaches the user as a traceback.

Exit status: 0 clean, 1 findings or a failed request, 2 usage, 3 generated code is stale, 70 internal error, 130 interrupted. The
product goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from mstarc.cli.guard import set_debug, shielded

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: that of the process) and give its exit status."""
    args = list(sys.argv[1:] if argv is None else argv)
    set_debug(args[:1] == ["--debug"], args)
    return shielded(lambda: _dispatch(args))


def _dispatch(args: list[str]) -> int:
    """`check` is what editors and hooks run over and over, so its plain forms are parsed here, before typer is imported."""
    from mstarc.cli.checking import parse_plain, run_check

    plain = parse_plain(args[1:] if args[:1] == ["--debug"] else args)
    if plain is not None:
        return run_check(plain)
    from mstarc.cli.app import run_app

    return run_app(args)
