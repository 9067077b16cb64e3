"""Large arrays that come and go take their pages from the system once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mstarc_runtime.memory import LARGEST, keep_memory, room

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


def test_large_memory_is_used_again_when_nothing_lies_in_it() -> None:
    size = LARGEST + 1000
    first = room(size)
    at = first.ctypes.data
    view = first[:4000].view(np.float32).reshape(10, 100)
    view[:] = 7
    del first
    held = view[3].data
    del view
    other = room(size)
    assert other.ctypes.data != at
    other[:] = 1
    assert np.frombuffer(held, np.float32).tolist() == [7] * 100
    del held
    assert room(size - 1).ctypes.data == at
    assert len(room(LARGEST)) == LARGEST and len(room(0)) == 0
