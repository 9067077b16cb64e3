"""Messages as frames: `encode(message, ring) -> [body, *frames]`, `decode(frames, ring) -> message`.

The body is msgpack of the typed message (`abi.messages`). An array in it is an extension value with dtype, shape and the
place of its bytes:
- up to 2 KiB: in the extension itself;
- from 16 KiB, if a ring is given and has room now: in the shared-memory ring;
- else a frame of its own, in order of appearance.

Nothing waits: a full ring only means a frame. Frames may be views of the arrays sent, so they must be copied or sent
before the arrays change. Decoded arrays own their memory; the ring's room is given back during `decode`, in order.

Everything that can be wrong with a message is a `WireError` (also its subclass `StaleRing`), in both directions. After
a failing `encode` the ring is as before. `Codec` counts bytes; the two functions use one codec per thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mstarc_runtime.abi.messages import AnyMessage, Message
from mstarc_runtime.abi.values import Flat, WireError, flatten, is_array, restore, size_of
from mstarc_runtime.memory import room
from mstarc_runtime.transport.copies import Pair, copy_all
from mstarc_runtime.transport.ring import RingReader, RingWriter, Slot, StaleRing

__all__ = ["EMBED_MAX", "RING_MIN", "Codec", "StaleRing", "WireError", "decode", "encode"]

EMBED_MAX = 2048  # bytes; below it a frame of its own costs more than the copy
RING_MIN = 16384  # bytes; below it the socket is as fast as the ring
FRAME_MAX = 1 << 30  # bytes of one frame; a longer one would end the connection, with all that follows
SPARE_MAX = 1 << 22  # bytes that are kept ready for an array that may come
_ARRAY = 1  # extension code

Frame: TypeAlias = bytes | memoryview


class _Here(msgspec.Struct, frozen=True, array_like=True, tag=0):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _Apart(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Bytes are frame number `frame`, counted after the body."""

    dtype: str
    shape: tuple[int, ...]
    frame: int


class _InRing(msgspec.Struct, frozen=True, array_like=True, tag=2):
    dtype: str
    shape: tuple[int, ...]
    generation: int
    start: int
    size: int


_HEADS = msgspec.msgpack.Decoder(_Here | _Apart | _InRing)
_HEAD_ENCODER = msgspec.msgpack.Encoder()


class Codec:
    """Encodes and decodes one message at a time; of one thread. `bits`: see `abi.values.restore`.

    space: makes room for the bytes of a large array that is decoded, u8 [size]. `ring_bytes` and `inline_bytes` count the array bytes
    that were encoded either way.
    """

    def __init__(self, bits: bool = False) -> None:
        self.ring_bytes = 0
        self.inline_bytes = 0
        self.space: Callable[[int], np.ndarray[Any, Any]] = room
        self._spare: np.ndarray[Any, Any] | None = None
        self._usual = 0
        self._bits = bits
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._to_wire)
        self._decoder = msgspec.msgpack.Decoder(AnyMessage, ext_hook=self._from_wire)
        self._out: RingWriter | None = None
        self._in: RingReader | None = None
        self._frames: list[Frame] = []
        self._used = 0
        self._last: Slot | None = None
        self._copies: list[Pair] = []

    def encode(self, message: Message, ring: RingWriter | None = None) -> list[Frame]:
        """The frames of a message. WireError if a value in it cannot travel; the ring is then as before."""
        self._out, self._frames, self._copies = ring, [], []
        mark = ring.mark() if ring is not None else 0
        try:
            body = self._encoder.encode(message)
            if len(body) > FRAME_MAX:
                raise WireError(f"a {type(message).__name__} of {len(body)} bytes is too long: {FRAME_MAX} can travel")
            copy_all(self._copies)
            return [body, *self._frames]
        except Exception as error:
            if ring is not None:
                ring.rewind(mark)
            if isinstance(error, WireError):
                raise
            raise WireError(f"{type(message).__name__} cannot be sent: {error}") from error
        finally:
            self._out, self._frames, self._copies = None, [], []

    def decode(self, frames: Sequence[Frame], ring: RingReader | None = None) -> Message:
        """The message of these frames; its arrays own their memory. WireError whatever else the frames may be."""
        if not frames:
            raise WireError("a message has at least one frame")
        self._in, self._frames, self._used, self._last, self._copies = ring, list(frames[1:]), 0, None, []
        try:
            message: Message = self._decoder.decode(frames[0])
            if self._used != len(self._frames):
                raise WireError(f"{len(self._frames)} array frames came, {self._used} are named")
            if ring is not None and self._last is not None:
                copy_all(self._copies)
                ring.confirm(self._last)
            return message
        except WireError:
            raise
        except Exception as error:  # whatever msgspec or numpy make of garbage
            raise WireError(f"not a message: {type(error).__name__}: {error}") from error
        finally:
            if ring is not None and self._last is not None:
                ring.release(self._last)
            self._in, self._frames, self._last, self._copies = None, [], None, []

    def prepare(self) -> None:
        """While nothing is to be done: make room for a large array, in case that the next one is of the size of the last."""
        if self._spare is None and 0 < self._usual <= SPARE_MAX:
            self._spare = self.space(self._usual)

    # ---------------------------------------------------------------------------------------------------------- arrays

    def _to_wire(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if not is_array(value):
            raise WireError(
                f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot travel in a message"
            )
        flat = flatten(value)
        return msgspec.msgpack.Ext(_ARRAY, _HEAD_ENCODER.encode(self._place(flat)))

    def _place(self, flat: Flat) -> _Here | _Apart | _InRing:
        size = flat.data.nbytes
        if size >= RING_MIN and self._out is not None:
            slot = self._out.write(flat.data, self._copies)
            if slot is not None:
                self.ring_bytes += size
                return _InRing(flat.dtype, flat.shape, slot.generation, slot.start, slot.size)
        self.inline_bytes += size
        if size <= EMBED_MAX:
            return _Here(flat.dtype, flat.shape, bytes(flat.data))
        if size > FRAME_MAX:
            raise WireError(f"{flat.dtype}{list(flat.shape)} takes {size} bytes: {FRAME_MAX} of an array can travel")
        self._frames.append(flat.data)
        return _Apart(flat.dtype, flat.shape, len(self._frames) - 1)

    def _from_wire(self, code: int, body: memoryview) -> Any:
        if code != _ARRAY:
            raise WireError(f"unknown extension {code}")
        head = _HEADS.decode(body)
        if isinstance(head, _InRing):
            data = self._fetch(head, size_of(head.dtype, head.shape))
        else:
            source = np.frombuffer(head.data if isinstance(head, _Here) else self._next_frame(head.frame), np.uint8)
            data = self._room(source.nbytes)
            data[:] = source
        return restore(head.dtype, head.shape, data, self._bits)

    def _room(self, size: int) -> np.ndarray[Any, Any]:
        if size < RING_MIN:
            return room(size)
        spare, self._spare, self._usual = self._spare, None, size
        return spare if spare is not None and spare.nbytes == size else self.space(size)

    def _next_frame(self, index: int) -> Frame:
        if index != self._used or index >= len(self._frames):
            raise WireError(f"array frame {index} is named where frame {self._used} of {len(self._frames)} is due")
        self._used += 1
        return self._frames[index]

    def _fetch(self, head: _InRing, size: int) -> np.ndarray[Any, Any]:
        if self._in is None:
            raise WireError("an array is in a shared-memory ring, but this sender has none here")
        if head.size != size or size > self._in.capacity:
            raise WireError(f"{head.dtype}{list(head.shape)} takes {size} bytes, its slot has {head.size}")
        slot = Slot(head.generation, head.start, head.size)
        data = self._room(size)
        self._in.read(slot, data.data, self._copies)
        self._last = slot
        return data


_LOCAL = threading.local()


def _codec() -> Codec:
    codec = getattr(_LOCAL, "codec", None)
    if codec is None:
        codec = _LOCAL.codec = Codec()
    return codec


def encode(message: Message, ring: RingWriter | None = None) -> list[Frame]:
    """`Codec.encode` with this thread's codec."""
    return _codec().encode(message, ring)


def decode(frames: Sequence[Frame], ring: RingReader | None = None) -> Message:
    """`Codec.decode` with this thread's codec."""
    return _codec().decode(frames, ring)
