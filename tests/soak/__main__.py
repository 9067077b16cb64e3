"""`python -m tests.soak --requests 2000`: the long soak. Prints a report; exit status 1 if anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.soak.fleet import MODELS
from tests.soak.soak import soak

parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
parser.add_argument("--requests", type=int, default=2000)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--models", default=",".join(MODELS), help="with commas between them")
parser.add_argument("--at-once", type=int, default=8)
parser.add_argument("--kill-every", type=int, default=60, help="requests between two kills, on average")
parser.add_argument(
    "--full", action="store_true", help="KV pools hold one request alone, so that the others are swapped out"
)
asked = parser.parse_args()
with tempfile.TemporaryDirectory(prefix="soak-") as folder:
    report = asyncio.run(
        soak(
            asked.models.split(","),
            Path(folder),
            asked.requests,
            asked.seed,
            asked.at_once,
            asked.kill_every,
            asked.full,
        )
    )
print("\n".join(report.lines()))
sys.exit(bool(report.wrong))
