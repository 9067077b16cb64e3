"""A few threads for host Python that may take long. One that never returns cannot be stopped, and does not hold up the process's end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

Job: TypeAlias = tuple[asyncio.Future[Any], Callable[[], Any]]


class Threads:
    """At most `count` jobs run at once. Threads are made when they are first needed, and kept: libraries hold state per thread."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._threads: list[Thread] = []
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    async def run(self, work: Callable[[], Any]) -> Any:
        """What `work` gives or raises. Who stops waiting before it has begun takes it back."""
        if len(self._threads) < self._count:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put((answer, work))
        return await answer

    def close(self) -> None:
        """Each thread ends when its present job has."""
        for _ in self._threads:
            self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            answer, work = job
            if answer.cancelled():
                continue
            try:
                told, found = answer.set_result, work()
            except BaseException as error:
                told, found = answer.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                answer.get_loop().call_soon_threadsafe(_tell, answer, told, found)
            del job, answer, work, told, found


def _tell(answer: asyncio.Future[Any], told: Callable[[Any], None], found: Any) -> None:
    if not answer.done():
        told(found)
