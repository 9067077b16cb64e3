"""Every message between the conductor and the workers, as typed msgpack structs. Never pickle.

Fields of type `Any` hold values: bool, int, float, str, bytes, None, numpy arrays, torch tensors, and lists, tuples or
str-keyed dicts of these (`abi.values` says how arrays travel). Request ids are never reused within a process.
"""

from __future__ import annotations

from typing import Any

import msgspec

ABI = 2  # raised whenever a message or the linked program changes its meaning


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# ------------------------------------------------------------------------------------------------------ conductor -> worker


class Open(Message, frozen=True, tag="open"):
    """Before the first `Start` of a request on this rank."""

    request: int
    params: dict[str, Any]
    host: dict[str, Any]  # `wants`, `given` and what else host expressions of walks may read
    seed: int
    off: list[str]  # contexts that are switched off in this request


class Start(Message, frozen=True, tag="start"):
    """Run one walk. `scope` numbers the `together` it belongs to; `closes` are streams that end when this walk ends.

    `after`: a run of the same request that was sent to this rank before, 0 = none. The walk begins when that one has ended well; if it
    fails, the walk never begins, and nothing is told of it.
    """

    request: int
    run: int
    walk: str
    args: list[Any]
    scope: int
    closes: list[str]
    after: int = 0


class CloseStream(Message, frozen=True, tag="close"):
    """The producing arm has ended: no further item will be sent (to the producer's rank; idempotent)."""

    request: int
    stream: str
    scope: int


class SinkStream(Message, frozen=True, tag="sink"):
    """The consuming arm has ended or does not run: discard items, credit is endless (to the producer's rank; idempotent)."""

    request: int
    stream: str
    scope: int


class Finish(Message, frozen=True, tag="finish"):
    """Free everything the request holds on this rank, whether it ended, failed or was cancelled. Answered by `Freed`."""

    request: int


class Peers(Message, frozen=True, tag="peers"):
    """Endpoints of the other ranks, after a start or a restart: rank -> (endpoint, epoch)."""

    ranks: dict[int, tuple[str, int]]


class Shutdown(Message, frozen=True, tag="shutdown"):
    """Leave in an orderly way."""


# ------------------------------------------------------------------------------------------------------ worker -> conductor


class Loading(Message, frozen=True, tag="loading"):
    """Start-up progress, for the progress bar: `done` of `total` steps, the current one in words."""

    rank: int
    done: int
    total: int
    what: str


class Ready(Message, frozen=True, tag="ready"):
    """Weights are loaded and warm. `pools`: cache -> (pages, entries per page). `swap`: cache -> pages that may lie on the host beside."""

    rank: int
    epoch: int
    abi: int
    pools: dict[str, tuple[int, int]]
    swap: dict[str, int] = {}


class Emitted(Message, frozen=True, tag="emitted"):
    """What one scheduler turn emitted, in order: (request, walk, modality, value, attributes)."""

    events: list[tuple[int, str, str, Any, dict[str, Any]]]


class WalkEnded(Message, frozen=True, tag="ended"):
    """A walk is over. `causes`: loop label -> `stop` or `max`, for the walk's dynamic loops."""

    request: int
    run: int
    results: list[Any]
    causes: dict[str, str]
    counts: dict[str, int]  # loop label -> bodies that reached their end, and `context:<name>` -> length


class WalkFailed(Message, frozen=True, tag="failed"):
    """A walk raised, and what was to begin after it never will. `text` is for the client; `status` the HTTP status it should map to;
    `field` what of the request is wrong.
    """

    request: int
    run: int
    text: str
    status: int
    field: str | None = None


class Freed(Message, frozen=True, tag="freed"):
    """Answer to `Finish`: this rank holds nothing of the request any more. `counts`: `context:<name>` -> its last length."""

    request: int
    counts: dict[str, int] = {}


class Stats(Message, frozen=True, tag="stats"):
    """Gauges and counters of a worker, about once a second: also its sign of life."""

    rank: int
    values: dict[str, float]


class Fatal(Message, frozen=True, tag="fatal"):
    """The worker cannot start or go on; `text` says why in words for the operator."""

    rank: int
    text: str


# --------------------------------------------------------------------------------------------------------- worker -> worker


class Items(Message, frozen=True, tag="items"):
    """Items of a stream, in order; the first of them is item number `first` (0-based, after `where`)."""

    request: int
    stream: str
    scope: int
    first: int
    values: list[Any]


class EndOfStream(Message, frozen=True, tag="end"):
    """After the last item, once. `total` items were sent."""

    request: int
    stream: str
    scope: int
    total: int


class Credit(Message, frozen=True, tag="credit"):
    """The consumer has consumed (released) `consumed` items in all."""

    request: int
    stream: str
    scope: int
    consumed: int


ToWorker = Open | Start | CloseStream | SinkStream | Finish | Peers | Shutdown
FromWorker = Loading | Ready | Emitted | WalkEnded | WalkFailed | Freed | Stats | Fatal
Between = Items | EndOfStream | Credit
AnyMessage = ToWorker | FromWorker | Between
