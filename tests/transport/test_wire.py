"""Messages as frames: every message type, the three places of array bytes, and 2000 mutations."""

from __future__ import annotations

import os
import random
import typing
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from mstarc_runtime.abi import messages as m
from mstarc_runtime.abi.values import WireError
from mstarc_runtime.transport.ring import RingReader, RingWriter, create
from mstarc_runtime.transport.wire import EMBED_MAX, RING_MIN, SPARE_MAX, Codec, StaleRing, decode, encode

Rings = tuple[RingWriter, RingReader]


@pytest.fixture
def rings() -> Iterator[Rings]:
    fd = create(1 << 16)
    writer, reader = RingWriter(fd), RingReader(fd)
    os.close(fd)
    yield writer, reader
    writer.close()
    reader.close()


def floats(bytes_: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(bytes_).standard_normal(bytes_ // 8)


def sample(kind: type[m.Message]) -> m.Message:
    """A message of that type, with something in every field."""
    values: dict[object, object] = {
        int: 7,
        str: "naïve",
        str | None: "seed",
        list[str]: ["a", "b"],
        list[typing.Any]: [1, None, 2.5, b"x", {"k": [True]}],
    }
    values |= {
        dict[str, typing.Any]: {"x": [1, {"y": None}]},
        dict[str, str]: {"loop": "stop"},
        dict[str, int]: {"loop": 3},
    }
    values |= {
        dict[int, tuple[str, int]]: {-1: ("ipc://x", 4)},
        dict[str, tuple[int, int]]: {"kv": (3, 16)},
        dict[str, float]: {"g": 0.5},
    }
    values |= {list[tuple[int, str, str, typing.Any, dict[str, typing.Any]]]: [(1, "w", "text", "é", {"n": 1})]}
    return kind(
        **{name: values[hint] for name, hint in typing.get_type_hints(kind).items() if name in kind.__struct_fields__}
    )


@pytest.mark.parametrize("kind", typing.get_args(m.AnyMessage))
def test_every_message_type(kind: type[m.Message]) -> None:
    message = sample(kind)
    again = decode(encode(message))
    assert type(again) is kind
    assert again == message


def test_places(rings: Rings) -> None:
    writer, reader = rings
    arrays = [floats(EMBED_MAX), floats(EMBED_MAX + 8), floats(RING_MIN - 8), floats(RING_MIN)]
    codec = Codec()
    frames = codec.encode(m.Items(1, "s", 0, 0, arrays), writer)
    assert [len(frame) for frame in frames[1:]] == [EMBED_MAX + 8, RING_MIN - 8]
    assert (codec.ring_bytes, codec.inline_bytes) == (RING_MIN, EMBED_MAX * 2 + RING_MIN)
    assert writer.free == writer.capacity - RING_MIN
    again = codec.decode(frames, reader)
    assert isinstance(again, m.Items)
    assert all(np.array_equal(a, b) for a, b in zip(again.values, arrays, strict=True))
    assert writer.free == writer.capacity  # given back by decode


def test_a_full_ring_means_inline(rings: Rings) -> None:
    writer, reader = rings
    queue = [encode(m.Items(1, "s", 0, i, [floats(RING_MIN * 2) + i]), writer) for i in range(3)]
    assert [len(frames) for frames in queue] == [1, 1, 2]
    for i, frames in enumerate(queue):
        message = decode(frames, reader)
        assert isinstance(message, m.Items)
        assert np.array_equal(message.values[0], floats(RING_MIN * 2) + i)
    assert len(encode(m.Items(1, "s", 0, 3, [floats(RING_MIN * 2)]), writer)) == 1  # there is room again


def test_arrays_own_their_memory(rings: Rings) -> None:
    writer, reader = rings
    for size in (8, EMBED_MAX + 8, RING_MIN):
        source = floats(size)
        first = decode([bytes(frame) for frame in encode(m.Items(1, "s", 0, 0, [source]), writer)], reader)
        kept = source.copy()
        source[:] = 0
        for _ in range(6):  # goes over the ring more than once
            decode(encode(m.Items(1, "s", 0, 0, [floats(RING_MIN) + 1]), writer), reader)
        assert isinstance(first, m.Items)
        assert np.array_equal(first.values[0], kept)
        first.values[0][...] = 5  # and can be written to


def test_large_arrays_are_decoded_into_given_memory(rings: Rings) -> None:
    """By ring, and as a frame of their own; small ones are not."""
    writer, reader = rings
    given: list[np.ndarray[typing.Any, typing.Any]] = []

    def space(size: int) -> np.ndarray[typing.Any, typing.Any]:
        given.append(np.empty(size, np.uint8))
        return given[-1]

    arrays = [floats(8), floats(RING_MIN - 8), floats(RING_MIN)]
    codec = Codec()
    codec.space = space
    for ring in (writer, None):
        given.clear()
        message = codec.decode(codec.encode(m.Items(1, "s", 0, 0, arrays), ring), reader)
        assert isinstance(message, m.Items)
        assert all(np.array_equal(a, b) for a, b in zip(message.values, arrays, strict=True))
        assert [np.shares_memory(value, each) for value in message.values for each in given] == [False, False, True]


def test_scalars_and_nesting() -> None:
    message = m.WalkEnded(
        1, 2, [np.float32(0.5), np.int64(-3), np.bool_(True), {"a": [np.zeros((), "i4")]}, (1, 2)], {}, {}
    )
    again = decode(encode(message))
    assert isinstance(again, m.WalkEnded)
    assert again.results[:3] == [0.5, -3, True] and type(again.results[1]) is int
    assert again.results[3]["a"][0].shape == () and again.results[4] == [1, 2]


@pytest.mark.parametrize("bad", [object(), 1 << 70, np.array([None]), "\ud800", range(3)])
def test_what_cannot_travel_is_a_wire_error_and_leaves_the_ring(rings: Rings, bad: object) -> None:
    writer, _ = rings
    with pytest.raises(WireError):
        encode(m.Items(1, "s", 0, 0, [floats(RING_MIN), bad]), writer)
    assert writer.free == writer.capacity


def test_deep_nesting_is_a_wire_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(WireError):
        encode(m.Items(1, "s", 0, 0, deep))
    with pytest.raises(WireError):
        decode([b"\x96\xa5items\x01\xa1s\x00\x00" + b"\x91" * 100_000 + b"\x90"])
    while deep:  # a list this deep must not be freed in one recursion
        deep = deep[0]  # type: ignore[assignment]


def head(*fields: object) -> bytes:
    """An `Items` message with one array whose header has these fields."""
    return msgspec.msgpack.encode(
        ["items", 1, "s", 0, 0, [msgspec.msgpack.Ext(1, msgspec.msgpack.encode(list(fields)))]]
    )


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1"],
        [msgspec.msgpack.encode(["nosuch", 1])],
        [msgspec.msgpack.encode(["freed", "x"])],
        [msgspec.msgpack.encode(["freed", 1]), b"unused frame"],
        [msgspec.msgpack.encode(["items", 1, "s", 0, 0, [msgspec.msgpack.Ext(9, b"")]])],
        [head(0, "float32", [1 << 40], b"")],
        [head(1, "float32", [1], 0)],
        [head(1, "float32", [1], -1), b"1234"],
        [head(1, "float32", [2], 0), b"1234"],
        [head(2, "uint8", [1 << 60], 1, 0, 1 << 60)],
        [head(2, "uint8", [16], 2, 0, 16)],
        [head(2, "uint8", [16], 2, 1 << 62, 16)],
        [head(2, "uint8", [16], 2, -16, 16)],
        [head(2, "uint8", [32], 2, 0, 16)],
    ],
)
def test_malformed(rings: Rings, frames: list[bytes]) -> None:
    _, reader = rings
    with pytest.raises(WireError):
        decode(frames, reader)
    with pytest.raises(WireError):
        decode(frames)


def test_two_thousand_mutations(rings: Rings) -> None:
    """Mutated frames give a message or a WireError, and the ring still works afterwards."""
    writer, reader = rings
    rng = random.Random(5)
    refused = 0
    for turn in range(2000):
        values = [floats(64), floats(EMBED_MAX + 8), floats(RING_MIN), "text", {"k": [1, 2.5]}]
        frames = [bytearray(frame) for frame in encode(m.Items(turn, "stream", 1, 2, values), writer)]
        for _ in range(rng.randint(1, 4)):
            mutate(rng, frames)
        try:
            decode([bytes(frame) for frame in frames], reader)
        except WireError:
            refused += 1
    assert refused > 500
    writer.reset()
    for turn in range(10):
        message = decode(encode(m.Items(turn, "s", 0, 0, [floats(RING_MIN)]), writer), reader)
        assert isinstance(message, m.Items)
        assert np.array_equal(message.values[0], floats(RING_MIN))
    assert writer.free == writer.capacity


def mutate(rng: random.Random, frames: list[bytearray]) -> None:
    kind = rng.randrange(6)
    frame = frames[rng.choice([0, 0, 0, rng.randrange(len(frames))])]  # mostly the body
    at = rng.randrange(len(frame)) if frame else 0
    if kind == 0 and frame:
        frame[at] = rng.randrange(256)
    elif kind == 1:
        del frame[at:]
    elif kind == 2:
        frame[at:at] = rng.randbytes(rng.randint(1, 8))
    elif kind == 3 and frame:
        del frame[at : at + rng.randint(1, 8)]
    elif kind == 4 and len(frames) > 1:
        frames.pop(rng.randrange(1, len(frames)))
    elif frame:
        frame[at] ^= 1 << rng.randrange(8)


def test_an_old_generation_is_stale(rings: Rings) -> None:
    writer, reader = rings
    frames = encode(m.Items(1, "s", 0, 0, [floats(RING_MIN)]), writer)
    writer.reset()
    with pytest.raises(StaleRing):
        decode(frames, reader)
    assert writer.free == writer.capacity


def test_room_that_was_made_ready_is_used_once() -> None:
    """Of the size of the last large array; each array has memory of its own."""
    made: list[int] = []

    def space(size: int) -> np.ndarray[typing.Any, typing.Any]:
        made.append(size)
        return np.empty(size, np.uint8)

    codec = Codec()
    codec.space = space
    codec.prepare()
    assert made == []
    kept = []
    sizes = (20_000, 20_000, 30_000, SPARE_MAX + 1)
    for turn, size in enumerate(sizes):
        kept.append(codec.decode(encode(m.Items(1, "s", 0, 0, [np.full(size, turn, np.uint8)]))))
        codec.prepare()
        codec.prepare()
    assert made == [20_000, 20_000, 20_000, 30_000, 30_000, SPARE_MAX + 1]
    for turn, message in enumerate(kept):
        assert isinstance(message, m.Items) and (message.values[0] == turn).all()
