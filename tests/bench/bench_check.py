"""Wall and CPU time of `mstarc check specs`, cold and remembered, and of compiling each spec: processes of their own, median and best.

Cold: an empty cache folder, Python's own bytecode in place. `python -m tests.bench.bench_check [--runs 5]`
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def timed(args: list[str], home: str) -> tuple[float, float]:
    """(wall, CPU of all its processes) of one command in seconds."""
    env = {**os.environ, "XDG_CACHE_HOME": home, "PYTHONPYCACHEPREFIX": f"{home}/../bytecode"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "mstarc", *args], cwd=ROOT, env=env, check=True, capture_output=True, timeout=600
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        timed(["check", "specs"], f"{folder}/first")  # writes the bytecode
        for run in range(runs):
            for name in ("cold", "remembered"):
                rows.setdefault(f"check specs, {name}", []).append(timed(["check", "specs"], f"{folder}/{run}"))
            for spec in sorted((ROOT / "specs").glob("*.walk")):
                args = ["compile", f"specs/{spec.name}", "-o", f"{folder}/out/{spec.stem}"]
                rows.setdefault(f"compile {spec.stem}", []).append(timed(args, f"{folder}/{run}"))
    table = []
    for name, times in rows.items():
        walls, cpus = zip(*times, strict=True)
        table.append(
            {"what": name, "median_s": statistics.median(walls), "best_s": min(walls), "best_cpu_s": min(cpus)}
        )
        print(
            f"{name:26} wall median {table[-1]['median_s']:.2f} s, best {min(walls):.2f} s; CPU best {min(cpus):.2f} s"
        )
    print(f"load {os.getloadavg()[0]:.1f}")
    print(json.dumps(table))


if __name__ == "__main__":
    main()
