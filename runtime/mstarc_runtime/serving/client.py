"""Knows when the client of a request has left, so that work for it stops at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from mstarc_runtime.errors import RequestFailed
from mstarc_runtime.serving.faults import CLIENT_GONE

T = TypeVar("T")


class Client:
    """Watches a connection whose request body has been read. `close` ends the watch."""

    def __init__(self, receive: Receive) -> None:
        self._watch = asyncio.create_task(_until_gone(receive), name="client watch")
        self.gone = False
        self._watch.add_done_callback(self._ended)
        self._callbacks: list[Callable[[], None]] = []

    def _ended(self, watch: asyncio.Task[None]) -> None:
        if not watch.cancelled():
            self.gone = True
            for callback in self._callbacks:
                callback()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as the client has left; at once if it already has."""
        if self.gone:
            callback()
        else:
            self._callbacks.append(callback)

    async def race(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
        """The result of `work`, unless the client leaves first: then it is cancelled, and a result that still came is undone.

        Raises RequestFailed (499) if the client left.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task, self._watch}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not self.gone:
                return task.result()
        except asyncio.CancelledError:
            await _withdraw(task, undo)
            raise
        await _withdraw(task, undo)
        raise RequestFailed("the client left", CLIENT_GONE)

    async def close(self) -> None:
        """Stop watching."""
        self._callbacks.clear()
        self._watch.cancel()
        await asyncio.wait({self._watch})


async def _withdraw(task: asyncio.Task[T], undo: Callable[[T], None]) -> None:
    """Cancel `task`. It may have a result all the same: a cancellation can come after its work was done."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None:
        undo(task.result())


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(OSError):
        while (await receive())["type"] != "http.disconnect":
            pass
