"""Many random programs, for once in a while: `python -m tests.codegen.many FIRST COUNT [--jobs N] [--seconds S] [--ahead|--full]`.

Case n is the program of seed n, as `agreement.py` says; with `--ahead` as `ahead.py` says: its loops run ahead of the host; with
`--full` as `full_pools.py` says: its pools hold one request. Exits 1 if generated code differs from the interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.codegen.agreement import agree_everywhere, random_program, two_ended
from tests.codegen.ahead import agree_ahead, ahead_program
from tests.codegen.full_pools import agree_in_full_pools
from tests.many import add_span, exit_with, run_many, span_of


def case(seed: int) -> str:
    """One program; seeds whose program has a stream with one end are left out."""
    if not two_ended(random_program(seed)):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        asyncio.run(agree_everywhere(seed, Path(folder), patch))
    return "agreed"


def case_ahead(seed: int) -> str:
    """As `case`, for loops that run ahead."""
    if not two_ended(ahead_program(seed)):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        asyncio.run(agree_ahead(seed, Path(folder), patch))
    return "agreed"


def case_full(seed: int) -> str:
    """As `case`, over pools that are full."""
    if not two_ended(random_program(seed)):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        moved = asyncio.run(agree_in_full_pools(seed, Path(folder), patch))
    return "agreed, pages moved" if moved else "agreed"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.codegen.many", description=__doc__)
    add_span(parser)
    parser.add_argument("--ahead", action="store_true", help="loops run ahead of the host")
    parser.add_argument("--full", action="store_true", help="pools hold one request")
    given = parser.parse_args()
    what, one = ("random programs ahead", case_ahead) if given.ahead else ("random programs", case)
    what, one = ("random programs in full pools", case_full) if given.full else (what, one)
    exit_with(run_many(what, parser.prog + " --ahead" * given.ahead + " --full" * given.full, one, span_of(given)))
