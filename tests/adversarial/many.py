"""Many damaged files, for once in a while: `python -m tests.adversarial.many {models,packages} FIRST COUNT [--jobs N] [--seconds S]`.

Case n damages a file as `damage.py` says. Exits 1 if a verb showed a traceback or took too long.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.adversarial.damage import damaged_model, damaged_package
from tests.many import Case, add_span, exit_with, run_many, span_of

KINDS: dict[str, Callable[[int, Path], str]] = {"models": damaged_model, "packages": damaged_package}


def case_of(kind: str) -> Case:
    """Cases of a kind, each in a folder of its own."""

    def case(number: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return KINDS[kind](number, Path(folder))

    return case


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial.many", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    add_span(parser)
    given = parser.parse_args()
    command = f"{parser.prog} {given.kind}"
    exit_with(run_many(f"damaged {given.kind}", command, case_of(given.kind), span_of(given)))
