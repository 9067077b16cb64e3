"""What every port offers (`Transport`), and which epoch of which peer counts (`PeerTable`).

A peer is a rank; the conductor is rank -1. Every start of a process has a higher epoch than the one before. Rules:
- `connect(peer, endpoint, epoch)` opens a peer's epoch. The same epoch again changes nothing (so `Peers` may be repeated),
  a lower one is ignored, a higher one replaces: what was queued for the old process is lost.
- A message of an older epoch than the open one, or of an epoch that was disconnected, is dropped on receipt.
- A message of a newer epoch than the open one is held back, in order, until `connect` names that epoch: the peer knows
  of us before we know how to answer it.
- A full queue, a message that cannot be decoded or does not come, or too many held messages lose data. A port never waits for room and
  never goes on with a gap: it declares the peer dead, reports a `Fault` once, and drops what comes from or goes to this
  peer until `connect` names a newer epoch. Whoever owns the port must act on `faults()`: the conductor kills the worker
  (which fails its requests at once); a worker tells the conductor, as the gap may be between two workers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from mstarc_runtime.abi.messages import Message, Peers

CONDUCTOR = -1
HELD_MAX = 4096  # messages of one peer that wait for its `connect`
LOG = logging.getLogger("mstarc_runtime.transport")

Received: TypeAlias = tuple[int, Message]


@dataclass(frozen=True, slots=True)
class Fault:
    """Data from or to a peer was lost; the peer counts as dead from now on."""

    peer: int
    epoch: int
    reason: str


@dataclass(slots=True)
class Counters:
    """Messages, since the port was made."""

    sent: int = 0
    received: int = 0
    dropped_full: int = 0  # the peer's queue was full
    dropped_dead: int = 0  # sent to a peer that is not connected or was declared dead
    dropped_old: int = 0  # received from an epoch that is over
    dropped_bad: int = 0  # received, but no message of ours


class Transport(Protocol):
    """All connections of one process. Not thread-safe. No method but `poll` waits, and `poll` no longer than it is told."""

    rank: int
    epoch: int
    endpoint: str
    counters: Counters

    def connect(self, peer: int, endpoint: str, epoch: int, lane: socket.socket | None = None) -> None:
        """Open an epoch of a peer; see the rules above. lane: an end of a way beside for short messages (`lane`)."""
        ...

    def connect_all(self, peers: Peers) -> None:
        """`connect` for every rank of the message but the own one."""
        ...

    def disconnect(self, peer: int) -> None:
        """The peer's process is gone: forget what is queued for it and drop what may still come from it."""
        ...

    def send(self, peer: int, message: Message) -> bool:
        """Queue a message; its arrays may change afterwards. False: dropped. WireError: a value in it cannot travel."""
        ...

    def poll(self, timeout_s: float = 0.0) -> list[Received]:
        """What has arrived, in order per peer; [] after `timeout_s`, or earlier if a watched descriptor is ready."""
        ...

    def watch(self, fd: int) -> None:
        """Let `poll` return when `fd` is readable or its other end is closed. The caller reads it, and unwatches before closing."""
        ...

    def unwatch(self, fd: int) -> None: ...

    def faults(self) -> list[Fault]:
        """Faults since the last call."""
        ...

    def attach(self, deliver: Callable[[list[Received]], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """From now on call `deliver` in the event loop when messages or faults (then perhaps with []) have come."""
        ...

    def detach(self) -> None: ...

    def pump(self) -> None:
        """If attached: deliver now what has come."""
        ...

    def describe(self) -> str:
        """The peers and their state in words, for error messages of whoever waits."""
        ...

    def close(self, linger_s: float = 0.0) -> None:
        """Close all; messages not yet handed to the peer are lost after `linger_s`. Idempotent."""
        ...


class Verdict(Enum):
    """What to do with a received message."""

    NOW = "now"
    HOLD = "hold"
    OLD = "old"
    DEAD = "dead"


@dataclass(slots=True)
class _Peer:
    open: int | None = None  # the epoch that `connect` named; None: not connected
    floor: int = 0  # messages of a lower epoch are old
    dead: bool = False
    held: list[tuple[int, Message]] = field(default_factory=list)  # (epoch, message)


class PeerTable:
    """State per peer, by the rules of the module. No sockets here."""

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._faults: list[Fault] = []

    def opens(self, peer: int, epoch: int) -> bool:
        """`connect` was called. Whether this is a new epoch, for which the caller makes a connection."""
        state = self._of(peer)
        if epoch < state.floor or epoch == state.open:
            return False
        state.open = state.floor = epoch
        state.dead = False
        return True

    def released(self, peer: int) -> list[Message]:
        """Held messages of the epoch that is open now, in order; older ones are forgotten."""
        state = self._of(peer)
        ours = [message for epoch, message in state.held if epoch == state.open]
        state.held = [entry for entry in state.held if state.open is None or entry[0] > state.open]
        return ours

    def leaves(self, peer: int) -> None:
        """`disconnect` was called."""
        state = self._of(peer)
        if state.open is not None:
            state.floor = state.open + 1
        state.open = None
        state.dead = False
        state.held = [entry for entry in state.held if entry[0] >= state.floor]

    def verdict(self, peer: int, epoch: int) -> Verdict:
        """What becomes of a message of that epoch."""
        state = self._of(peer)
        if epoch < state.floor:
            return Verdict.OLD
        if epoch != state.open:
            return Verdict.HOLD
        return Verdict.DEAD if state.dead else Verdict.NOW

    def hold(self, peer: int, epoch: int, message: Message) -> None:
        """Keep a message until its epoch is open."""
        state = self._of(peer)
        if len(state.held) >= HELD_MAX:
            self.kill(peer, epoch, f"{HELD_MAX} messages wait for its endpoint")
            return
        state.held.append((epoch, message))

    def live(self, peer: int) -> bool:
        """Whether messages can be sent to the peer."""
        state = self._of(peer)
        return state.open is not None and not state.dead

    def kill(self, peer: int, epoch: int, reason: str) -> None:
        """Declare the peer dead, once per epoch."""
        state = self._of(peer)
        if state.dead or epoch < state.floor:
            return
        state.dead = True
        state.held.clear()
        state.open = state.floor = epoch
        self._faults.append(Fault(peer, epoch, reason))
        LOG.error("peer %d (epoch %d) counts as dead: %s", peer, epoch, reason)

    def epoch(self, peer: int) -> int | None:
        return self._of(peer).open

    def faults(self) -> list[Fault]:
        found, self._faults = self._faults, []
        return found

    @property
    def has_faults(self) -> bool:
        return bool(self._faults)

    def describe(self) -> str:
        """`rank 1: epoch 2; rank 2: not connected, 3 messages held`"""
        return "; ".join(f"{_name(peer)}: {_state(state)}" for peer, state in sorted(self._peers.items())) or "no peers"

    def _of(self, peer: int) -> _Peer:
        state = self._peers.get(peer)
        if state is None:
            state = self._peers[peer] = _Peer()
        return state


def _name(peer: int) -> str:
    return "conductor" if peer == CONDUCTOR else f"rank {peer}"


def _state(state: _Peer) -> str:
    words = "not connected" if state.open is None else f"epoch {state.open}"
    if state.dead:
        words += ", declared dead"
    return f"{words}, {len(state.held)} messages held" if state.held else words
