"""Large arrays that come and go take their pages from the system once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mstarc_runtime.memory import keep_memory

SCRIPT = """
import resource, sys
import numpy as np
from mstarc_runtime.memory import keep_memory
if sys.argv[1] == "kept":
    assert keep_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    [np.ones(3 << 20, np.uint8) for _ in range(4)]
before = faults()
for _ in range(20):
    [np.ones(3 << 20, np.uint8) for _ in range(4)]
print(faults() - before)
"""


def faults(how: str) -> int:
    found = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True, timeout=60)
    return int(found.stdout)


def test_pages_are_taken_once() -> None:
    if not keep_memory():
        pytest.skip("the C library has no mallopt")
    assert faults("kept") < 100
    assert faults("given back") > 10 * faults("kept")
