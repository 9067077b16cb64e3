"""What ports of every kind share: envelope, epochs, encoding, delivery into an event loop. See `base` for the rules."""

from __future__ import annotations

import asyncio
import hmac
import socket
import struct
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from mstarc_runtime.abi.messages import ABI, Message, Peers
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.base import HELD_MAX, LOG, Counters, Fault, PeerTable, Received, Verdict
from mstarc_runtime.transport.order import Order, Way
from mstarc_runtime.transport.ring import RingReader, RingWriter, StaleRing
from mstarc_runtime.transport.wire import Codec, Frame

BATCH = 256  # messages per poll: a flood from one peer does not keep the owner from its other work
HWM = 16384  # messages queued per peer and side
GAP_S = 30.0  # for which messages may wait for one that was sent before them and has not come
TOKEN_BYTES = 16
_ENVELOPE = struct.Struct(f"<4sHHiI{TOKEN_BYTES}sQ")  # magic, ABI, spare, rank, epoch, token, number
_MAGIC = b"mstr"


class BasePort(ABC):
    """A port without its wires. Subclasses move frames: `_open`, `_shut`, `_push`, `_pull`, `_pending`, `_listen`, `_close`.

    token: 16 bytes that all processes of one engine share; a message without it is dropped, whoever sent it.
    rings_out, rings_in: by peer. The port owns them and unmaps them in `close`.
    """

    def __init__(
        self,
        rank: int,
        epoch: int,
        endpoint: str,
        *,
        token: bytes = bytes(TOKEN_BYTES),
        rings_out: Mapping[int, RingWriter] | None = None,
        rings_in: Mapping[int, RingReader] | None = None,
        hwm: int = HWM,
    ) -> None:
        if len(token) != TOKEN_BYTES:
            raise ValueError(f"a token has {TOKEN_BYTES} bytes, not {len(token)}")
        self.rank = rank
        self.epoch = epoch
        self.endpoint = endpoint
        self.counters = Counters()
        self.codec = Codec()
        self._hwm = hwm
        self._token = token
        self._numbers: dict[int, int] = {}  # of the next message to each peer, since its epoch was opened
        self._orders: defaultdict[tuple[int, int], Order] = defaultdict(Order)  # of what came, by peer and epoch
        self._out = dict(rings_out or {})
        self._in = dict(rings_in or {})
        self._table = PeerTable()
        self._ready: list[Received] = []
        self._deliver: Callable[[list[Received]], None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # ------------------------------------------------------------------------------------------------------------ peers

    def connect(self, peer: int, endpoint: str, epoch: int, lane: socket.socket | None = None) -> None:
        """Open an epoch of a peer; the same again changes nothing. A new reader means a new generation of the ring to it.

        lane: an end of a way beside (see `lane`), which the port takes over.
        """
        if not self._table.opens(peer, epoch):
            if lane is not None:
                lane.close()
            return
        ring = self._out.get(peer)
        if ring is not None:
            ring.reset()
        self._ready = [entry for entry in self._ready if entry[0] != peer]
        self._shut(peer)
        self._numbers[peer] = 0
        self._forget_orders(peer, epoch)
        self._open(peer, endpoint, lane)
        self._ready += [(peer, message) for message in self._table.released(peer)]
        self._pump_soon()

    def connect_all(self, peers: Peers) -> None:
        """`connect` for every rank of the message but the own one."""
        for peer, (endpoint, epoch) in peers.ranks.items():
            if peer != self.rank:
                self.connect(peer, endpoint, epoch)

    def disconnect(self, peer: int) -> None:
        """Forget what is queued for the peer and drop what may still come from its epoch."""
        left = self._table.epoch(peer)
        self._table.leaves(peer)
        self._ready = [entry for entry in self._ready if entry[0] != peer]
        if left is not None:
            self._forget_orders(peer, left + 1)
        self._shut(peer)

    def faults(self) -> list[Fault]:
        """Faults since the last call."""
        return self._table.faults()

    def describe(self) -> str:
        """The peers and their state in words."""
        return self._table.describe()

    # ------------------------------------------------------------------------------------------------------------- send

    def send(self, peer: int, message: Message) -> bool:
        """Queue a message without waiting. False: dropped and counted. WireError: a value in it cannot travel."""
        if not self._table.live(peer):
            self.counters.dropped_dead += 1
            return False
        body = self.codec.encode(message, self._out.get(peer))
        number = self._numbers[peer]
        refusal = self._push(peer, [self._envelope(number), *body])
        if refusal is None:
            self._numbers[peer] = number + 1
            self.counters.sent += 1
            return True
        self.counters.dropped_full += 1
        self._kill(peer, self._table.epoch(peer) or 0, f"a {type(message).__name__} could not be queued: {refusal}")
        return False

    def _envelope(self, number: int) -> bytes:
        return _ENVELOPE.pack(_MAGIC, ABI, 0, self.rank, self.epoch, self._token, number)

    def _kill(self, peer: int, epoch: int, reason: str) -> None:
        self._table.kill(peer, epoch, reason)
        self._forget_orders(peer, epoch + 1)
        self._shut(peer)
        self._pump_soon()

    def _forget_orders(self, peer: int, epoch: int) -> None:
        """Epochs of the peer before this one are over."""
        for key in [key for key in self._orders if key[0] == peer and key[1] < epoch]:
            del self._orders[key]

    # ---------------------------------------------------------------------------------------------------------- receive

    def _accept(self, frames: Sequence[Frame], way: Way = Way.QUEUE) -> None:
        """One message from the wire: into `_ready`, held, or dropped; one that has overtaken others waits for them."""
        sender = self._sender(frames)
        if sender is None:
            self.counters.dropped_bad += 1
            LOG.warning("dropped a message that no process of this engine sent (%d frames)", len(frames))
            return
        peer, epoch, number = sender
        if self._table.verdict(peer, epoch) in (Verdict.OLD, Verdict.DEAD):
            self.counters.dropped_old += 1
            return
        order = self._orders[peer, epoch]
        order.put(number, frames[1:], way)
        while (body := order.next()) is not None:
            self._accept_next(peer, epoch, body)
        if order.waiting(Way.QUEUE) > HELD_MAX:
            self._kill(peer, epoch, f"{HELD_MAX} messages wait for one from it that has not come")

    def _check_gaps(self) -> None:
        """A message that does not come is lost. To be called when all that has come was accepted."""
        for (peer, epoch), order in list(self._orders.items()):
            if order.stuck_s() > GAP_S:
                self._kill(peer, epoch, f"messages have waited for one from it for {GAP_S:g} s")

    def _ahead(self, peer: int) -> int:
        """Messages that came by the lane while one before them is still in the queue."""
        order = self._orders.get((peer, self._table.epoch(peer) or 0))
        return order.waiting(Way.LANE) if order is not None else 0

    def _accept_next(self, peer: int, epoch: int, body: Sequence[Frame]) -> None:
        """The message whose turn it is."""
        verdict = self._table.verdict(peer, epoch)
        if verdict is Verdict.DEAD:  # since one before it could not be read
            self.counters.dropped_old += 1
            return
        try:
            message = self.codec.decode(body, self._in.get(peer))
        except (
            StaleRing
        ):  # a generation only ends with a process: its requests are lost anyway, and it is about to be replaced
            self.counters.dropped_old += 1
            return
        except WireError as error:
            self.counters.dropped_bad += 1
            self._kill(peer, epoch, f"a message from it cannot be read: {error}")
            return
        if verdict is Verdict.NOW:
            self.counters.received += 1
            self._ready.append((peer, message))
        else:
            self._table.hold(peer, epoch, message)

    def _sender(self, frames: Sequence[Frame]) -> tuple[int, int, int] | None:
        """Who sent a message, its epoch, and which of its messages to us this is."""
        if len(frames) < 2 or len(frames[0]) != _ENVELOPE.size:
            return None
        magic, abi, _, rank, epoch, token, number = _ENVELOPE.unpack(frames[0])
        if magic != _MAGIC or abi != ABI or not hmac.compare_digest(token, self._token):
            return None
        return rank, epoch, number

    def poll(self, timeout_s: float = 0.0) -> list[Received]:
        """What has arrived, up to about 256 messages; [] after `timeout_s`, or earlier if a watched descriptor is ready."""
        if self._closed:
            return []
        self._pull(0.0 if self._ready else timeout_s)
        return self._taken()

    def _taken(self) -> list[Received]:
        received, self._ready = self._ready, []
        return received

    # ------------------------------------------------------------------------------------------------------- event loop

    def attach(self, deliver: Callable[[list[Received]], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Call `deliver` in the event loop whenever messages or faults have come, from now on."""
        self.detach()
        self._deliver = deliver
        self._loop = loop or asyncio.get_running_loop()
        self._listen(self._loop)
        self._pump_soon()

    def detach(self) -> None:
        """Stop delivering. Idempotent."""
        if self._loop is not None:
            self._unlisten(self._loop)
        self._deliver = self._loop = None

    def _pump_soon(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """If attached: deliver one batch, then again while there is more: readiness is signalled only when it begins."""
        if self._deliver is None or self._closed:
            return
        try:
            self._hand_over(self.poll())
        finally:  # also when `deliver` raises: the loop reports that, and the next messages still come
            if not self._closed and (self._ready or self._pending()):
                self._pump_soon()

    def _hand_over(self, received: list[Received]) -> None:
        if self._deliver is not None and (received or self._table.has_faults):
            self._deliver(received)

    def close(self, linger_s: float = 0.0) -> None:
        """Close all. Messages that the peer has not got are lost after `linger_s`. Idempotent."""
        if self._closed:
            return
        self.detach()
        self._closed = True
        self._close(linger_s)
        for ring in (*self._out.values(), *self._in.values()):
            ring.close()
        self._out.clear()
        self._in.clear()

    # ------------------------------------------------------------------------------------------------------------ wires

    @abstractmethod
    def watch(self, fd: int) -> None: ...

    @abstractmethod
    def unwatch(self, fd: int) -> None: ...

    @abstractmethod
    def _open(self, peer: int, endpoint: str, lane: socket.socket | None) -> None:
        """Make the way to a peer, and the one beside it if there is an end."""

    @abstractmethod
    def _shut(self, peer: int) -> None:
        """Drop the way to a peer and what is queued on it. Nothing if there is none."""

    @abstractmethod
    def _push(self, peer: int, frames: list[Frame]) -> str | None:
        """Queue a copy of the frames without waiting; else the reason in words."""

    @abstractmethod
    def _pull(self, timeout_s: float) -> None:
        """`_accept` up to BATCH messages that have come; wait up to `timeout_s` for the first."""

    @abstractmethod
    def _pending(self) -> bool:
        """Whether `_pull(0)` would find a message."""

    @abstractmethod
    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop call `pump` when messages begin to come."""

    @abstractmethod
    def _unlisten(self, loop: asyncio.AbstractEventLoop) -> None: ...

    @abstractmethod
    def _close(self, linger_s: float) -> None: ...
