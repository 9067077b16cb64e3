"""The walks that were sent to ranks and have not ended: what each waits for, and who waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mstarc_runtime.abi.messages import WalkEnded
from mstarc_runtime.errors import RuntimeFault

if TYPE_CHECKING:
    from mstarc_runtime.conductor.requests import RequestRun


@dataclass(eq=False, slots=True)
class WalkCall:
    """A walk that was sent to its rank. `after`: the call whose end its rank waits for, until it has ended itself."""

    request: RequestRun
    number: int
    name: str
    rank: int
    after: WalkCall | None
    results: asyncio.Future[tuple[Any, ...]]

    @property
    def over(self) -> bool:
        return self.results.done()


class Calls:
    """By run number, in the order in which they were sent: a call stands behind the one that it waits for."""

    def __init__(self) -> None:
        self._calls: dict[int, WalkCall] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: WalkCall) -> None:
        self._calls[call.number] = call

    def forget(self, run: RequestRun) -> None:
        """The request is over: whatever its walks still tell is not for anybody."""
        self._calls = {number: call for number, call in self._calls.items() if call.request is not run}

    def under_way(self, run: RequestRun) -> set[str]:
        """Names of the request's walks that have begun and not ended."""
        mine = (call for call in self._calls.values() if call.request is run)
        return {call.name for call in mine if call.after is None or call.after.number not in self._calls}

    def ended(self, message: WalkEnded) -> None:
        """Note what the walk counted, and give its results to whoever waits for them."""
        call = self._calls.pop(message.run, None)
        if call is None:
            return
        call.after = None
        run = call.request
        run.outcome.causes.update({f"{call.name}.{label}": why for label, why in message.causes.items()})
        run.count({n if n.startswith("context:") else f"{call.name}.{n}": count for n, count in message.counts.items()})
        if not call.results.done():
            call.results.set_result(tuple(message.results))

    def failed(self, number: int, error: RuntimeFault) -> None:
        """The walk, and those that were to follow it, have failed: once, and for its reason."""
        failed: set[int] = set()
        for call in list(self._calls.values()):
            if call.number == number or (call.after is not None and call.after.number in failed):
                failed.add(call.number)
                del self._calls[call.number]
                if not call.results.done():
                    call.results.set_exception(error)
                    call.results.exception()  # whether somebody waits for it or not
