"""Many damaged files, for once in a while: `python -m tests.adversarial.many FIRST COUNT [--jobs N] [--seconds S]`.

Case n damages a file as `damage.py` says. Exits 1 if a command showed a traceback or took too long.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.adversarial.damage import damaged_model
from tests.many import add_span, exit_with, run_many, span_of


def case(number: int) -> str:
    """One damaged model in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return damaged_model(number, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial.many", description=__doc__)
    add_span(parser)
    exit_with(run_many("damaged models", parser.prog, case, span_of(parser.parse_args())))
