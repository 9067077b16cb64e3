"""What a rank tells the conductor, in order: emitted values and the ends of walks. Nobody waits for a value that is on the device.

Its copy to the host is begun when the turn ends, and it leaves when the copy has arrived. Until then it holds back what came later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mstarc_runtime.arrays import Arrays
from mstarc_runtime.program import ABSENT

if TYPE_CHECKING:
    from mstarc_runtime.worker.device_runner import Fetch, Runner

_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, type(None))
Event: TypeAlias = tuple[int, str, str, Any, dict[str, Any]]  # request, walk, modality, value, attributes


@dataclass(slots=True)
class Entry:
    """Either an event without its value, or what sends a message when it is given the values."""

    request: int
    values: list[Any]
    event: tuple[str, str, dict[str, Any]] | None
    send: Callable[[list[Any]], None] | None
    side: bool  # whether its values are made in the queue beside
    fetch: Fetch | None = None
    first: int = 0  # place of its first device value in the fetch


class Outbox:
    """Entries on their way. `runner`: copies device values without waiting; None: they are copied at once."""

    def __init__(self, arrays: Arrays, runner: Runner | None, send_events: Callable[[list[Event]], None]) -> None:
        self._arrays, self._runner, self._send_events = arrays, runner, send_events
        self._queues = runner.queues if runner is not None else None
        self._queue: deque[Entry] = deque()
        self._fresh: list[Entry] = []  # entries with device values whose copies have not begun
        self._landed: dict[
            int, dict[int, tuple[Any, Any]]
        ] = {}  # request -> id of a device value -> the value, its copy
        self._flushing = False

    def empty(self) -> bool:
        return not self._queue

    def emit(self, request: int, walk: str, modality: str, value: Any, attributes: dict[str, Any]) -> None:
        """Queue one emitted value."""
        self._append(Entry(request, [value], (walk, modality, attributes), None, self._is_side()))

    def send(self, request: int, values: Sequence[Any], send: Callable[[list[Any]], None]) -> None:
        """Queue a message: `send` is called with the values on the host, after everything queued before has left."""
        self._append(Entry(request, list(values), None, send, self._is_side()))

    def landed(self, request: int, value: Any, host: Any) -> None:
        """The copy of a device value of a request is there already; it need not be fetched if it is emitted or sent."""
        self._landed.setdefault(request, {})[id(value)] = value, host

    def forget(self, request: int) -> None:
        """The request is over: what it still had to say is not said."""
        self._landed.pop(request, None)
        self._queue = deque(entry for entry in self._queue if entry.request != request)

    def retract(self, request: int) -> None:
        """What the request has emitted and has not left is not said: it had failed before."""
        self._queue = deque(entry for entry in self._queue if entry.request != request or entry.event is None)

    def flush(self) -> None:
        """Send what is there, up to the first value that is not."""
        if self._flushing or not self._queue:
            return  # what a failing send queues leaves with the flush that is going on
        self._flushing = True
        try:
            self._fetch()
            while self._queue and (self._queue[0].fetch is None or self._queue[0].fetch.ready()):
                self._send_ready()
        finally:
            self._flushing = False

    def _append(self, entry: Entry) -> None:
        landed = self._landed.get(entry.request)
        if landed:
            entry.values = [landed[id(value)][1] if id(value) in landed else value for value in entry.values]
        if self._runner is not None and any(self._on_device(value) for value in entry.values):
            self._fresh.append(entry)
        self._queue.append(entry)

    def _on_device(self, value: Any) -> bool:
        return hasattr(value, "device") and value.device == self._arrays.device

    def _is_side(self) -> bool:
        return self._queues is not None and self._queues.is_side()

    def _fetch(self) -> None:
        """Begin the copies of all values that are new, as one for each queue."""
        fresh, self._fresh = self._fresh, []
        for side in (False, True):
            entries = [entry for entry in fresh if entry.side == side]
            if entries:
                with nullcontext() if self._queues is None else self._queues.on(side):
                    self._fetch_of(entries)

    def _fetch_of(self, entries: Sequence[Entry]) -> None:
        assert self._runner is not None
        tensors: list[Any] = []
        for entry in entries:
            entry.first = len(tensors)
            tensors += [value for value in entry.values if self._on_device(value)]
        fetch = self._runner.fetch(tensors)
        for entry in entries:
            entry.fetch = fetch

    def _send_ready(self) -> None:
        """Send the message in front, or the events up to the next message, together."""
        events: list[Event] = []
        while self._queue and (self._queue[0].fetch is None or self._queue[0].fetch.ready()):
            entry = self._queue[0]
            if entry.event is None and events:
                break
            self._queue.popleft()
            values = self._host_values(entry)
            if entry.send is not None:
                entry.send(values)
                return
            if entry.event is not None:
                walk, modality, attributes = entry.event
                events.append((entry.request, walk, modality, values[0], attributes))
        if events:
            self._send_events(events)

    def _host_values(self, entry: Entry) -> list[Any]:
        if entry.fetch is None:
            return [host_value(self._arrays, value) for value in entry.values]
        fetched = iter(entry.fetch.tensors[entry.first :])
        return [host_value(self._arrays, next(fetched) if self._on_device(value) else value) for value in entry.values]


def host_value(arrays: Arrays, value: Any) -> Any:
    """A value as host Python sees it: arrays as numpy, 0-d ones as numbers, an absent one as None; what is no array as it is."""
    if value is ABSENT:
        return None
    if isinstance(value, _PLAIN):
        return value
    host = arrays.to_host(value)
    return host.item() if host.ndim == 0 else host
