"""Runs the arms of a request in one thread: each is a generator that yields `None` between effects, or a `Wait`."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from mstarc.interp.errors import Deadlock


@dataclass(frozen=True, slots=True)
class Wait:
    """An arm goes on once `ready()`; `why` completes "waits for …"."""

    why: str
    ready: Callable[[], bool]


Steps: TypeAlias = Generator[Wait | None, None, None]


@dataclass(eq=False, slots=True)
class Task:
    """One running arm."""

    label: str
    steps: Steps
    wait: Wait | None = None
    done: bool = False


class Scheduler:
    """Picks which arm takes its next step. `order` None takes the first that can; a number seeds a random choice at each step."""

    def __init__(self, order: int | None) -> None:
        self._tasks: list[Task] = []
        self._random = None if order is None else random.Random(order)

    def start(self, label: str, steps: Steps) -> Task:
        task = Task(label, steps)
        self._tasks.append(task)
        return task

    def run(self) -> None:
        """Until all have ended. Raises `Deadlock`, or what an arm raises: then every other arm is closed."""
        try:
            while self._tasks:
                able = [task for task in self._tasks if task.wait is None or task.wait.ready()]
                if not able:
                    raise Deadlock({task.label: task.wait.why for task in self._tasks if task.wait is not None})
                self._step(able[0] if self._random is None else self._random.choice(able))
        finally:
            for task in self._tasks:
                task.steps.close()

    def _step(self, task: Task) -> None:
        try:
            task.wait = next(task.steps)
        except StopIteration:
            task.done = True
            self._tasks.remove(task)
