"""Many random programs, for once in a while: `python -m tests.codegen.many FIRST COUNT [--jobs N] [--seconds S]`.

Case n is the program of seed n, as `agreement.py` says. Exits 1 if generated code differs from the interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

import pytest

from tests.codegen.agreement import agree_everywhere, random_program, two_ended
from tests.many import add_span, exit_with, run_many, span_of


def case(seed: int) -> str:
    """One program; seeds whose program has a stream with one end are left out."""
    if not two_ended(random_program(seed)):
        return "left out"
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        asyncio.run(agree_everywhere(seed, Path(folder), patch))
    return "agreed"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.codegen.many", description=__doc__)
    add_span(parser)
    exit_with(run_many("random programs", parser.prog, case, span_of(parser.parse_args())))
