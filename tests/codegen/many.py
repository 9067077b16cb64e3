"""Many random programs, for once in a while: `python -m tests.codegen.many FIRST COUNT` runs the seeds FIRST .. FIRST + COUNT - 1.

Prints a line every hundred programs, so that a run that was cut off goes on where it stopped; exits 1 if a program fails.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import traceback
from pathlib import Path

import pytest

from tests.codegen.test_against_interpreter import agree_everywhere, random_program, two_ended


def main(first: int, count: int) -> int:
    """The number of programs that failed."""
    ran, failed = 0, []
    for seed in range(first, first + count):
        if not two_ended(random_program(seed)):
            continue
        ran += 1
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            try:
                asyncio.run(agree_everywhere(seed, Path(folder), patch))
            except Exception:
                failed.append(seed)
                traceback.print_exc()
        if ran % 100 == 0:
            print(f"{ran} programs, up to seed {seed}, failed: {failed or 'none'}", flush=True)
    print(f"{ran} programs, seeds {first} to {first + count - 1}, failed: {failed or 'none'}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
