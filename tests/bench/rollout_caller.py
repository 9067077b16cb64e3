"""One caller of V-JEPA 2-AC rollouts over HTTP, in a process of its own: `python -m tests.bench.rollout_caller PORT HORIZON LIVE TURNS`.

Sends eight frames as an f32 array in msgpack and reads the latents as numpy arrays, in one document or, if LIVE is 1, frame by frame as
they are made. After each line on standard input it makes one request, and answers with its milliseconds, from before the request is
written until the last latent is an array, and those until the first.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

FRAMES, SIZE = 8, 256
KINDS = {"video": (FRAMES, 3, SIZE, SIZE), "states": (1, 7), "actions": (32, 7)}


def body(horizon: int, live: bool) -> bytes:
    """The request: pixels are noise."""
    draw = np.random.default_rng(0)
    inputs = {
        name: {"dtype": "float32", "shape": shape, "data": draw.standard_normal(shape, np.float32).tobytes()}
        for name, shape in KINDS.items()
    }
    inputs["states"]["data"] = inputs["actions"]["data"] = b""
    for name in ("states", "actions"):
        inputs[name]["data"] = np.zeros(KINDS[name], np.float32).tobytes()
    params = {"horizon": horizon, "live": live}
    return msgspec.msgpack.encode({"inputs": inputs, "params": params, "stream": live})


class Answer:
    """Reads answers into memory that is used again, and gives arrays that lie there."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rb")
        self._held = memoryview(bytearray(64 << 20))

    def head(self) -> dict[bytes, bytes]:
        """The headers. Ends the program if the status is not 200."""
        status, headers = self._file.readline(), {}
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        if b" 200 " not in status:
            raise SystemExit(f"{status!r}: {self._file.read(int(headers[b'content-length']))!r}")
        return headers

    def maps(self, headers: dict[bytes, bytes]) -> Iterator[memoryview]:
        """The maps of the body: one of known length, or one after another in chunks that may end anywhere but in two maps."""
        if b"content-length" in headers:
            yield self._read(0, int(headers[b"content-length"]))
            return
        end = 0
        while size := int(self._file.readline(), 16):
            held = self._read(end, size)
            end += size
            self._file.readline()
            try:
                msgspec.msgpack.decode(held, type=msgspec.Raw)
            except msgspec.DecodeError:
                continue
            yield held
            end = 0
        self._file.readline()

    def _read(self, start: int, size: int) -> memoryview:
        """Read so many bytes behind those that are held; all of them."""
        end = start + size
        while start < end:
            start += self._file.readinto(self._held[start:end])
        return self._held[:end]


def arrays(document: memoryview) -> Iterator[np.ndarray[Any, Any]]:
    """The values of the events in a document, or of the event that it is; not copied."""
    found = msgspec.msgpack.decode(document, type=dict[str, msgspec.Raw])
    if "error" in found:
        raise SystemExit(f"the server refused: {msgspec.msgpack.decode(document)}")
    events = [found] if "value" in found else []
    if "events" in found:
        events = msgspec.msgpack.decode(found["events"], type=list[dict[str, msgspec.Raw]])
    for event in events:
        value = msgspec.msgpack.decode(event["value"], type=dict[bytes, msgspec.Raw])
        dtype, shape = (msgspec.msgpack.decode(value[key]) for key in (b"dtype", b"shape"))
        yield np.frombuffer(memoryview(value[b"data"])[5:], dtype).reshape(shape)  # behind the length of the bytes


class Caller:
    """A connection that is kept."""

    def __init__(self, port: int, horizon: int, live: bool) -> None:
        self.horizon = horizon
        self.connection = socket.create_connection(("127.0.0.1", port))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = Answer(self.connection)
        sent = body(horizon, live)
        self.request = b"\r\n".join(
            [
                b"POST /v1/walks/rollout HTTP/1.1", b"host: bench", b"content-type: application/msgpack",
                b"content-length: %d" % len(sent), b"", sent,
            ]
        )  # fmt: skip

    def once(self) -> tuple[float, float]:
        """Milliseconds until the last latent, and until the first."""
        begin = time.perf_counter()
        self.connection.sendall(self.request)
        frames, first = 0, 0.0
        for document in self.answer.maps(self.answer.head()):
            for made in arrays(document):
                first = first or time.perf_counter()
                frames += made.size // (256 * 1408)
        if frames != self.horizon:
            raise SystemExit(f"{frames} frames came, not {self.horizon}")
        return 1e3 * (time.perf_counter() - begin), 1e3 * (first - begin)


def main() -> None:
    port, horizon, live = (int(word) for word in sys.argv[1:4])
    caller = Caller(port, horizon, bool(live))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(*caller.once(), flush=True)


if __name__ == "__main__":
    main()
