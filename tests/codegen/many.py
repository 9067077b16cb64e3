"""Many random programs, for once in a while: `python -m tests.codegen.many FIRST COUNT [--jobs N] [--seconds S] [--ahead|--flows|--full]`.

Case n is the program of seed n, as `agreement.py` says; with `--ahead` as `ahead.py` says: its loops run ahead of the host; with
`--flows` in the same way one of `flow_programs.py`; with `--full` as `full_pools.py` says: its pools hold one request. Exits 1 if
generated code differs from the interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.codegen.agreement import agree_everywhere, random_program, two_ended
from tests.codegen.ahead import agree_ahead, ahead_program, flow_program, runs_agree, ways
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


def case_flow(seed: int) -> str:
    """As `case_ahead`, for programs with flows."""
    program = flow_program(seed)
    if not two_ended(program):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        asyncio.run(runs_agree(program, ways(seed), Path(folder), patch))
    return "agreed"


def case_full(seed: int) -> str:
    """As `case`, over pools that are full."""
    if not two_ended(random_program(seed)):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        moved = asyncio.run(agree_in_full_pools(seed, Path(folder), patch))
    return "agreed, pages moved" if moved else "agreed"


KINDS = {
    "": ("random programs", case),
    "--ahead": ("random programs ahead", case_ahead),
    "--flows": ("random programs with flows", case_flow),
    "--full": ("random programs in full pools", case_full),
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.codegen.many", description=__doc__)
    add_span(parser)
    for flag, (said, _) in KINDS.items():
        if flag:
            parser.add_argument(flag, dest="kind", action="store_const", const=flag, default="", help=said)
    given = parser.parse_args()
    what, one = KINDS[given.kind]
    exit_with(run_many(what, f"{parser.prog} {given.kind}".rstrip(), one, span_of(given)))
