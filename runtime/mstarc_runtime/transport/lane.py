"""A short way for short messages, beside the queues: a pair of sockets whose ends two processes of one host were handed.

ZeroMQ passes a message from thread to thread: three of them wake up until the other process has it, one does here. An end never waits and
keeps nothing: what is too long, or finds the buffer full, goes by the queues. The numbers in the envelopes put both ways in order again.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from mstarc_runtime.transport.wire import Frame

LANE_MAX = 1 << 15  # bytes of a message with its head; a longer one gains nothing here
# bytes on their way, of which the system counts 1/2 to 3/4 KiB for a message itself: some hundred messages, on any host
_BUFFER = 1 << 17
_COUNT = struct.Struct("<H")


def lanes() -> tuple[socket.socket, socket.socket] | None:
    """Two ends, for `Lane`s in two processes; None where the system has no such sockets."""
    try:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except (OSError, AttributeError):
        return None
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    return ends


class Lane:
    """One end, which it owns. A message is a datagram: how many frames, the bytes of each, the frames."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._room = memoryview(bytearray(LANE_MAX))

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, frames: Sequence[Frame]) -> bool:
        """Whether the frames are on their way."""
        sizes = [frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames]
        if _COUNT.size + 4 * len(sizes) + sum(sizes) > LANE_MAX:
            return False
        head = struct.pack(f"<H{len(sizes)}I", len(sizes), *sizes)
        try:
            self._end.sendmsg([head, *frames])
            return True
        except OSError:  # the buffer is full, or the other end is closed: whoever watches that process finds out
            return False

    def receive(self) -> list[Frame] | None:
        """The frames of the next message, [] if they are none of ours; None if there is no message now. EOFError once the other end is
        closed and all was received."""
        try:
            size = self._read()
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError from error
        if not size:
            raise EOFError
        data = memoryview(bytes(self._room[:size]))
        try:
            (count,) = _COUNT.unpack_from(data)
            sizes = struct.unpack_from(f"<{count}I", data, _COUNT.size)
        except struct.error:
            return []
        at = _COUNT.size + 4 * count
        frames: list[Frame] = []
        for size in sizes:
            frames.append(data[at : at + size])
            at += size
        return frames if at == len(data) else []

    def _read(self) -> int:
        """Bytes of the next message. That the other end was closed with messages unread is told once, before what is still there."""
        try:
            return self._end.recv_into(self._room)
        except ConnectionResetError:
            return self._end.recv_into(self._room)

    def pending(self) -> bool:
        """Whether `receive` would find a message or the end."""
        try:
            self._end.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Idempotent. What was sent still arrives."""
        self._end.close()
