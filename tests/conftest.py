"""One thread per process in tests: results of the int8 voice depend on the number of threads, and machines differ in it."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
