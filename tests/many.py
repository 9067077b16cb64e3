"""Many numbered cases on several processes: `run_many` gives the cases out in order and says what became of them.

A case is a function from a number to the name of its outcome; what it raises is a failure. A process that dies or does not answer fails
its case and is replaced. The summary says which number comes next, so a run that is cut off goes on where it stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

Case = Callable[[int], str]
HANGS_S = 120.0  # a case whose own deadline does not end it


@dataclass(frozen=True)
class Span:
    """Which cases to run: `first` to `first + count - 1`, on `jobs` processes, none begun after `seconds`."""

    first: int
    count: int
    jobs: int = 1
    seconds: float = float("inf")


def add_span(parser: argparse.ArgumentParser) -> None:
    """The arguments of a span."""
    parser.add_argument("first", type=int, metavar="FIRST")
    parser.add_argument("count", type=int, metavar="COUNT")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case later than this")


def span_of(given: argparse.Namespace) -> Span:
    """The span of parsed arguments."""
    return Span(given.first, given.count, max(1, given.jobs), given.seconds)


@dataclass
class Ran:
    """What has been run: how often each outcome came, the failures, the slowest case."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failed: dict[int, str] = field(default_factory=dict)
    slowest: tuple[float, int] = (0.0, -1)

    def add(self, number: int, seconds: float, outcome: str, failure: str) -> None:
        self.slowest = max(self.slowest, (seconds, number))
        if failure:
            self.failed[number] = failure
        else:
            self.outcomes[outcome] += 1


class _Worker:
    """A process that runs one case after the other. number: the case that it is at, or None."""

    def __init__(self, case: Case) -> None:
        context = multiprocessing.get_context("fork")  # shares what is imported
        self.pipe, child = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(case, child, self.pipe), daemon=True)
        self.process.start()
        child.close()
        self.number: int | None = None
        self.since = 0.0

    def give(self, number: int) -> None:
        self.number, self.since = number, time.monotonic()
        self.pipe.send(number)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(case: Case, pipe: Connection, other: Connection) -> None:
    other.close()
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        start = time.monotonic()
        outcome = failure = ""
        try:
            outcome = case(number)
        except KeyboardInterrupt:
            return
        except BaseException:
            failure = traceback.format_exc()
        pipe.send((time.monotonic() - start, outcome, failure))


def run_many(what: str, command: str, case: Case, span: Span) -> int:
    """Run a span of cases and print one line about them; the number of failures.

    Each failure is printed with the command that runs it alone, which is `command` with its number and a count of 1.
    """
    start = time.monotonic()
    ran = Ran()
    last = span.first + span.count
    following = span.first
    workers = [_Worker(case) for _ in range(min(span.jobs, span.count))]
    try:
        while True:
            for worker in workers:
                if worker.number is None and following < last and time.monotonic() - start < span.seconds:
                    worker.give(following)
                    following += 1
            busy = [worker for worker in workers if worker.number is not None]
            if not busy:
                break
            wait([worker.pipe for worker in busy], timeout=1)
            for worker in busy:
                number = worker.number
                answer = _answer(worker)
                if answer is None or number is None:
                    continue
                ran.add(number, *answer)
                if number in ran.failed:
                    print(f"--- {what} {number} failed; again: {command} {number} 1\n{ran.failed[number]}", flush=True)
                if not worker.process.is_alive():
                    worker.stop()
                    workers[workers.index(worker)] = _Worker(case)
    except KeyboardInterrupt:
        following = min((worker.number for worker in workers if worker.number is not None), default=following)
    finally:
        for worker in workers:
            worker.stop()
    print(_summary(what, span.first, following, ran, time.monotonic() - start), flush=True)
    return len(ran.failed)


def _answer(worker: _Worker) -> tuple[float, str, str] | None:
    """(seconds, outcome, failure) of the case that a worker is at; None if it still runs."""
    took = time.monotonic() - worker.since
    try:
        answer: tuple[float, str, str] | None = worker.pipe.recv() if worker.pipe.poll() else None
    except (EOFError, OSError):
        worker.process.join(1)
        answer = (took, "", f"its process died with exit code {worker.process.exitcode}")
        worker.process.kill()
        worker.process.join()
    if answer is None and took > HANGS_S:
        worker.process.kill()
        worker.process.join()
        answer = (took, "", f"no answer for {HANGS_S:.0f} s")
    if answer is not None:
        worker.number = None
    return answer


def _summary(what: str, first: int, following: int, ran: Ran, seconds: float) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ran.outcomes.items()))
    failed = f"failed: {sorted(ran.failed)}" if ran.failed else "none failed"
    slowest = f"slowest {ran.slowest[0]:.2f} s (number {ran.slowest[1]})"
    return (
        f"{what}: {first} to {following - 1}: {outcomes or 'no outcome'}; {failed}; {slowest};"
        f" {seconds:.0f} s; next: {following}"
    )


def exit_with(failures: int) -> None:
    """Leave with status 1 if something failed."""
    sys.exit(failures > 0)


__all__: Sequence[str] = ("Case", "Span", "add_span", "exit_with", "run_many", "span_of")
