"""Threads for externs: results, errors, at most so many at once, and an end of the process that waits for none."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mstarc_runtime.conductor.threads import Threads

ROOT = Path(__file__).parents[2]
STUCK = """
import asyncio, time
from mstarc_runtime.conductor.threads import Threads

async def main():
    threads = Threads(2, "extern")
    try:
        async with asyncio.timeout(0.1):
            await threads.run(lambda: time.sleep(600))
    except TimeoutError:
        print("late")
    threads.close()

asyncio.run(main())
"""


async def test_results_and_errors() -> None:
    threads = Threads(2, "extern")
    assert await asyncio.gather(*(threads.run(lambda i=i: i * i) for i in range(9))) == [i * i for i in range(9)]  # type: ignore[misc]
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await threads.run(lambda: threading.current_thread().name) in ("extern-0", "extern-1")
    threads.close()


async def test_so_many_at_once_and_what_is_taken_back_does_not_run() -> None:
    threads, go, ran = Threads(2, "extern"), threading.Event(), []
    running = [asyncio.create_task(threads.run(go.wait)) for _ in range(2)]
    third = asyncio.create_task(threads.run(lambda: ran.append("third")))
    fourth = asyncio.create_task(threads.run(lambda: ran.append("fourth")))
    await asyncio.sleep(0.05)
    assert ran == []
    third.cancel()
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*running, fourth)
    assert ran == ["fourth"]
    threads.close()


def test_one_that_never_returns_does_not_hold_up_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK], cwd=ROOT / "runtime", capture_output=True, text=True, timeout=30, check=True
    )
    assert (done.stdout, done.stderr) == ("late\n", "")
